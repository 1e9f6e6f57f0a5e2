"""Training in a scheme one number at a time, as docs/schemes.md defines it: slow, and written from there.

Roundings are `round_exact`, products through units `dot_exact`. Torch computes what is float32 in any case: sums,
logarithms, softmax, normalisation, the optimizer and float32 products. Its autograd calls the gradients of products.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from shoal.numerics import BlockFormat, Cast, FloatFormat, MacUnit, Scheme
from shoal.numerics.mac.exact import dot_exact
from shoal.numerics.rounding.exact import exponent_of, round_exact
from shoal.numerics.rounding.randomness import random_bits
from shoal.numerics.schemes.loss_scale import LossScale
from tests.numerics.macs import draw

UNITS = ("forward", "grad_input", "grad_weight")
Counts = list[int]
"""[numbers, saturated, overflowed, underflowed]."""


class Read(NamedTuple):
    """values·2^exponent."""

    values: Tensor
    exponent: int = 0


class Plain:
    """Parameters by name, their optimizer, and everything that a scheme remembers."""

    def __init__(
        self,
        scheme: Scheme,
        parameters: dict[str, Tensor],
        optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
        rule: LossScale,
        seed: int = 0,
        average_from: int | None = None,
    ) -> None:
        self.scheme, self.seed, self.rule = scheme, seed, rule
        roles = ("weights", "inputs", "normalisation", "activations", "activation_gradients", *UNITS)
        self.untouched = all(getattr(scheme, role) is None for role in roles)  # torch's own forward and backward pass
        self.calls = 0
        self.counts: dict[tuple[str, str], Counts] = {}
        self.own = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}
        self.optimizer = optimizer([*self.own.values()])
        self.now: dict[str, Read] = {}  # rounded weights
        self.last: dict[str, Tensor] = {}  # their rounded values before the last change
        self.lost = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.mean: dict[str, Tensor] = {}
        self.averaged, self.average_from = 0, average_from
        self.scale, self.clean, self.taken, self.skipped = rule.start, 0, 0, 0
        with torch.no_grad():
            for name, value in self.own.items():
                value.copy_(self.kept(name, value))

    # ---- casts -----------------------------------------------------------------------------------------------------

    def next_call(self) -> int:
        self.calls += 1
        return self.calls - 1

    def rounded(self, cast: Cast, x: Tensor, previous: Tensor | None = None) -> Tensor:
        """Every number to the element format, without a power of two."""
        call = self.next_call() if cast.rounding == "stochastic" else 0
        element, overflow = cast.element, cast.overflow
        bits = cast.random_bits or 30
        infinities = isinstance(element, FloatFormat) and element.infinities
        if isinstance(cast.format, BlockFormat) and overflow is None:
            overflow = "saturate"
        before = [None] * x.numel() if previous is None else previous.reshape(-1).tolist()
        made = []
        for index, value in enumerate(x.double().reshape(-1).tolist()):
            if math.isinf(value) and infinities and cast.overflow is None:
                made.append(value)
                continue
            made.append(
                round_exact(
                    value, element, cast.rounding, overflow, nan="infinity" if infinities else "zero",
                    random=random_bits(self.seed, call, index, bits) if cast.rounding == "stochastic" else 0,
                    random_bits=bits, variant=cast.variant, previous=before[index], start=cast.start,
                )
            )  # fmt: skip
        return torch.tensor(made, dtype=torch.float32).reshape(x.shape)

    def count(self, layer: str, role: str, cast: Cast, x: Tensor, y: Tensor) -> None:
        """What rounding to the element format did."""
        counts = self.counts.setdefault((layer, role), [0, 0, 0, 0])
        counts[0] += x.numel()
        for before, after in zip(x.double().reshape(-1).tolist(), y.double().reshape(-1).tolist(), strict=True):
            if math.isfinite(before):
                counts[1] += (before > after >= cast.element.max) or (before < after <= cast.element.min)
                counts[2] += not math.isfinite(after)
            counts[3] += before != 0 and after == 0

    def read(self, layer: str, role: str, cast: Cast | None, x: Tensor, previous: Tensor | None = None) -> Read:
        """A tensor as values and one power of two."""
        if cast is None or cast.shares == "blocks":
            return Read(x)
        if cast.squeeze:
            return Read(self.squeezed(layer, role, cast, x))
        s = shared_exponent(cast.format, x) if isinstance(cast.format, BlockFormat) else 0
        unscaled = x.double() * 2.0**-s
        values = self.rounded(cast, unscaled, None if previous is None else previous.double() * 2.0**-s)
        self.count(layer, role, cast, unscaled, values)
        return Read(values, s)

    def squeezed(self, layer: str, role: str, cast: Cast, x: Tensor) -> Tensor:
        x = x.contiguous()  # torch's logarithms depend on the place in memory
        usable, logarithm = (x != 0) & x.isfinite(), torch.log2(x.abs())
        chosen = logarithm[usable] if usable.any() else torch.zeros(1)
        mu, m = chosen.mean(), chosen.max()
        alpha = exponent_of(Fraction(cast.element.max)) / (m - mu) if m > mu else torch.tensor(1.0)
        beta = -alpha * mu
        y = torch.where(usable, torch.sign(x) * torch.exp2(alpha * logarithm + beta), x)
        rounded = self.rounded(cast, y)
        self.count(layer, role, cast, y, rounded)
        back = torch.sign(rounded) * torch.exp2((torch.log2(rounded.abs()) - beta) / alpha)
        return torch.where(usable, torch.where(rounded == 0, rounded, back), x)

    def in_blocks(self, layer: str, role: str, cast: Cast, x: Tensor) -> tuple[Tensor, Tensor]:
        """Matrices (batch, R, C) as values and the exponent of each."""
        assert isinstance(cast.format, BlockFormat)
        over = cast.format.over
        height, width = over if isinstance(over, tuple) else (1, x.shape[-1] if over == "row" else int(over))
        exponents = torch.zeros(x.shape, dtype=torch.float64)
        for matrix, row, column in cells(x.shape[0], range(0, x.shape[1], height), range(0, x.shape[2], width)):
            block = (matrix, slice(row, row + height), slice(column, column + width))
            exponents[block] = shared_exponent(cast.format, x[block])
        unscaled = x.double() * 2.0**-exponents
        values = self.rounded(cast, unscaled)
        self.count(layer, role, cast, unscaled, values)
        return values, exponents

    def whole(self, layer: str, role: str, cast: Cast | None, x: Tensor) -> Tensor:
        """A tensor rounded; blocks are those of the first axis × all others."""
        if cast is None:
            return x
        if cast.shares == "blocks":
            matrix = x.reshape(1, len(x), -1) if x.dim() > 1 else x.reshape(1, 1, -1)
            values, exponents = self.in_blocks(layer, role, cast, matrix)
            return (values.double() * 2.0**exponents).float().reshape(x.shape)
        values, s = self.read(layer, role, cast, x)
        return (values.double() * 2.0**s).float()

    def weight(self, name: str) -> Read:
        """A weight as operand: rounded once after each change."""
        cast = self.scheme.weights
        if name not in self.now:
            layer = name.removesuffix(".weight")
            self.now[name] = self.read(layer, "weights", cast, self.own[name].detach(), self.last.get(name))
            if cast is not None and cast.rounding == "hysteresis":
                self.last[name] = self.now[name].values * 2.0 ** self.now[name].exponent
        return self.now[name]

    # ---- products --------------------------------------------------------------------------------------------------

    def product(self, role: str, kinds: tuple[str, str], layer: str, a: Read, b: Read) -> Tensor:
        """(B, M, K) × (B, K, N)."""
        casts = [getattr(self.scheme, kind) for kind in kinds]
        if all(cast is None or cast.shares != "blocks" for cast in casts):
            z = self.through(role, kinds, layer, a.values, b.values)
            return (z.double() * 2.0 ** (a.exponent + b.exponent)).float()
        x, y, depth = a.values, b.values.transpose(1, 2), a.values.shape[2]
        powers = [torch.zeros(t.shape, dtype=torch.float64) for t in (x, y)]
        if casts[0] is not None and casts[0].shares == "blocks":
            x, powers[0] = self.in_blocks(layer, kinds[0], casts[0], x)
        if casts[1] is not None and casts[1].shares == "blocks":
            y, powers[1] = self.in_blocks(layer, kinds[1], casts[1], y)
        blocks = [cast.run for cast in casts if cast is not None and cast.shares == "blocks" and cast.run is not None]
        width = min(blocks) if blocks and min(blocks) < depth else depth
        starts = range(0, depth, width)
        cut = [torch.cat([t, t.new_zeros(*t.shape[:2], -depth % width)], 2) for t in (x, y)]
        runs = [[t[:, :, k : k + width] for k in starts] for t in cut]
        sums = self.through(role, kinds, layer, torch.cat(runs[0]), torch.cat(runs[1]).transpose(1, 2))
        by_run = sums.reshape(len(starts), *a.values.shape[:2], b.values.shape[2])
        for n, k in enumerate(starts):
            exponents = powers[0][:, :, k : k + 1] + powers[1][:, :, k : k + 1].transpose(1, 2)
            by_run[n] = (by_run[n].double() * 2.0**exponents).float()
        total = by_run.sum(0) if len(starts) > 1 else by_run[0]
        return (total.double() * 2.0 ** (a.exponent + b.exponent)).float()

    def through(self, role: str, kinds: tuple[str, str], layer: str, a: Tensor, b: Tensor) -> Tensor:
        """(B, M, K) × (B, K, N) through the role's unit, or in float32."""
        unit = unit_of(self.scheme, role, layer)
        counts = self.counts.setdefault((layer, role), [0, 0, 0, 0])
        counts[0] += a.numel() * b.shape[2]
        if unit is None:
            a, b = a.contiguous(), b.contiguous()
            return torch.mm(a[0], b[0])[None] if len(a) == 1 else torch.matmul(a, b)
        call = self.next_call()
        first = {"forward": "inputs", "grad_input": "activation_gradients", "grad_weight": "inputs"}[role]
        turned = kinds[0] != first and kinds[1] == first
        xs, ys = as_operand(a, unit, int(turned)), as_operand(b.transpose(1, 2), unit, 1 - turned)
        made = []
        for output, (n, i, j) in enumerate(cells(a.shape[0], range(a.shape[1]), range(b.shape[2]))):
            random = draw(unit, self.seed, call, output) if unit.rounding == "stochastic" else no_bits
            pair = (ys[n][j], xs[n][i]) if turned else (xs[n][i], ys[n][j])
            value, events = dot_exact(*pair, unit, random)
            made.append(value)
            for place, happened in enumerate((events.saturated, events.overflowed, events.underflowed), 1):
                counts[place] += happened
        return torch.tensor(made, dtype=torch.float64).float().reshape(a.shape[0], a.shape[1], b.shape[2])

    # ---- functions of a network ------------------------------------------------------------------------------------

    def linear(self, x: Tensor, name: str) -> Tensor:
        """x times the transposed weight, plus bias."""
        bias = self.own.get(f"{name}.bias")
        if self.untouched:
            return F.linear(x, self.own[f"{name}.weight"], bias)
        product = self.product_of(x, f"{name}.weight")
        return product if bias is None else product + bias

    def product_of(self, x: Tensor, name: str) -> Tensor:
        """x times a transposed weight."""
        if self.untouched:
            return F.linear(x, self.own[name])
        return _Linear.apply(x, self.own[name], self, name)

    def conv(self, x: Tensor, name: str, stride: int = 1, padding: int = 0) -> Tensor:
        """A convolution with a square stride and padding, plus bias."""
        if self.untouched:
            return F.conv2d(x, self.own[f"{name}.weight"], self.own.get(f"{name}.bias"), stride, padding)
        product = _Conv.apply(x, self.own[f"{name}.weight"], self, f"{name}.weight", stride, padding)
        bias = self.own.get(f"{name}.bias")
        return product if bias is None else product + bias[:, None, None]

    def matmul(self, x: Tensor, y: Tensor, layer: str) -> Tensor:
        """(…, M, K) × (…, K, N) of two operands that are not weights."""
        return _Matmul.apply(x, y, self, layer)

    def normalised(self, x: Tensor, op: str) -> Tensor:
        """The input of a normalisation."""
        return _Straight.apply(x, lambda t: self.whole(op, "normalisation", self.scheme.normalisation, t))

    def activated(self, x: Tensor, op: str) -> Tensor:
        """The output of an activation function."""
        return _Straight.apply(x, lambda t: self.whole(op, "activations", self.scheme.activations, t))

    # ---- a step ----------------------------------------------------------------------------------------------------

    def step(self, loss: Tensor) -> bool:
        """Gradients and update; False if skipped."""
        before = {key: list(counts) for key, counts in self.counts.items()}
        self.optimizer.zero_grad()
        (loss * self.scale).backward()
        gradients = {name: own.grad for name, own in self.own.items() if own.grad is not None}
        finite = all_finite([loss, *gradients.values()])
        for name, gradient in gradients.items():
            layer = name.removesuffix(".weight")
            gradient.copy_(self.whole(layer, "weight_gradients", self.scheme.weight_gradients, gradient))
        finite, scale = finite and all_finite([*gradients.values()]), self.scale
        if not self.judge(finite, self.overflow_share(before)):
            self.skipped += 1
            return False
        self.taken += 1
        for gradient in gradients.values():
            gradient.mul_(1 / scale)
        self.update()
        self.average()
        return True

    def overflow_share(self, before: dict[tuple[str, str], Counts]) -> float:
        """The largest share of the MACs, or of the numbers in casts that do not adjust, of this backward pass."""
        shares = [0.0]
        for chosen in ("grad_input", "grad_weight", "activation_gradients", "weight_gradients"):
            cast = getattr(self.scheme, chosen)
            if isinstance(cast, Cast) and (cast.shares or cast.squeeze):
                continue
            numbers = events = 0
            for key, now in self.counts.items():
                if key[1] == chosen:
                    then = before.get(key, [0, 0, 0, 0])
                    numbers += now[0] - then[0]
                    events += now[1] + now[2] - then[1] - then[2]
            shares.append(events / numbers if numbers else 0.0)
        return max(shares)

    def judge(self, finite: bool, share: float) -> bool:
        """Whether to take the step; the scale of the next one."""
        changes = self.rule.kind in ("dynamic", "adaptive")
        if not changes:
            return finite
        if not finite or share > self.rule.tolerance:
            self.scale, self.clean = self.scale * self.rule.backoff, 0
            return finite and self.rule.kind == "adaptive"
        self.clean += 1
        if self.clean == self.rule.interval:
            self.scale, self.clean = self.scale * self.rule.growth, 0
        return True

    @torch.no_grad()
    def update(self) -> None:
        old = {name: own.detach().clone() for name, own in self.own.items()}
        self.optimizer.step()
        for name, own in self.own.items():
            if self.scheme.update == "compensated":
                u, c, w = own - old[name], self.lost[name], old[name]
                y = self.kept(name, u - c)
                t = self.kept(name, w + y)
                self.lost[name] = self.kept(name, self.kept(name, t - w) - y)
                own.copy_(t)
            else:
                own.copy_(self.kept(name, own))
        for moment in self.moments().values():
            moment.copy_(self.whole("optimizer", "state", self.scheme.state, moment))
        self.now = {}

    def kept(self, name: str, x: Tensor) -> Tensor:
        """Rounded to the master's format."""
        return self.whole(name.removesuffix(".weight"), "master", self.scheme.master, x.detach())

    def moments(self) -> dict[str, Tensor]:
        """Momentum or moments by parameter and name."""
        names = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
        state = self.optimizer.state
        return {
            f"{parameter}.{name}": state[own][name]
            for parameter, own in self.own.items()
            for name in names
            if state.get(own, {}).get(name) is not None
        }

    def average(self) -> None:
        first = self.average_from
        if first is not None and self.taken >= first and (self.taken - first) % self.scheme.average_every == 0:
            n = self.averaged
            for name, own in self.own.items():
                mean = self.mean.get(name, torch.zeros(()))
                self.mean[name] = (n * mean + own.detach()) / (n + 1)
            self.averaged += 1


class _Straight(Function):
    """A change of numbers; gradients pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        return change(x).clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, None


class _Linear(Function):
    """Z = X·Wᵀ, X̄ = Z̄·W, W̄ = (Xᵀ·Z̄)ᵀ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, plain: Plain, name: str) -> Tensor:
        ctx.plain, ctx.name, ctx.shape, layer = plain, name, x.shape, name.removesuffix(".weight")
        ctx.x = plain.read(layer, "inputs", plain.scheme.inputs, x.reshape(-1, x.shape[-1]))
        ctx.w = plain.weight(name)
        z = plain.product("forward", ("inputs", "weights"), layer, one(ctx.x), one(ctx.w, turned=True))
        return z[0].reshape(*x.shape[:-1], len(w))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        plain, layer = ctx.plain, ctx.name.removesuffix(".weight")
        cast = plain.scheme.activation_gradients
        z = plain.read(layer, "activation_gradients", cast, g.reshape(-1, g.shape[-1]))
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = plain.product("grad_input", ("activation_gradients", "weights"), layer, one(z), one(ctx.w))
            of_x = of_x[0].reshape(ctx.shape)
        turned = one(ctx.x, turned=True)
        of_w = plain.product("grad_weight", ("inputs", "activation_gradients"), layer, turned, one(z))[0].T
        return of_x, of_w, None, None


class _Matmul(Function):
    """Z = X·Y, X̄ = Z̄·Yᵀ, Ȳ = Xᵀ·Z̄, for a batch of matrices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, plain: Plain, layer: str) -> Tensor:
        ctx.plain, ctx.layer, ctx.shapes = plain, layer, (x.shape, y.shape)
        ctx.x, ctx.y = (plain.read(layer, "inputs", plain.scheme.inputs, t.contiguous()) for t in (x, y))
        z = plain.product("forward", ("inputs", "inputs"), layer, batch(ctx.x), batch(ctx.y))
        return z.reshape(*x.shape[:-1], y.shape[-1])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        plain, layer = ctx.plain, ctx.layer
        z = plain.read(layer, "activation_gradients", plain.scheme.activation_gradients, g)
        y, x = batch(ctx.y, turned=True), batch(ctx.x, turned=True)
        of_x = plain.product("grad_input", ("activation_gradients", "inputs"), layer, batch(z), y)
        of_y = plain.product("grad_input", ("inputs", "activation_gradients"), layer, x, batch(z))
        return of_x.reshape(ctx.shapes[0]), of_y.reshape(ctx.shapes[1]), None, None


class _Conv(Function):
    """Windows (image, p, q) × (channel, i, j) times the kernel; see docs/numerics.md for the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, plain: Plain, name: str, stride: int, padding: int) -> Tensor:
        ctx.plain, ctx.name, ctx.how, layer = plain, name, (stride, padding), name.removesuffix(".weight")
        ctx.x = plain.read(layer, "inputs", plain.scheme.inputs, x)
        ctx.w = plain.weight(name)
        (n, _, h, width), (o, _, k, l) = x.shape, w.shape
        ctx.made = (n, o, (h + 2 * padding - k) // stride + 1, (width + 2 * padding - l) // stride + 1)
        seen, kernel = _Conv.windows(ctx), ctx.w._replace(values=ctx.w.values.reshape(o, -1))
        z = plain.product("forward", ("inputs", "weights"), layer, one(seen), one(kernel, turned=True))
        return z.reshape(n, *ctx.made[2:], o).permute(0, 3, 1, 2).contiguous()

    @staticmethod
    def windows(ctx: Any) -> Read:
        x, (stride, padding), (n, _, rows, columns) = ctx.x.values, ctx.how, ctx.made
        _, c, k, l = ctx.w.values.shape
        table = [
            [
                at(x, image, channel, p * stride + i - padding, q * stride + j - padding)
                for channel in range(c) for i in range(k) for j in range(l)
            ]
            for image in range(n) for p in range(rows) for q in range(columns)
        ]  # fmt: skip
        return Read(torch.tensor(table), ctx.x.exponent)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        plain, layer, (stride, padding) = ctx.plain, ctx.name.removesuffix(".weight"), ctx.how
        z = plain.read(layer, "activation_gradients", plain.scheme.activation_gradients, g.contiguous())
        (n, c, h, width), (o, _, k, l) = ctx.x.values.shape, ctx.w.values.shape
        of_x = None
        if ctx.needs_input_grad[0]:

            def went_to(image: int, row: int, column: int, out: int, i: int, j: int) -> float:
                """The gradient of the output that the kernel's tap (i, j) made of this input."""
                p, q = row + padding - i, column + padding - j
                hit = p % stride == 0 and q % stride == 0
                return at(z.values, image, out, p // stride, q // stride) if hit else 0.0

            table = [
                [
                    went_to(image, row, column, out, i, j)
                    for out in range(o) for i in reversed(range(k)) for j in reversed(range(l))
                ]
                for image in range(n) for row in range(h) for column in range(width)
            ]  # fmt: skip
            flipped = ctx.w.values.flip(2, 3).permute(0, 2, 3, 1).reshape(-1, c)
            behind, kernel = z._replace(values=torch.tensor(table)), ctx.w._replace(values=flipped)
            kinds = ("activation_gradients", "weights")
            of_x = plain.product("grad_input", kinds, layer, one(behind), one(kernel))
            of_x = of_x.reshape(n, h, width, c).permute(0, 3, 1, 2).contiguous()
        turned, flat = one(_Conv.windows(ctx), turned=True), z.values.permute(0, 2, 3, 1).reshape(-1, o)
        kinds = ("inputs", "activation_gradients")
        of_w = plain.product("grad_weight", kinds, layer, turned, one(z._replace(values=flat)))
        return of_x, of_w[0].T.reshape(ctx.w.values.shape), None, None, None, None


# ---- small things ------------------------------------------------------------------------------------------------


def one(read: Read, turned: bool = False) -> Read:
    """A matrix, or its transpose, as a batch of one."""
    return batch(read._replace(values=read.values[None]), turned)


def batch(read: Read, turned: bool = False) -> Read:
    """(B, R, C) of (…, R, C)."""
    values = read.values.reshape(-1, *read.values.shape[-2:])
    return read._replace(values=values.transpose(1, 2) if turned else values)


def cells(count: int, rows: range, columns: range) -> list[tuple[int, int, int]]:
    return [(n, i, j) for n in range(count) for i in rows for j in columns]


def at(x: Tensor, image: int, channel: int, row: int, column: int) -> float:
    """A number of an image; zero outside."""
    inside = 0 <= row < x.shape[2] and 0 <= column < x.shape[3]
    return float(x[image, channel, row, column]) if inside else 0.0


def all_finite(tensors: list[Tensor]) -> bool:
    return all(math.isfinite(value) for tensor in tensors for value in tensor.reshape(-1).tolist())


def no_bits(step: int) -> int:
    return 0


def unit_of(scheme: Scheme, role: str, layer: str) -> MacUnit | None:
    """The role's unit, with the layer's accumulator; NaN that it lacks is infinite or, without infinities, zero."""
    unit: MacUnit | None = getattr(scheme, role)
    own = dict(entry.split("=", 1) for entry in scheme.accumulators.split(", ") if entry)  # of formats without commas
    if unit is not None and f"{layer}.{role}" in own:
        unit = replace(unit, accumulator=own[f"{layer}.{role}"], fused=None)
    if unit is None or unit.nan != "error":
        return unit
    without = [format for format in unit.multiplier.formats if not getattr(format, "nans", False)]
    return replace(unit, nan="infinity" if all(getattr(f, "infinities", False) for f in without) else "zero")


def as_operand(x: Tensor, unit: MacUnit, place: int) -> list[list[list[float]]]:
    """The numbers as the unit reads them, to nearest."""
    format, nan = unit.multiplier.formats[place], unit.nan
    known: dict[float, float] = {}

    def read(value: float) -> float:
        if value not in known or value == 0:
            known[value] = round_exact(value, format, nan=nan)
        return known[value]

    return [[[read(value) for value in row] for row in matrix] for matrix in x.double().tolist()]


def shared_exponent(format: BlockFormat, x: Tensor) -> int:
    """Exponent of the largest finite magnitude minus that of the element's largest value, as far as float32 goes."""
    element = format.element
    magnitudes = [abs(value) for value in x.double().reshape(-1).tolist() if math.isfinite(value) and value != 0]
    if not magnitudes:
        return 0
    s = exponent_of(Fraction(max(magnitudes))) - exponent_of(Fraction(element.max))
    least = -149 - element.lsb_exponent
    most = 127 - exponent_of(Fraction(max(element.max, -element.min)))
    return min(max(s, least), most)
