"""Which emulation the products of this thread go through, and in which role: knows neither torch nor numba.

`role` is for those who write gradients out: products in an autograd.Function's `backward` do not show what they are.
"""

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shoal.errors import check_choice

if TYPE_CHECKING:
    from shoal.numerics.emulation.emulate import Emulation

ROLES = ("forward", "grad_input", "grad_weight")


class _Here(threading.local):
    """What holds in this thread."""

    emulation: "Emulation | None" = None
    mode: object = None
    """The innermost context's: contexts around it stand aside."""
    role: str | None = None
    calling: str = ""
    """The torch function that the user called, for messages and coverage."""
    refusal: str = ""
    """The last one, in case that its error does not come through."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        """What the contexts around this one have to put back."""


here = _Here()


def emulating() -> bool:
    """Whether products go through MAC units now, in this thread."""
    return here.emulation is not None


class role:
    """A context in which products are of this role: `forward`, `grad_input` or `grad_weight`."""

    def __init__(self, name: str) -> None:
        check_choice("role", name, ROLES)
        self.name = name

    def __enter__(self) -> None:
        self.before, here.role = here.role, self.name

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        here.role = self.before
