"""The casts of a scheme at work: how an emulation reads operands, and the rounding of everything else.

Weights are rounded when they are first read after a change, and that result serves all products until the next change.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from shoal.numerics.emulation.contraction import Read, Reader, times_power
from shoal.numerics.emulation.coverage import Counts
from shoal.numerics.emulation.reading import WEIGHTS, Straight
from shoal.numerics.formats.types import BlockFormat, FloatFormat, Scalar
from shoal.numerics.mac.matmul import MacStats
from shoal.numerics.rounding.blocks import shared_exponents
from shoal.numerics.rounding.plan import FLOAT32
from shoal.numerics.rounding.quantize import quantize
from shoal.numerics.schemes.cast import Cast
from shoal.numerics.schemes.events import count_events
from shoal.numerics.schemes.matrices import multiply_blocks, scaled
from shoal.numerics.schemes.scheme import Scheme, holds
from shoal.numerics.schemes.squeeze import squeeze

Multiply = Callable[[Tensor, Tensor], Tensor]
FRESH, STALE, KNOWN = "rounded.", "stale.", "known."
"""Names of rounded weights in a saved state."""


class SchemeCasts:
    """Rounds tensors by role, counts what happens to them, and remembers rounded weights."""

    def __init__(self, scheme: Scheme, counts: Counts, seed: int, count: bool = True) -> None:
        self.scheme, self.counts, self.seed, self.count = scheme, counts, seed, count
        self._parameters: dict[str, weakref.ref[Tensor]] = {}
        self._names: dict[int, str] = {}  # by the address of a parameter's memory
        self._rounded: dict[str, tuple[int, Read]] = {}  # by name: the version that was rounded, and the result

    # ---- weights ---------------------------------------------------------------------------------------------------

    def know(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """The model's parameters by name."""
        self._parameters |= {name: weakref.ref(parameter) for name, parameter in parameters}
        self.find()

    def find(self) -> None:
        """Look up where the parameters are: they may have been moved."""
        alive = {name: own for name, reference in self._parameters.items() if (own := reference()) is not None}
        self._names = {own.untyped_storage().data_ptr(): name for name, own in alive.items()}

    def is_weight(self, x: Tensor) -> bool:
        """Whether this is one of the parameters, or a view of one."""
        return x.untyped_storage().data_ptr() in self._names

    def layer(self, x: Tensor) -> str:
        """The parameter's name, without `.weight`; empty for other tensors."""
        return self._names.get(x.untyped_storage().data_ptr(), "").removesuffix(".weight")

    def forget_weights(self) -> None:
        """The weights have changed: round them again when they are next read. Hysteresis remembers the last result."""
        self._rounded = {name: (-1, read) for name, (_, read) in self._rounded.items()}

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """What is rounded in here is forgotten afterwards; the weights are then as before."""
        kept = self._rounded
        versions = {name: own._version for name in kept if (own := self._parameters[name]()) is not None}
        self._rounded = dict(kept)
        try:
            yield
        finally:
            self._rounded = {
                name: (own._version if version == versions.get(name) else -1, read)
                for name, (version, read) in kept.items()
                if (own := self._parameters[name]()) is not None
            }

    def _read_weight(self, cast: Cast, layer: str, x: Tensor) -> Read:
        """The rounded weight; of a view, the same view of it."""
        name = self._names.get(x.untyped_storage().data_ptr())
        own = None if name is None else self._parameters[name]()
        if name is None or own is None or torch.empty_like(own, device="meta").stride() != own.stride():
            return self._read(WEIGHTS, cast, layer, x)  # its memory has gaps
        version, kept = self._rounded.get(name, (-1, None))
        if kept is None or version != own._version:
            before = times_power(kept.values, kept.exponent) if kept is not None else None
            read = self._read(WEIGHTS, cast, layer, own.detach(), before if cast.rounding == "hysteresis" else None)
            kept = _laid_out(read, own)
            self._rounded[name] = own._version, kept
        if x.shape == own.shape and x.stride() == own.stride():
            return kept
        offset = x.storage_offset() - own.storage_offset()
        return Read(kept.values.as_strided(x.shape, x.stride(), offset), kept.exponent)

    # ---- what an emulation asks ------------------------------------------------------------------------------------

    def reader(self, kind: str, layer: str) -> Reader | None:
        """How operands of this kind are read; blocks of matrices are left to `product`."""
        cast: Cast | None = getattr(self.scheme, kind)
        if cast is None:
            return None
        if cast.shares == "blocks":
            return Read
        if kind == WEIGHTS:
            return lambda x: self._read_weight(cast, layer, x)
        return lambda x: self._read(kind, cast, layer, x)

    def holds(self, kind: str, operand: Scalar) -> bool:
        """Whether a unit's operand format has all values of the role's cast."""
        cast: Cast | None = getattr(self.scheme, kind)
        return cast is not None and not cast.squeeze and holds(operand, cast.element) and _as_special(operand, cast)

    def in_blocks(self, kinds: tuple[str, str]) -> bool:
        """Whether an operand of these kinds has blocks."""
        return any(self._blocks(kind) is not None for kind in kinds)

    def product(self, kinds: tuple[str, str], layer: str, a: Tensor, b: Tensor, through: Multiply) -> Tensor:
        """`through(a, b)`; if an operand has blocks, as products of blocks."""
        first, second = (self._blocks(kind) for kind in kinds)
        if first is None and second is None:
            return through(a, b)
        of_a, of_b = (
            None if cast is None else self._matrix_rounder(kind, cast, layer)
            for kind, cast in zip(kinds, (first, second), strict=True)
        )
        runs = [cast.run for cast in (first, second) if cast is not None and cast.run is not None]
        return multiply_blocks(a, b, of_a, of_b, through, min(runs, default=None))

    def before(self, name: str, x: Tensor) -> Tensor:
        """The input of a normalisation, rounded; gradients pass unchanged."""
        return self._straight("normalisation", name, x)

    @property
    def rounds_activations(self) -> bool:
        """Whether the scheme rounds outputs of activation functions."""
        return self.scheme.activations is not None

    def after(self, name: str, x: Tensor) -> Tensor:
        """The output of an activation function, rounded; gradients pass unchanged."""
        return self._straight("activations", name, x)

    def _straight(self, role: str, layer: str, x: Tensor) -> Tensor:
        cast: Cast | None = getattr(self.scheme, role)
        if cast is None or x.dtype != torch.float32:
            return x
        return Straight.apply(x, lambda numbers: self.round(role, cast, layer, numbers))

    def _blocks(self, kind: str) -> Cast | None:
        cast: Cast | None = getattr(self.scheme, kind)
        return cast if cast is not None and cast.shares == "blocks" else None

    # ---- rounding --------------------------------------------------------------------------------------------------

    def round(self, role: str, cast: Cast, layer: str, x: Tensor) -> Tensor:
        """x rounded, events counted. Blocks, unless the whole tensor, are those of a matrix: first axis × the rest."""
        if cast.shares != "blocks":
            read = self._read(role, cast, layer, x)
            return times_power(read.values, read.exponent)
        matrix = x.reshape(len(x), -1) if x.dim() > 1 else x.reshape(1, -1)
        values, exponents = self._matrix_rounder(role, cast, layer)(matrix)
        return scaled(values, exponents).reshape(x.shape)

    def _read(self, role: str, cast: Cast, layer: str, x: Tensor, previous: Tensor | None = None) -> Read:
        """A tensor as values of the cast's element format times a power of two."""
        x = x.detach()
        if cast.squeeze:
            return Read(squeeze(x, lambda y: self._quantized(cast, y), cast.element, self._counter(role, cast, layer)))
        rounded = self._quantized(cast, x, previous)
        exponent = 0
        if cast.shares == "tensor" and x.numel():
            assert isinstance(cast.format, BlockFormat)
            exponent = _shared_exponent(x, cast.format)
        self._count(role, layer, x, rounded, cast.element.max * 2.0**exponent, cast.element.min * 2.0**exponent)
        return Read(times_power(rounded, -exponent), exponent)

    def _matrix_rounder(self, role: str, cast: Cast, layer: str) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Rounds a matrix (…, R, C) in blocks: returns element values, and the exponent of each."""

        def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
            assert isinstance(cast.format, BlockFormat)
            exponents = shared_exponents(x, cast.format, FLOAT32)
            values = scaled(self._quantized(cast, x), -exponents)
            self._count(role, layer, scaled(x, -exponents), values, cast.element.max, cast.element.min)
            return values, exponents

        return rounded

    def _quantized(self, cast: Cast, x: Tensor, previous: Tensor | None = None) -> Tensor:
        chance = cast.rounding == "stochastic"
        return quantize(
            x, cast.format, cast.rounding, cast.overflow, nan=cast.nan, seed=self.seed if chance else None,
            call=self.counts.next_call() if chance else 0, random_bits=cast.random_bits, variant=cast.variant,
            previous=previous, start=cast.start,
        )  # fmt: skip

    def _counter(self, role: str, cast: Cast, layer: str) -> Callable[[Tensor, Tensor], None]:
        return lambda x, rounded: self._count(role, layer, x, rounded, cast.element.max, cast.element.min)

    def _count(self, role: str, layer: str, x: Tensor, rounded: Tensor, highest: float, lowest: float) -> None:
        if self.count:
            saturated, overflowed, underflowed = count_events(x, rounded, highest, lowest)
            self.counts.add_rounding(layer, role, MacStats(x.numel(), saturated, overflowed, underflowed))

    # ---- state -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Rounded weights, where they cannot be computed again: random bits are gone, and hysteresis remembers them.

        Those of weights that have changed since are marked as stale; of others, it is enough that they are known.
        """
        cast, state = self.scheme.weights, {}
        for name, (version, read) in self._rounded.items():
            own = self._parameters[name]()
            fresh = own is not None and own._version == version
            if cast is not None and cast.rounding in ("stochastic", "hysteresis"):
                state[f"{FRESH if fresh else STALE}{name}"] = times_power(read.values, read.exponent)
            elif fresh:
                state[f"{KNOWN}{name}"] = torch.tensor(True)
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self._rounded = {}
        cast = self.scheme.weights
        for key, full in state.items():
            prefix = next((prefix for prefix in (FRESH, STALE, KNOWN) if key.startswith(prefix)), "")
            own = (
                self._parameters[name]() if prefix and (name := key.removeprefix(prefix)) in self._parameters else None
            )
            if own is None or cast is None:
                continue
            if prefix == KNOWN:
                counts, self.count = self.count, False
                read = self._read(WEIGHTS, cast, "", own)
                self.count = counts
            else:
                exponent = _shared_exponent(own.detach(), cast.format) if isinstance(cast.format, BlockFormat) else 0
                read = Read(times_power(full.clone(), -exponent), exponent)
            self._rounded[name] = -1 if prefix == STALE else own._version, _laid_out(read, own)


def _shared_exponent(x: Tensor, format: BlockFormat) -> int:
    """The shared exponent of a whole tensor."""
    return int(shared_exponents(x.abs().amax().reshape(1) if x.isfinite().all() else x, format, FLOAT32).reshape(-1)[0])


def _laid_out(read: Read, own: Tensor) -> Read:
    """The same in the order of the weight's memory, so that views of it can be taken alike."""
    if read.values.stride() == own.stride():
        return read
    return read._replace(values=torch.empty_like(own, requires_grad=False).copy_(read.values))


def _as_special(operand: Scalar, cast: Cast) -> bool:
    """Whether the operand format has infinities and NaN if the cast's has them."""
    own, other = (
        (isinstance(f, FloatFormat) and f.infinities, isinstance(f, FloatFormat) and f.nans)
        for f in (cast.element, operand)
    )
    return own[0] <= other[0] and own[1] <= other[1]
