"""The casts of a scheme at work: how an emulation reads operands, and the rounding of everything else.

Weights are rounded when they are first read after a change, and that result serves all products until the next change.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from shoal.compiled import njit
from shoal.numerics.emulation.contraction import Read, Reader, Straight, times_power
from shoal.numerics.emulation.coverage import Counts
from shoal.numerics.emulation.roles import WEIGHTS
from shoal.numerics.formats.types import BlockFormat, FloatFormat, Scalar
from shoal.numerics.mac.matmul import MacStats
from shoal.numerics.rounding.blocks import scale_by_powers, shared_exponents
from shoal.numerics.rounding.plan import FLOAT32
from shoal.numerics.rounding.quantize import quantize
from shoal.numerics.schemes.cast import Cast
from shoal.numerics.schemes.scheme import CASTS, Scheme, holds
from shoal.system.threads import share_out

Multiply = Callable[[Tensor, Tensor], Tensor]
Rounder = Callable[[Tensor], tuple[Tensor, Tensor]]  # a matrix (…, R, K) as element values and the exponent of each
FRESH, STALE, KNOWN = "rounded.", "stale.", "known."  # names of rounded weights in a saved state
NORMAL = 126  # powers of two up to this exponent, and down to its negative, are normal float32 numbers
ALONE = 2**16  # up to this many numbers one thread is faster than two


class SchemeCasts:
    """Rounds tensors by role, counts what happens to them, and remembers rounded weights."""

    def __init__(self, scheme: Scheme, counts: Counts, seed: int, count: bool = True) -> None:
        self.scheme, self.counts, self.seed, self.count = scheme, counts, seed, count
        self._casts: dict[str, Cast] = {role: cast for role in CASTS if (cast := getattr(scheme, role)) is not None}
        self._parameters = weakref.WeakValueDictionary[str, Tensor]()
        self._names: dict[int, str] = {}  # by the address of a parameter's memory
        self._rounded: dict[str, tuple[int, Read]] = {}  # by name: the version that was rounded, and the result

    # ---- weights ---------------------------------------------------------------------------------------------------

    def know(self, parameters: Mapping[str, Tensor]) -> None:
        """The model's parameters by name."""
        self._parameters.update(parameters)
        self.find()

    def find(self) -> None:
        """Look up where the parameters are: they may have been moved."""
        self._names = {weight.untyped_storage().data_ptr(): name for name, weight in self._parameters.items()}

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
        versions = {name: weight._version for name, weight in self._parameters.items()}
        self._rounded = dict(kept)
        try:
            yield
        finally:
            self._rounded = {
                name: (weight._version if version == versions.get(name) else -1, read)
                for name, (version, read) in kept.items()
                if (weight := self._parameters.get(name)) is not None
            }

    def _read_weight(self, layer: str, x: Tensor) -> Read:
        """The rounded weight; of a view, the same view of it."""
        name = self._names.get(x.untyped_storage().data_ptr())
        weight = None if name is None else self._parameters.get(name)
        if name is None or weight is None or torch.empty_like(weight, device="meta").stride() != weight.stride():
            return self._read(WEIGHTS, layer, x)  # its memory has gaps
        version, kept = self._rounded.get(name, (-1, None))
        if kept is None or version != weight._version:
            hysteresis = self._casts[WEIGHTS].rounding == "hysteresis"
            previous = times_power(*kept) if kept is not None and hysteresis else None
            kept = _laid_out(self._read(WEIGHTS, layer, weight.detach(), previous), weight)
            self._rounded[name] = weight._version, kept
        if x.shape == weight.shape and x.stride() == weight.stride():
            return kept
        offset = x.storage_offset() - weight.storage_offset()
        return Read(kept.values.as_strided(x.shape, x.stride(), offset), kept.exponent)

    # ---- what an emulation asks ------------------------------------------------------------------------------------

    def reader(self, kind: str, layer: str) -> Reader | None:
        """How operands of this kind are read; blocks of matrices are left to `product`."""
        if kind not in self._casts:
            return None
        if self.in_blocks([kind]):
            return Read
        return partial(self._read_weight, layer) if kind == WEIGHTS else partial(self._read, kind, layer)

    def holds(self, kind: str, operand: Scalar) -> bool:
        """Whether a unit's operand format has all values of the role's cast, its infinities and NaN included."""
        cast = self._casts.get(kind)
        if cast is None or cast.squeeze or not holds(operand, cast.element):
            return False
        if not isinstance(cast.element, FloatFormat):
            return True
        infinities, nans = (operand.infinities, operand.nans) if isinstance(operand, FloatFormat) else (False, False)
        return cast.element.infinities <= infinities and cast.element.nans <= nans

    def in_blocks(self, kinds: Iterable[str]) -> bool:
        """Whether an operand of these kinds has blocks."""
        return any(self._casts[kind].shares == "blocks" for kind in kinds if kind in self._casts)

    def product(self, kinds: tuple[str, str], layer: str, a: Tensor, b: Tensor, through: Multiply) -> Tensor:
        """a times b as products of blocks, each `through` the unit."""
        of_a, of_b = (partial(self._round_matrix, kind, layer) if self.in_blocks([kind]) else None for kind in kinds)
        runs = [run for kind in kinds if self.in_blocks([kind]) and (run := self._casts[kind].run) is not None]
        return multiply_blocks(a, b, of_a, of_b, through, min(runs, default=None))

    def straight(self, role: str, name: str, x: Tensor) -> Tensor:
        """The input of a normalisation or the output of an activation function, rounded; gradients pass unchanged."""
        if role not in self._casts or x.dtype != torch.float32:
            return x
        return Straight.apply(x, partial(self.round, role, name))

    # ---- rounding --------------------------------------------------------------------------------------------------

    def round(self, role: str, layer: str, x: Tensor) -> Tensor:
        """x rounded, events counted. Blocks, unless the whole tensor, are those of a matrix: first axis × the rest."""
        if not self.in_blocks([role]):
            return times_power(*self._read(role, layer, x))
        matrix = x.reshape(len(x), -1) if x.dim() > 1 else x.reshape(1, -1)
        values, exponents = self._round_matrix(role, layer, matrix)
        return scaled(values, exponents).reshape(x.shape)

    def _read(self, role: str, layer: str, x: Tensor, previous: Tensor | None = None) -> Read:
        """A tensor as values of the cast's element format times a power of two."""
        cast, x = self._casts[role], x.detach()
        if cast.squeeze:
            squeezed, expand = squeeze(x, cast.element)
            rounded = self._quantized(cast, squeezed)
            self._count(role, layer, squeezed, rounded, cast.element.max, cast.element.min)
            return Read(expand(rounded))
        rounded = self._quantized(cast, x, previous)
        exponent = 0
        if cast.shares == "tensor" and x.numel():
            assert isinstance(cast.format, BlockFormat)
            exponent = _shared_exponent(x, cast.format)
        self._count(role, layer, x, rounded, cast.element.max * 2.0**exponent, cast.element.min * 2.0**exponent)
        return Read(times_power(rounded, -exponent), exponent)

    def _round_matrix(self, role: str, layer: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """A matrix (…, R, C) rounded in blocks: element values, and the exponent of each."""
        cast = self._casts[role]
        assert isinstance(cast.format, BlockFormat)
        exponents = shared_exponents(x, cast.format, FLOAT32)
        values = scaled(self._quantized(cast, x), -exponents)
        self._count(role, layer, scaled(x, -exponents), values, cast.element.max, cast.element.min)
        return values, exponents

    def _quantized(self, cast: Cast, x: Tensor, previous: Tensor | None = None) -> Tensor:
        chance = cast.rounding == "stochastic"
        return quantize(
            x, cast.format, cast.rounding, cast.overflow, nan=cast.nan, seed=self.seed if chance else None,
            call=self.counts.next_call() if chance else 0, random_bits=cast.random_bits, variant=cast.variant,
            previous=previous, start=cast.start,
        )  # fmt: skip

    def _count(self, role: str, layer: str, x: Tensor, rounded: Tensor, highest: float, lowest: float) -> None:
        if self.count:
            saturated, overflowed, underflowed = count_events(x, rounded, highest, lowest)
            self.counts.add_to_layer(layer, role, MacStats(x.numel(), saturated, overflowed, underflowed))

    # ---- state -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Rounded weights, where they cannot be computed again: random bits are gone, and hysteresis remembers them.

        Those of weights that have changed since are marked as stale; of others, it is enough that they are known.
        """
        cast, state = self.scheme.weights, {}
        for name, (version, read) in self._rounded.items():
            weight = self._parameters.get(name)
            fresh = weight is not None and weight._version == version
            if cast is not None and cast.rounding in ("stochastic", "hysteresis"):
                state[f"{FRESH if fresh else STALE}{name}"] = times_power(*read)
            elif fresh:
                state[f"{KNOWN}{name}"] = torch.tensor(True)
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self._rounded = {}
        cast = self.scheme.weights
        for key, full in state.items():
            prefix = next((prefix for prefix in (FRESH, STALE, KNOWN) if key.startswith(prefix)), "")
            name = key.removeprefix(prefix)
            weight = self._parameters.get(name)
            if weight is None or cast is None or not prefix:
                continue
            if prefix == KNOWN:
                counts, self.count = self.count, False
                read = self._read(WEIGHTS, "", weight)
                self.count = counts
            else:
                format = cast.format
                exponent = _shared_exponent(weight.detach(), format) if isinstance(format, BlockFormat) else 0
                read = Read(times_power(full.clone(), -exponent), exponent)
            self._rounded[name] = -1 if prefix == STALE else weight._version, _laid_out(read, weight)


def _shared_exponent(x: Tensor, format: BlockFormat) -> int:
    """The shared exponent of a whole tensor."""
    return int(shared_exponents(x.abs().amax().reshape(1) if x.isfinite().all() else x, format, FLOAT32).reshape(-1)[0])


def _laid_out(read: Read, weight: Tensor) -> Read:
    """The same in the order of the weight's memory, so that views of it can be taken alike."""
    if read.values.stride() == weight.stride():
        return read
    return read._replace(values=torch.empty_like(weight, requires_grad=False).copy_(read.values))


# ---- products of blocks ----------------------------------------------------------------------------------------------
# Blocks of matrices have powers of two of their own (block floating point, block minifloats).
# Blocks of the first operand run along its rows, which is along the sum; those of the second along its columns. Where
# blocks are whole rows, their powers of two come out of the sum. Otherwise the sum is cut into runs of the blocks'
# width: each run goes through the unit by itself, and the runs' sums are added up in float32.


def multiply_blocks(
    a: Tensor, b: Tensor, round_a: Rounder | None, round_b: Rounder | None, through: Multiply, run: int | None = None
) -> Tensor:
    """(…, M, K) × (…, K, N); an operand without a rounder has no powers of two. `run`: width of a block, None: all."""
    if not (a.numel() and b.numel()):
        return through(a, b)  # zeros, or nothing
    (first, powers_a), (second, powers_b) = (
        (x, torch.zeros_like(x, dtype=torch.int64)) if rounder is None else rounder(x.contiguous())
        for x, rounder in ((a, round_a), (b.mT, round_b))  # (…, M, K) and (…, N, K)
    )
    depth = a.shape[-1]
    if run is None or run >= depth:
        return scaled(through(first, second.mT), powers_a[..., :1] + powers_b[..., :1].mT)
    cut = [_runs(t, run) for t in (first, second)]  # (runs, …, M, run) and (runs, …, N, run)
    power_a, power_b = (_runs(t, run)[..., :1] for t in (powers_a, powers_b))
    sums = through(cut[0], cut[1].mT)  # (runs, …, M, N)
    return scaled(sums, power_a + power_b.mT).sum(0)


def scaled(x: Tensor, exponents: Tensor) -> Tensor:
    """x·2^exponents, rounded once to float32."""
    if exponents.dim() and exponents.stride(-1) == 0:
        exponents = exponents[..., :1]  # the same for a whole row
    if exponents.numel() and int(exponents.abs().max()) <= NORMAL:
        return x * ((exponents.to(torch.int32) + 127) << 23).view(torch.float32)
    return scale_by_powers(x.double(), exponents.to(torch.int64)).float()


def _runs(x: Tensor, run: int) -> Tensor:
    """(runs, …, R, run) of (…, R, K), the last run filled up with zeros."""
    whole = pad(x, (0, -x.shape[-1] % run))
    return whole.unflatten(-1, (-1, run)).movedim(-2, 0)


# ---- single tensors --------------------------------------------------------------------------------------------------


def squeeze(x: Tensor, format: Scalar) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """S2FP8's shift and squeeze: x squeezed, and what expands it again after it was rounded.

    A tensor's magnitudes are moved and compressed, on a logarithmic scale, into a format's range:
    Y = sign(X)·2^β·|X|^α with μ and M the mean and the largest of log2|X| over the nonzero numbers, α = t/(M - μ) and
    β = -α·μ, where 2^t is the top binade of the format (t = 15 for E5M2): the mean goes to 1, the largest to 2^t. If
    all magnitudes are the same, α is 1. All of it is float32 arithmetic of torch. Numbers that are not finite stay as
    they are.
    """
    x = x.contiguous()  # the last bits of torch's logarithms depend on the place in memory
    usable = x.isfinite() & (x != 0)
    logarithm = torch.log2(x.abs())
    chosen = logarithm[usable] if bool(usable.any()) else torch.zeros(1)
    mean, largest = chosen.mean(), chosen.max()
    alpha = format.highest_exponent / (largest - mean) if bool(largest > mean) else torch.ones(())
    beta = -alpha * mean

    def expand(rounded: Tensor) -> Tensor:
        expanded = torch.sign(rounded) * torch.exp2((torch.log2(rounded.abs()) - beta) / alpha)
        return torch.where(usable & (rounded != 0), expanded, torch.where(usable, rounded, x))

    return torch.where(usable, torch.sign(x) * torch.exp2(alpha * logarithm + beta), x), expand


def count_events(x: Tensor, rounded: Tensor, highest: float, lowest: float) -> tuple[int, int, int]:
    """(saturated, overflowed, underflowed): finite numbers limited to the format's ends, finite numbers that became
    infinite or NaN, and nonzero numbers that became zero.
    """
    before, after = (t.contiguous().reshape(-1).numpy() for t in (x.float(), rounded.float()))
    threads = torch.get_num_threads() if before.size > ALONE else 1
    counted = share_out(_count, before.size, threads, before, after, np.float32(highest), np.float32(lowest))
    saturated, overflowed, underflowed = map(sum, zip(*counted, strict=True))
    return saturated, overflowed, underflowed


@njit(cache=True, nogil=True, error_model="numpy")
def _count(
    first: int, last: int, before: NDArray[np.float32], after: NDArray[np.float32], highest: Any, lowest: Any
) -> tuple[int, int, int]:
    saturated = overflowed = underflowed = np.int32(0)
    infinity = np.float32(np.inf)
    for n in range(first, last):
        x, y = before[n], after[n]
        finite = abs(x) < infinity
        saturated += np.int32(finite & (((x > y) & (y >= highest)) | ((x < y) & (y <= lowest))))
        overflowed += np.int32(finite & (not (abs(y) < infinity)))
        underflowed += np.int32((x != np.float32(0)) & (y == np.float32(0)))
    return int(saturated), int(overflowed), int(underflowed)
