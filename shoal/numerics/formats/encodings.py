"""The six multiplier encodings of the slides, CFG-1 to CFG-6: each drops a part of IEEE 754 to save area.

The steps are cumulative; 5 and 6 are alternatives on top of 4. Only 4, 5 and 6 change the meaning of operand codes;
2 and 3 change the output of the multiplier.
"""

from dataclasses import dataclass, replace

from shoal.errors import UserError, whole_number
from shoal.numerics.formats.types import FloatFormat


@dataclass(frozen=True)
class Encoding:
    """Inputs and output of a multiplier in this configuration."""

    cfg: int
    nan_code: bool
    """CFG 1 to 3: the top exponent field is inf and NaN. CFG 4 to 6: ordinary numbers, except t all ones = ±inf."""
    subnormal_inputs: str
    """What exponent field 0 of an operand means: `gradual`, `normal` (CFG-5) or `zero` (CFG-6)."""
    subnormal_outputs: bool
    """CFG-1 only: results below the smallest normal underflow gradually; otherwise they become 0."""
    rounded_output: bool
    """CFG 1 and 2: the product is rounded to the input format; otherwise exact in E(e+1)M(2m+1)."""
    change: str
    """What changes relative to the previous configuration, in the slides' words."""


ENCODINGS = {
    encoding.cfg: encoding
    for encoding in (
        Encoding(1, True, "gradual", True, True, "basic configuration"),
        Encoding(2, True, "gradual", False, True, "subnormal output removal"),
        Encoding(3, True, "gradual", False, False, "output rounding removal"),
        Encoding(4, False, "gradual", False, False, "NaN encoding removal"),
        Encoding(5, False, "normal", False, False, "treats subnormal inputs as normal values"),
        Encoding(6, False, "zero", False, False, "truncates all subnormal inputs to zero"),
    )
}


def encoding(cfg: int) -> Encoding:
    """The configuration with this number."""
    whole_number("cfg", cfg, 1, len(ENCODINGS))
    return ENCODINGS[cfg]


def operand_format(format: FloatFormat, cfg: int) -> FloatFormat:
    """The format that a multiplier of this configuration actually decodes, from the plain EeMm."""
    chosen = encoding(cfg)
    if not isinstance(format, FloatFormat):
        raise UserError(f"CFG-1 to 6 are encodings of floating-point operands, not of {format!r}.")
    plain = (True, True, "gradual", True)
    decoded = (True, chosen.nan_code, chosen.subnormal_inputs, True)
    if (format.infinities, format.nans, format.subnormals, format.signed_zero) not in (plain, decoded):
        plain_name = f"E{format.exponent}M{format.mantissa}"
        raise UserError(f"cfg={cfg} decides what the special codes of {format} mean; give the plain {plain_name}.")
    return replace(format, nans=chosen.nan_code, subnormals=chosen.subnormal_inputs)
