"""What a training's precision may do: one plug between the loop, the update and the optimizer.

`Precision` itself is full precision and changes nothing. Quantization-aware training, and schemes with emulated MAC
units, loss scaling and rounded updates, are subclasses that override what they need; `training/precision.py` makes the
one that a run's settings ask for.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Precision:
    """Full precision."""

    dense: bool = False
    """Whether every product must be computed as it is written: no shortcut that is equal only up to rounding."""

    def progress(self, done: float) -> None:
        """This share of the training is done: what is delayed may begin."""

    def learning(self) -> AbstractContextManager[object]:
        """Entered for every update, forward and backward."""
        return nullcontext()

    def of(self, network: str, parameters: "Sequence[Tensor]") -> "Precision":
        """What the optimizer of this network's parameters talks to."""
        return self

    def scaled(self, loss: "Tensor") -> "Tensor":
        """The loss whose gradient is taken."""
        return loss

    def accept(self, gradients: "list[Tensor]") -> bool:
        """See the gradients of a scaled loss, and undo its scale in place; False skips this step of the optimizer."""
        return True

    def step(self, parameters: "list[Tensor]", moments: "list[Tensor]", step: Callable[[], None]) -> None:
        """Let the optimizer's `step` change the parameters and its moments in place, and round what comes out."""
        step()

    def state(self) -> "dict[str, Tensor]":
        """What decides its future, by name; saved with the weights."""
        return {}

    def load_state(self, state: "Mapping[str, Tensor]") -> None:
        """Continue from what `state` returned; names that are not its own are ignored."""

    def metrics(self) -> dict[str, float]:
        """Numbers for the log, by name."""
        return {}


FULL = Precision()
