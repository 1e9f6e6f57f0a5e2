"""The built-in schemes.

Where a source leaves a question open, our reading is a field that can be given another value after a semicolon;
docs/schemes.md lists these readings.
"""

from typing import Any

from shoal.numerics.schemes.scheme import Scheme

SOURCES = {
    "float32": "the baseline",
    "bf16": "mixed precision: operands in bfloat16, sums and master copy in float32",
    "fp16": "mixed precision: operands in binary16, sums and master copy in float32; use a loss scale",
    "swalp": "Yang et al., SWALP: Stochastic Weight Averaging in Low Precision, ICML 2019",
    "s2fp8": "Cambier et al., Shifted and Squeezed 8-bit Floating Point Format, ICLR 2020",
    "hfp8": "Sun et al., Hybrid 8-bit Floating Point (HFP8) Training and Inference, NeurIPS 2019",
    "bm8": "Fox et al., A Block Minifloat Representation for Training Deep Neural Networks, ICLR 2021",
    "fp8-seb": "Park et al., A Neural Network Training Processor with 8-Bit Shared Exponent Bias, JSSC 2021",
    "fp134": "Lee et al., Towards Efficient Low-Precision Training: Hysteresis Quantization, ICLR 2022",
}


_ROUNDED = ("weights", "inputs", "weight_gradients", "activation_gradients")


def _scheme(name: str, everywhere: str | None = None, **others: Any) -> Scheme:
    """A scheme from texts: `everywhere` is the cast of operands and gradients."""
    return Scheme(name, **(dict.fromkeys(_ROUNDED, everywhere) | others))


# Block floating point: 8-bit integers, and products of two of them in a 32-bit sum.
_BFP, _BFP_UNIT = "Q1.7/row, rounding=stochastic", "Q1.7+Q18.14, rounded=False"

# HFP8's multipliers round to a format that holds every product, so products are exact.
_HFP8 = "E4M3(bias=4), overflow=saturate"
_HFP8_SUMS = "+E6M9, output=E7M9, order=chunked(64)"

# Block minifloats as integers: E2M5B2F has multiples of 2^-6 below 4, E4M3B8F multiples of 2^-10 below 256.
_MINIFLOAT, _WIDE_MINIFLOAT = "E2M5B2F/48x48, rounding=stochastic", "E4M3B8F/48x48, rounding=stochastic"

# E5M3 has every value of E4M3F, and E7M7 every product of two: only the tree's additions round.
_SEB, _SEB_UNIT = "E4M3F/tensor", "E5M3+fp32, output=E7M7, order=pairwise"

_FP134 = "E3M4F/tensor"

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("float32"),
        _scheme("bf16", "bf16"),
        _scheme("fp16", "fp16"),
        _scheme(
            "swalp", _BFP, forward=_BFP_UNIT, grad_input=_BFP_UNIT, grad_weight=_BFP_UNIT, master=_BFP, state=_BFP,
            average_after=0.5,
        ),
        _scheme("s2fp8", "E5M2, squeeze=True"),
        _scheme(
            "hfp8", _HFP8, activation_gradients="E5M2", weight_gradients="E6M9", normalisation="E6M9",
            forward="E4M3(bias=4)" + _HFP8_SUMS,
            grad_input="E5M2*E4M3(bias=4)" + _HFP8_SUMS,
            grad_weight="E4M3(bias=4)*E5M2" + _HFP8_SUMS,
        ),
        _scheme(
            "bm8", _MINIFLOAT, activation_gradients=_WIDE_MINIFLOAT, weight_gradients="E6M9",
            forward="Q3.6+Q19.12, rounded=False",
            grad_input="Q9.10*Q3.6+Q15.16, rounded=False",
            grad_weight="Q3.6*Q9.10+Q15.16, rounded=False",
        ),
        _scheme(
            "fp8-seb", _SEB, normalisation=_SEB, forward=_SEB_UNIT, grad_input=_SEB_UNIT, grad_weight=_SEB_UNIT,
        ),
        _scheme("fp134", _FP134, weights=f"{_FP134}, rounding=hysteresis", normalisation=_FP134),
    )
}  # fmt: skip
