"""`emulate`: training an unmodified PyTorch model with its products through MAC units, forward and backward.

An `Emulation` is a context manager, a decorator, and the counts of what went through it.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from shoal.errors import UserError, whole_number
from shoal.numerics.emulation.contraction import Multiply, Read, Reader, Roles
from shoal.numerics.emulation.coverage import NOTHING, Counts, Coverage
from shoal.numerics.emulation.interception import Functions, Net, in_backward
from shoal.numerics.emulation.roles import GRADIENTS, INPUTS, ROLES, WEIGHTS, here
from shoal.numerics.formats.types import Scalar
from shoal.numerics.mac.matmul import MacStats, cast_operand, multiply
from shoal.numerics.mac.product import Operand, Place, broadcast, placed
from shoal.numerics.mac.unit import MacUnit, parse_mac
from shoal.numerics.rounding.plan import FLOAT32, fits
from shoal.numerics.rounding.randomness import keys

if TYPE_CHECKING:
    from shoal.numerics.schemes.casting import SchemeCasts

Function = TypeVar("Function", bound=Callable[..., Any])
EmulatedUnit = MacUnit | str | None
Taken = tuple[Scalar, str] | None
"""The format in which a product takes an operand, and its rule for NaN; None: as it is."""
FIRST = {"forward": INPUTS, "grad_input": GRADIENTS, "grad_weight": INPUTS}
"""The kind of a unit's first operand, by role, where operands have casts by kind."""


def emulate(
    mac: EmulatedUnit = None,
    *,
    forward: EmulatedUnit = None,
    grad_input: EmulatedUnit = None,
    grad_weight: EmulatedUnit = None,
    strict: bool = True,
    seed: int = 0,
    stats: bool = True,
) -> "Emulation":
    """A context manager or decorator in which the products of any PyTorch model go through MAC units.

    Whatever ran forward in it has emulated gradients, wherever `backward` is called. Contexts nest; the innermost one
    applies. Create one for a whole training run, so that its counts and random bits continue from step to step.

    Args:
        mac: the unit of all products, or its name, such as `E5M2:5+E6M5`.
        forward: instead of `mac`, the unit of forward products; None leaves them in float32.
        grad_input: likewise, of the products that give gradients of inputs.
        grad_weight: likewise, of the products that give gradients of weights.
        strict: refuse operations that multiply and accumulate but cannot be emulated; otherwise they run in float32
            and are listed by `coverage()`.
        seed: random seed of stochastic units; each product since the emulation was created has its own random bits.
        stats: count what saturates, overflows and underflows, which takes some time; MACs are always counted.

    """
    given = {"forward": forward, "grad_input": grad_input, "grad_weight": grad_weight}
    if (mac is None) == all(unit is None for unit in given.values()):
        raise UserError("emulate needs one unit for all products, or units by role (forward, grad_input, grad_weight).")
    units: dict[str, MacUnit | None] = {}
    for role, own in given.items():
        unit = own if mac is None else mac
        if unit is not None and not isinstance(unit, MacUnit | str):
            raise UserError(f"emulate needs MacUnits or their names, not {unit!r}.")
        units[role] = parse_mac(unit) if isinstance(unit, str) else unit
    return Emulation(units, strict, whole_number("seed", seed), stats)


def wrap(module: nn.Module, mac: EmulatedUnit = None, **options: Any) -> "Emulated":
    """A module that runs `module` in its own emulation; further arguments as in `emulate`."""
    if not isinstance(module, nn.Module):
        raise UserError(f"wrap takes a torch.nn.Module, not {type(module).__name__}; emulate(mac) decorates functions.")
    return Emulated(module, emulate(mac, **options))


class Emulation:
    """MAC units by role, and the counts of what went through them."""

    casts: "SchemeCasts | None" = None
    """A scheme's rules for operands, normalisations and activations, in place of the units' own."""
    layer_units: Mapping[tuple[str, str], MacUnit] = {}
    """Units of single layers, by layer and role, in place of the role's; operands have the same formats."""

    def __init__(self, units: dict[str, MacUnit | None], strict: bool, seed: int, stats: bool) -> None:
        self.units, self.strict, self.seed, self.stats = units, strict, seed, stats
        self.counts = Counts()

    @property
    def by_role(self) -> dict[str, MacStats]:
        """Counts of `forward`, `grad_input` and `grad_weight`."""
        return dict(self.counts.by_role)

    @property
    def macs(self) -> int:
        """Emulated multiplications, each with its addition."""
        return sum(counted.macs for counted in self.counts.by_role.values())

    @property
    def saturated(self) -> int:
        """Finite results that were saturated to the largest value."""
        return self._events().saturated

    @property
    def overflowed(self) -> int:
        """Finite results that became infinite or NaN, or wrapped around."""
        return self._events().overflowed

    @property
    def underflowed(self) -> int:
        """Nonzero results that became zero."""
        return self._events().underflowed

    def _events(self) -> MacStats:
        if not self.stats:
            raise UserError("This emulation counts MACs only; emulate(..., stats=True) also counts events.")
        return sum(self.counts.by_role.values(), NOTHING)

    def coverage(self) -> Coverage:
        """Which functions were emulated and which were not, by role; as a string, a table."""
        return self.counts.coverage()

    def state(self) -> dict[str, list[int]]:
        """All counts by name; the number of products so far determines the random bits of the next one."""
        return self.counts.state()

    def load_state(self, state: Mapping[str, Sequence[int]]) -> None:
        """Continue from what `state` returned."""
        self.counts.load_state(state)

    def __enter__(self) -> "Emulation":
        before, stack, functions = (here.emulation, here.mode), ExitStack(), Functions(self)
        stack.enter_context(functions)
        stack.enter_context(Net(functions))
        here.entered.append((stack, before))
        here.emulation, here.mode, here.refusal = self, functions, ""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        stack, before = here.entered.pop()
        here.emulation, here.mode = before
        stack.close()
        if isinstance(error, RuntimeError) and here.refusal and "TorchScript" in str(error):
            raise UserError(here.refusal) from None  # its interpreter replaced our error with its own

    def __call__(self, function: Function) -> Function:
        """The function, run in this emulation."""
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function) or not callable(function):
            raise UserError(f"emulate decorates plain functions, not generators or coroutines: {function!r}.")
        if isinstance(function, nn.Module | type):
            raise UserError("emulate decorates functions; wrap(module, mac) is for modules.")

        @wraps(function)
        def emulated(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return emulated  # type: ignore[return-value]

    def times(self, op: str) -> "Times":
        """The multiplication that functions in `emulation/ops.py` use."""
        return Times(self, op)

    def unit(self, role: str, kinds: tuple[str, str], layer: str) -> MacUnit | None:
        """The layer's unit, or the role's. Operands with casts by kind find their own format: both orders occur."""
        unit = self.layer_units.get((layer, role), self.units[role])
        turned = self.casts is not None and kinds[0] != kinds[1] == FIRST[role]
        return exchanged(unit) if turned and unit is not None else unit

    def multiply(
        self, op: str, role: str, unit: MacUnit | None, layer: str, done: bool, a: Operand, b: Operand,
        place: Place | None = None,
    ) -> Tensor:  # fmt: skip
        """a times b through the role's unit, as float32, in its place; `done`: the operands have been cast."""
        macs = broadcast(a, b) * a.shape[1] * a.shape[2] * b.shape[1]
        if unit is None:
            happened = None if self.casts is None else MacStats(macs, 0, 0, 0)
            self.counts.add(op, role, macs, happened, layer)
            x, y = a.matrices().contiguous(), b.matrices().mT.contiguous()  # in other layouts the last bit may differ
            product = torch.mm(x[0], y[0])[None] if len(x) == len(y) == 1 else torch.matmul(x, y)
            return product.reshape(-1) if place is None else placed(product, place)
        chosen = keys(self.seed, self.counts.next_call(), 0)
        if not done:
            formats: tuple[Scalar, ...] = unit.multiplier.formats
            a, b = (
                operand.change(partial(cast_operand, format=format, nan=unit.nan))
                for operand, format in zip((a, b), formats, strict=True)
            )
        product, happened = multiply(unit, a, b, self.stats, chosen, torch.get_num_threads(), place)
        self.counts.add(op, role, macs, happened, layer)
        return product.float()

    def is_weight(self, x: Tensor) -> bool:
        """Whether an operand is a weight: a leaf that requires a gradient, one that is marked, or a view."""
        own = x if x._base is None else x._base
        if (own.requires_grad and own.is_leaf) or hasattr(own, "computed_weight"):
            return True
        return self.casts is not None and self.casts.is_weight(x)

    def reader(self, kind: str, layer: str, formats: set[Taken]) -> Reader | None:
        """How an operand is read that products take in these formats; None: as it is, and cast by each of them."""
        if self.casts is not None and (reader := self.casts.reader(kind, layer)) is not None:
            return reader
        common = formats.pop() if len(formats) == 1 else None
        if common is None or not fits(common[0], FLOAT32):
            return None
        return lambda x: Read(cast_operand(x, *common))

    def is_done(self, kind: str, reader: Reader | None, format: Taken) -> bool:
        """Whether what has been read needs no cast by a product that takes it in this format."""
        if reader is None or format is None:
            return False
        return self.casts is None or self.casts.reader(kind, "") is None or self.casts.holds(kind, format[0])

    def check(self, op: str, why: str) -> None:
        """Refuse what cannot be emulated, if strict."""
        if self.strict:
            here.refusal = f"{op} cannot be emulated: it {why}; strict=False runs it in plain float32."
            raise UserError(here.refusal)

    def escaped(self, op: str, macs: int | None, why: str = "has no emulation") -> None:
        """Count what runs in float32, or refuse it if strict."""
        self.check(op, why)
        self.counts.add(op, "backward" if in_backward() else "forward", macs, None)


class Times(NamedTuple):
    """The multiplication that a function in `emulation/ops.py` uses."""

    emulation: Emulation
    op: str

    def roles(self, x: Tensor, y: Tensor, y_is_weight: bool = False) -> Roles:
        """Readers of X and Y, and units for X·Y and its gradients."""
        own = self.emulation
        role = here.role or ("grad_input" if in_backward() else "forward")
        if not here.role and role != "forward" and own.strict and own.units["grad_input"] != own.units["grad_weight"]:
            raise UserError(
                f"{self.op} cannot be emulated in a custom backward: it may be grad_input or grad_weight, which have "
                'different units; specify it with shoal.numerics.role("grad_weight").'
            )
        y_is_weight = y_is_weight or own.is_weight(y)
        x_is_weight = not y_is_weight and own.is_weight(x)
        layer = own.casts.layer(y if y_is_weight else x) or self.op if own.casts is not None else ""
        of_x, of_y = (ROLES[1 + weight] for weight in (x_is_weight, y_is_weight))
        kind_x, kind_y = (WEIGHTS if weight else INPUTS for weight in (x_is_weight, y_is_weight))
        if role == "grad_weight":
            kind_y = GRADIENTS
        elif role == "grad_input":
            kind_x, kind_y = (kind_x, GRADIENTS) if x_is_weight else (GRADIENTS, kind_y)
        of_z, of_x_bar, of_y_bar = (role, (kind_x, kind_y)), (of_x, (GRADIENTS, kind_y)), (of_y, (kind_x, GRADIENTS))
        unit, unit_x, unit_y = (own.unit(*product, layer) for product in (of_z, of_x_bar, of_y_bar))
        again = torch.is_grad_enabled()  # whether the gradients' products take the operands, too
        read_x = own.reader(kind_x, layer, {taken(unit, 0), taken(unit_y if again else unit, 0)})
        read_y = own.reader(kind_y, layer, {taken(unit, 1), taken(unit_x if again else unit, 1)})
        read_z = own.reader(GRADIENTS, layer, {taken(unit_x, 0), taken(unit_y, 1)})
        return Roles(
            self._in(*of_z, layer, (read_x, read_y)),
            self._in(*of_x_bar, layer, (read_z, read_y)),
            self._in(*of_y_bar, layer, (read_x, read_z)),
            *(reader or Read for reader in (read_x, read_y, read_z)),
        )

    def _in(
        self, role: str, kinds: tuple[str, str], layer: str, readers: tuple[Reader | None, Reader | None]
    ) -> Multiply:
        own, unit = self.emulation, self.emulation.unit(role, kinds, layer)
        done = all(own.is_done(kinds[n], readers[n], taken(unit, n)) for n in (0, 1))
        casts = own.casts

        def through(a: Operand, b: Operand, place: Place | None = None) -> Tensor:
            return own.multiply(self.op, role, unit, layer, done, a, b, place)

        def matrices(a: Tensor, b: Tensor) -> Tensor:
            """(…, M, K) × (…, K, N)."""
            shape = (*a.shape[:-1], b.shape[-1])
            first, second = (t.flatten(0, -3) if t.dim() > 2 else t[None] for t in (a, b.mT))
            return through(Operand.of(first), Operand.of(second)).reshape(shape)

        def in_blocks(a: Operand, b: Operand, place: Place) -> Tensor:
            assert casts is not None
            product = casts.product(kinds, layer, a.matrices(), b.matrices().mT, matrices)
            return placed(product, place)

        return through if casts is None or not casts.in_blocks(kinds) else in_blocks


class Emulated(nn.Module):
    """A module whose forward, and so its backward, runs in an emulation."""

    def __init__(self, module: nn.Module, emulation: Emulation) -> None:
        super().__init__()
        self.module, self.emulation = module, emulation

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output."""
        with self.emulation:
            return self.module(*args, **kwargs)


@lru_cache(maxsize=64)
def exchanged(unit: MacUnit) -> MacUnit:
    """The unit with its operand formats in the other order."""
    a, b = unit.multiplier.formats
    multiplier: Any = unit.multiplier
    return replace(unit, multiplier=replace(multiplier, a=b, b=a))


def taken(unit: MacUnit | None, place: int) -> Taken:
    """How a unit takes its first (0) or second (1) operand."""
    return None if unit is None else (unit.multiplier.formats[place], unit.nan)
