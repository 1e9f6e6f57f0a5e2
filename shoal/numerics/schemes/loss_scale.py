"""Loss scaling: gradients of 2^s times the loss underflow less; the factor is undone before the update.

What overflows is seen where it happens: in the MAC units and casts of the backward pass, which saturate as often as
they become infinite, and not only as infinities in the gradients that come out. This module imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from shoal.errors import Diverged, UserError, check_choice, check_range, whole_number
from shoal.numerics.formats.notation import fields_after_commas

KINDS = ("none", "fixed", "dynamic", "adaptive")
EXAMPLES = "none, 1024, dynamic, adaptive and 'dynamic, start=1024, interval=500' are examples"
PATIENCE = 20  # so many skipped steps in a row mean that training has diverged
LARGEST = 2.0**100
SMALLEST = 2.0**-100


@dataclass(frozen=True, repr=False)
class LossScale:
    """A rule for the loss scale.

    `none` and `fixed`: a constant; steps whose gradients are not finite are skipped. `dynamic`: the rules and defaults
    of PyTorch's GradScaler: a step that overflows is skipped and the scale is multiplied by `backoff`; after `interval`
    steps without overflow it is multiplied by `growth`. `adaptive`: the scale is a power of two that follows the
    overflows, as the slides' is: one binade down after a step that overflows, which is skipped only if its gradients
    are not finite, and one up after `interval` others.

    A step overflows if a gradient is not finite, or if more than `tolerance` of the multiply-accumulates and casts of
    its backward pass saturate or overflow.
    """

    kind: str = "none"
    start: float = 1.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        check_choice("loss scale", self.kind, KINDS)
        check_range("The start of the loss scale" if self.changes else "The loss scale", self.start, 1e-30, 1e30)
        check_range("The growth of the loss scale", self.growth, 1.0, 2.0**20)
        check_range("The backoff of the loss scale", self.backoff, 2.0**-20, 1.0)
        check_range("The interval of the loss scale", whole_number("The interval of the loss scale", self.interval), 1)
        check_range("The tolerance of the loss scale", self.tolerance, 0.0, 1.0)

    @property
    def changes(self) -> bool:
        """Whether the scale may change."""
        return self.kind in ("dynamic", "adaptive")

    def __repr__(self) -> str:
        """`none`, a number, or a kind with what differs from its defaults."""
        if not self.changes:
            return "none" if self.kind == "none" else shortest(self.start)
        usual = DEFAULTS[self.kind]
        names = [field.name for field in fields(self)[1:]]
        different = [name for name in names if getattr(self, name) != getattr(usual, name)]
        return self.kind + "".join(f", {name}={shortest(getattr(self, name))}" for name in different)


DEFAULTS = {
    "none": LossScale(),
    "dynamic": LossScale("dynamic", start=2.0**16),
    "adaptive": LossScale("adaptive", start=2.0**10, interval=50),
}


def parse_loss_scale(text: "str | float | LossScale") -> LossScale:
    """Parse `none`, a number, `dynamic` or `adaptive`, the latter two with fields after commas."""
    if isinstance(text, LossScale):
        return text
    if isinstance(text, int | float) and not isinstance(text, bool):
        return LossScale("fixed", start=float(text))
    if not isinstance(text, str):
        raise UserError(f"A loss scale is a number or a text, not {text!r}; {EXAMPLES}.")
    name, options = fields_after_commas(text, EXAMPLES)
    name = name.strip()
    if name not in DEFAULTS:
        if (number := _number(name)) is None or options:
            raise UserError(f"'{name}' is not a loss scale; {EXAMPLES}.")
        return LossScale("fixed", start=number)
    usual = DEFAULTS[name]
    if options and not usual.changes:
        raise UserError(f"'{text}' has fields, which only dynamic and adaptive loss scales have; {EXAMPLES}.")
    names = [field.name for field in fields(LossScale)[1:]]
    chosen: dict[str, Any] = {}
    for option, value in options.items():
        check_choice("The field of a loss scale", option, names)
        number = _number(str(value))
        if number is None:
            raise UserError(f"The {option} of the loss scale is '{value}', but must be a number.")
        chosen[option] = int(number) if option == "interval" and number.is_integer() else number
    return LossScale(**(vars(usual) | chosen))


class Scaler:
    """The loss scale of one loss, as it develops."""

    def __init__(self, rule: LossScale) -> None:
        self.rule, self.scale = rule, rule.start
        self.taken = self.skipped = 0
        self._clean = 0  # steps since the last overflow or growth
        self._in_a_row = 0  # skipped without one that was taken

    def judge(self, finite: bool, share: float) -> bool:
        """Whether to take a step whose backward pass had this share of overflows; adjusts the scale for the next."""
        rule = self.rule
        overflows = not finite or (rule.changes and share > rule.tolerance)
        take = finite if rule.kind == "adaptive" else not overflows
        if overflows:
            self._clean = 0
            if rule.changes:
                self.scale = max(SMALLEST, self.scale * rule.backoff)
        else:
            self._clean += 1
            if rule.changes and self._clean >= rule.interval:
                self.scale, self._clean = min(LARGEST, self.scale * rule.growth), 0
        self.taken += take
        self.skipped += not take
        self._in_a_row = 0 if take else self._in_a_row + 1
        if self._in_a_row >= PATIENCE and (not rule.changes or self.scale < 1):
            if not rule.changes:
                raise Diverged(f"The gradients of the last {PATIENCE} steps are not finite")
            raise Diverged(
                f"The loss scale has fallen to {self.scale:.1g} and the last {PATIENCE} steps overflowed all the same"
            )
        return take

    def state(self) -> list[float]:
        """All that decides its future."""
        return [self.scale, self.taken, self.skipped, self._clean, self._in_a_row]

    def load_state(self, state: Sequence[float]) -> None:
        """Continue from what `state` returned."""
        self.scale, *counts = state
        self.taken, self.skipped, self._clean, self._in_a_row = map(int, counts)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def shortest(number: float) -> str:
    """The shortest decimal text of exactly this number."""
    return text if float(text := f"{number:g}") == number else repr(number).removesuffix(".0")
