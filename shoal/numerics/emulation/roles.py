"""The emulation and role of this thread's products; imports neither torch nor numba.

`role` is for hand-written gradients: nothing shows which gradient a product in an autograd.Function's `backward` is.
"""

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shoal.errors import check_choice

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.numerics.emulation.emulate import Emulation

ROLES = ("forward", "grad_input", "grad_weight")
WEIGHTS, INPUTS, GRADIENTS = "weights", "inputs", "activation_gradients"  # kinds of operands


class _Here(threading.local):
    """State of this thread."""

    emulation: "Emulation | None" = None
    mode: object = None  # the mode of the innermost context; outer ones are inactive
    role: str | None = None
    calling: str = ""  # the torch function that the user called, for messages and coverage
    refusal: str = ""  # the last refusal, in case its error gets lost on the way

    def __init__(self) -> None:
        self.entered: list[Any] = []
        """What each context has to restore."""


here = _Here()


def emulating() -> bool:
    """Whether products in this thread currently go through MAC units."""
    return here.emulation is not None


def mark_weight(x: "Tensor") -> "Tensor":
    """x, which emulations take for a weight although it was computed: quantized weights are."""
    x.computed_weight = True  # type: ignore[attr-defined]
    return x


class role:
    """A context in which products have this role: `forward`, `grad_input` or `grad_weight`."""

    def __init__(self, name: str) -> None:
        check_choice("role", name, ROLES)
        self.name = name

    def __enter__(self) -> None:
        self.before, here.role = here.role, self.name

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        here.role = self.before
