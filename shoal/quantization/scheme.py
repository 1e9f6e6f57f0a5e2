"""How values are quantized, as a value; imports no torch, so that a wrong one is refused in a moment."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shoal.errors import check_choice, check_range
from shoal.inference.grid import GridKind

if TYPE_CHECKING:
    import torch

Style = Literal["standard", "paper"]
STYLES: tuple[Style, ...] = ("standard", "paper")
HALVES = ("float16", "bfloat16")
SHORT = {"fp16": "float16", "bf16": "bfloat16"}
LEAST_BITS, MOST_BITS = 2, 16


@dataclass(frozen=True)
class Scheme:
    """How values are quantized: to integers of `bits`, or to a number format."""

    bits: int = 8
    style: Style = "standard"
    symmetric: bool = True
    """Standard style: symmetric around zero, or with a zero point that the range determines."""
    per_channel: bool | None = None
    """One scale per output channel; False: one per tensor (of each network, where several are stacked); None: per
    channel for convolutions only, as in the paper."""
    format: str | None = None
    """float16, bfloat16 or any format of `shoal.numerics` by name (E4M3, Q4.4) in place of integers."""

    def __post_init__(self) -> None:
        check_choice("style", self.style, STYLES)
        if self.format is None:
            check_range("bits", self.bits, LEAST_BITS, MOST_BITS)
        elif self.format in SHORT:
            object.__setattr__(self, "format", SHORT[self.format])
        elif self.format not in HALVES:
            from shoal.numerics import parse

            parse(self.format)  # raises a UserError

    @property
    def width(self) -> int:
        """Bits per stored value."""
        if self.format is None:
            return self.bits
        if self.format in HALVES:
            return 16
        from shoal.numerics import BlockFormat, parse

        found = parse(self.format)
        return (found.element if isinstance(found, BlockFormat) else found).width

    def shared(self, shape: "torch.Size") -> int:
        """Number of shared exponents of a tensor, where the format has blocks."""
        if self.format is None or self.format in HALVES:
            return 0
        from shoal.numerics import BlockFormat, parse
        from shoal.numerics.rounding.blocks import tiles

        if not isinstance(found := parse(self.format), BlockFormat):
            return 0
        (groups, rows, columns), (high, wide) = tiles(found, shape)
        return groups * -(-rows // high) * -(-columns // wide)

    @property
    def kind(self) -> GridKind:
        """The kind of grid."""
        if self.style == "paper":
            return "paper"
        return "symmetric" if self.symmetric else "asymmetric"

    @property
    def label(self) -> str:
        """Its name in tables."""
        return self.format or f"{self.bits} bits"
