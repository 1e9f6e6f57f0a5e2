"""Quantizers, quantization after and during training, and export to ONNX."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.quantization.affine import Codes, Scheme, codes, simulate
    from shoal.quantization.callback import QatCallback
    from shoal.quantization.ptq import Plan, calibrate, model_bytes, quantized
    from shoal.quantization.qat import Qat
    from shoal.quantization.stable_baselines import read_zip, to_policy
else:
    __getattr__ = lazy(
        __name__,
        dict.fromkeys(("Codes", "Scheme", "codes", "simulate"), "shoal.quantization.affine")
        | dict.fromkeys(("Plan", "calibrate", "model_bytes", "quantized"), "shoal.quantization.ptq")
        | dict.fromkeys(("read_zip", "to_policy"), "shoal.quantization.stable_baselines")
        | {"Qat": "shoal.quantization.qat", "QatCallback": "shoal.quantization.callback"},
    )

__all__ = [
    "Codes",
    "Plan",
    "Qat",
    "QatCallback",
    "Scheme",
    "calibrate",
    "codes",
    "model_bytes",
    "quantized",
    "read_zip",
    "simulate",
    "to_policy",
]
