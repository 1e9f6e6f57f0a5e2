"""Options of an export, apart from it: the command line is made of them before numpy and numba are imported."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shoal.errors import UserError, check_choice, check_range, whole_number

if TYPE_CHECKING:
    from shoal.inference.correction import Correction

ExportPrecision = Literal["float32", "float16", "int8", "static-int8", "packed"]
PRECISIONS: tuple[ExportPrecision, ...] = ("float32", "float16", "int8", "static-int8", "packed")
CODED: tuple[ExportPrecision, ...] = ("int8", "static-int8", "packed")  # those whose weights are codes
Rounding = Literal["nearest", "output-error"]
ROUNDINGS: tuple[Rounding, ...] = ("nearest", "output-error")


@dataclass(frozen=True)
class ExportOptions:
    """Precision of the file, and how it is written and checked."""

    precision: ExportPrecision = "float32"
    """float16: weights only; int8: activations scaled per state; static-int8: scales calibrated on the policy's states;
    packed: weights in low precision, for storage."""
    bits: int | None = None
    """Bits of the weights: 2 to 7 if packed (None: as in quantization-aware training, else 4), 2 to 8 in int8 and
    static-int8 (None: 7, or 8 where this processor has VNNI; without VNNI products of 8 bits saturate, so choose 7 for
    other machines)."""
    single: bool = False
    """Optimise for one state at a time: int8 products are fused."""
    sample: bool = False
    """Sample discrete actions, with uniform numbers as a second input, instead of taking the most likely
    (deterministic=False in Python)."""
    tolerance: float | None = None
    """Maximum mean error of an action, as a fraction of its range; None: by precision."""
    seed: int = 0
    """Random seed of the states that are played where the run has none on disk."""
    each: bool = False
    """One file per agent instead of one for the team."""
    correct_bias: bool = True
    """int8, static-int8, packed: move biases so that mean pre-activations over visited states stay those of full
    precision."""
    rounding: Rounding = "nearest"
    """int8, static-int8, packed: how weights are rounded; output-error: so that the layers' outputs over visited states
    stay close, which keeps most of the actions in low precision."""

    @property
    def correction(self) -> "Correction":
        """What is corrected: only codes are."""
        from shoal.inference.correction import Correction

        coded = self.precision in CODED
        if not coded and self.rounding != "nearest":
            raise UserError(f"`rounding={self.rounding}` is for int8, static-int8 and packed, not {self.precision}.")
        return Correction(self.correct_bias and coded, self.rounding)

    def check(self) -> None:
        """Raise a `UserError` for the first invalid option."""
        check_range("seed", self.seed, 0, 2**62)
        if self.tolerance is not None:
            check_range("tolerance", self.tolerance, 0, 1)
        check_bits(self.precision, self.bits)


def check_bits(precision: ExportPrecision, bits: int | None) -> None:
    """Refuse bits that this precision cannot have; None: its own."""
    check_choice("precision", precision, PRECISIONS)
    if bits is None:
        return
    if precision not in CODED:
        raise UserError(f"`bits` is {bits}, but the bits of {precision} are fixed; leave it out.")
    whole_number("bits", bits, 2, 7 if precision == "packed" else 8)
