"""Precisions of exported files, and the bits that each may have."""

from typing import Literal

from shoal.errors import UserError, check_choice, check_range

ExportPrecision = Literal["float32", "float16", "int8", "static-int8", "packed"]
PRECISIONS: tuple[ExportPrecision, ...] = ("float32", "float16", "int8", "static-int8", "packed")
CODED: tuple[ExportPrecision, ...] = ("int8", "static-int8", "packed")
"""Those whose weights are codes."""


def check_bits(precision: ExportPrecision, bits: int | None) -> None:
    """Refuse bits that this precision cannot have; None: its own."""
    check_choice("--precision", precision, PRECISIONS)
    if bits is None:
        return
    if precision not in CODED:
        raise UserError(f"--bits is {bits}, but the bits of {precision} are fixed; leave it out.")
    check_range("--bits", bits, 2, 7 if precision == "packed" else 8)
