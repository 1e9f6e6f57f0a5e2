"""Which bits of a policy: the words of `shoal quantize`, understood or refused before torch is imported."""

import re
from dataclasses import dataclass
from typing import Literal

from shoal.errors import UserError
from shoal.quantization.scheme import LEAST_BITS, MOST_BITS, Scheme, Style

What = Literal["weights", "activations", "both"]
WHAT: tuple[What, ...] = ("weights", "activations", "both")


@dataclass(frozen=True)
class Width:
    """The precision of a row, under the name that was asked for."""

    name: str
    scheme: Scheme | None
    """None: float32."""

    @property
    def bits(self) -> int:
        """Bits per value."""
        return 32 if self.scheme is None else self.scheme.width


FULL = ("32", "float32", "fp32")


def named_width(
    word: str, style: Style = "standard", symmetric: bool = True, per_tensor: bool = False, name: str = "bits"
) -> Width:
    """Parse a width: a number of bits, or a number format.

    The paper style has one scale per layer, but one per channel in convolutions.
    """
    if word in FULL:
        return Width("float32", None)
    per_channel = None if style == "paper" else not per_tensor
    if re.fullmatch(r"-?[0-9]{1,9}", word):
        if not LEAST_BITS <= int(word) <= MOST_BITS:
            raise UserError(f"`{name}` is {word}, but must be from {LEAST_BITS} to {MOST_BITS}, or 32 for float32.")
        scheme = Scheme(int(word), style, symmetric, per_channel)
    else:
        try:
            scheme = Scheme(style=style, format=word)
        except UserError as error:
            raise UserError(f"`{name}` '{word}' is neither a number of bits nor a number format: {error}") from None
    return Width(scheme.label, scheme)
