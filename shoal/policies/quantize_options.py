"""Options of `quantize`, apart from it: the command line is made of them before torch is imported."""

from dataclasses import dataclass

from shoal.errors import check_choice, check_range
from shoal.inference.options import Rounding
from shoal.quantization.quantizer import WHAT, Style, Width, named_width


@dataclass(frozen=True)
class QuantizeOptions:
    """Which precisions are measured, and how."""

    bits: tuple[str, ...] = ("32", "16", "8", "6", "5", "4", "3", "2")
    """Comma-separated bit widths: 2 to 16, or 32 for float32; also fp16, bf16 and formats such as E4M3, Q4.4."""
    what: tuple[str, ...] = ("weights", "both")
    """What is quantized, comma-separated: weights, activations, both."""
    style: Style = "standard"
    """standard: clamped integer codes, one scale per output channel; paper: round(W / d) with d over 2^n, not
    clamped."""
    per_tensor: bool = False
    """Standard style: one scale per layer instead of one per output channel."""
    asymmetric: bool = False
    """Standard style: asymmetric weights, with a zero point."""
    edge_bits: str = ""
    """Bit width of the first and the last layer; empty: the same as the others."""
    dynamic: bool = False
    """Dynamic ranges of activations, from each state, instead of ranges calibrated in full precision."""
    correct_bias: bool = True
    """A further row for every width below 16 bits: biases moved so that mean pre-activations over visited states
    stay those of full precision."""
    rounding: Rounding = "nearest"
    """output-error: a further row for every width, its weights rounded so that the layers' outputs over visited
    states stay close."""
    episodes: int = 100
    """Episodes per row; all rows play the same ones."""
    seed: int = 1
    """Random seed of the initial states."""

    def check(self) -> None:
        """Raise a `UserError` for the first invalid option."""
        check_range("seed", self.seed, 0, 2**62)
        check_range("episodes", self.episodes, 1, 10**7)
        self.widths()
        for word in self.what:
            check_choice("what", word, WHAT)
        self.edges()

    def widths(self) -> tuple[Width, ...]:
        """Every width once."""
        return tuple(dict.fromkeys(self._width(word, "bits") for word in self.bits))

    def edges(self) -> Width | None:
        """That of the first and the last layer; None: the same as the others."""
        return self._width(self.edge_bits, "edge_bits") if self.edge_bits else None

    def _width(self, word: str, name: str) -> Width:
        return named_width(word, self.style, not self.asymmetric, self.per_tensor, name)
