"""`low_precision`: an unmodified PyTorch model and its optimizer, trained in a scheme."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.errors import UserError, whole_number
from shoal.numerics.emulation.coverage import Coverage
from shoal.numerics.schemes.loss_scale import LossScale, parse_loss_scale
from shoal.numerics.schemes.run import SchemeRun, part_of
from shoal.numerics.schemes.scheme import Scheme, parse_scheme


def low_precision(
    model: nn.Module,
    optimizer: Optimizer,
    scheme: str | Scheme,
    *,
    loss_scale: str | float | LossScale = "none",
    seed: int = 0,
    steps: int | None = None,
    strict: bool = True,
    stats: bool = True,
) -> "LowPrecision":
    """Train a model in a scheme: forward and backward pass, gradients, weights and their update.

        training = low_precision(model, optimizer, "E5M2:5+E6M5", loss_scale="dynamic")
        for images, labels in batches:
            with training:
                loss = criterion(model(images), labels)
            training.step(loss)

    Args:
        model: any model on the CPU in float32; it is not changed, except that its weights are rounded to the master's
            format.
        optimizer: its optimizer: SGD with momentum, Adam, AdamW, or any other whose state are tensors.
        scheme: a scheme or its name: `hfp8`, `E5M2:5+E6M5`, `bf16; master=bf16, rounding=stochastic`.
        loss_scale: `none`, a number, `dynamic`, `adaptive`.
        seed: random seed of stochastic rounding.
        steps: length of the training, where the scheme averages weights after a share of it.
        strict: refuse operations that cannot be emulated; otherwise they run in float32 and `coverage()` lists them.
        stats: count what saturates, overflows and underflows. A loss scale that changes needs it.

    """
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        raise UserError("low_precision takes a torch.nn.Module and its torch.optim.Optimizer.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("LBFGS computes the loss several times per step; use an optimizer that does not, such as Adam.")
    rule = parse_loss_scale(loss_scale)
    if rule.changes and not stats:
        raise UserError(f"The loss scale {rule} looks at overflows, which stats=False does not count.")
    return LowPrecision(
        model, optimizer, SchemeRun(parse_scheme(scheme), rule, whole_number("seed", seed), strict, stats), steps
    )


class LayerCounts(NamedTuple):
    """Events of one layer in one role."""

    layer: str
    role: str  # a product (`forward`, `grad_input`, `grad_weight`), or a cast (`weights`, `inputs`, `master`, …)
    numbers: int  # MACs, or numbers that were rounded
    saturated: int
    overflowed: int
    underflowed: int


class LowPrecision:
    """A model and its optimizer in a scheme; a context in which the model computes in it."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, run: SchemeRun, steps: int | None) -> None:
        self.model, self.optimizer, self.run = model, optimizer, run
        self._parameters = dict(model.named_parameters())
        known = {id(parameter) for parameter in self._parameters.values()}
        optimized = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if foreign := [parameter for parameter in optimized if id(parameter) not in known]:
            raise UserError(f"The optimizer has {len(foreign)} parameters that the model has not.")
        mine = {id(parameter) for parameter in optimized}
        self._updated = {name: own for name, own in self._parameters.items() if id(own) in mine}
        for name, own in self._parameters.items():
            if own.dtype != torch.float32 or own.device.type != "cpu":
                raise UserError(f"'{name}' is {own.dtype} on {own.device}; schemes are emulated in float32 on the CPU.")
        self._average_from = _first_averaged(run.scheme, steps)
        self._mean: dict[str, Tensor] = {}
        self._averaged = 0
        self._entered = run.scheme.is_plain
        run.begin(self._parameters, self._updated)

    @property
    def scheme(self) -> Scheme:
        """The scheme."""
        return self.run.scheme

    @property
    def scale(self) -> float:
        """The loss scale of the next step."""
        return self.run.scaler("").scale

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return self.run.scaler("").taken

    @property
    def skipped(self) -> int:
        """Steps skipped so far because they overflowed."""
        return self.run.scaler("").skipped

    def __enter__(self) -> "LowPrecision":
        self.run.context().__enter__()
        self._entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.scheme.is_plain:
            self.run.emulation.__exit__(kind, error, at)

    def step(self, loss: Tensor) -> bool:
        """Gradients of the loss, then one step of the optimizer; False if the step overflowed and was skipped."""
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(loss)
        return self.update(bool(loss.detach().isfinite().all()))

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the scaled loss to the parameters' gradients."""
        if not isinstance(loss, Tensor):
            raise UserError(f"The loss is {loss!r}, but must be a tensor.")
        if not self._entered:
            raise UserError("The loss was computed outside of the scheme: put the forward pass into `with training:`.")
        self.run.scaled("", loss).backward()

    def update(self, finite_loss: bool = True) -> bool:
        """One step of the optimizer with the gradients that `backward` left."""
        self._check_parameters()
        gradients = {name: own.grad for name, own in self._updated.items() if own.grad is not None}
        if not self.run.accept("", gradients, finite_loss):
            return False
        self.run.apply(self._updated, self._optimizer_state, self.optimizer.step)
        self._average()
        return True

    def _check_parameters(self) -> None:
        """Refuse what would be updated with gradients that are still scaled, or cannot be rounded."""
        mine = {id(own) for own in self._updated.values()}
        if any(id(own) not in mine for group in self.optimizer.param_groups for own in group["params"]):
            raise UserError("The optimizer has got new parameters since low_precision; call it again.")
        for name, own in self._updated.items():
            if own.grad is not None and own.grad.layout != torch.strided:
                raise UserError(f"The gradient of '{name}' is sparse; use sparse=False in its embedding.")

    def _optimizer_state(self) -> list[Tensor]:
        """Moments and momentum: state tensors in the shape of their parameters."""
        return [
            value
            for own in self._updated.values()
            for key, value in self.optimizer.state.get(own, {}).items()
            if key != "step" and isinstance(value, Tensor) and value.shape == own.shape and value.is_floating_point()
        ]

    # ---- averaged weights ------------------------------------------------------------------------------------------

    @property
    def averages(self) -> bool:
        """Whether there are averaged weights."""
        return self._averaged > 0

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """In it, the model has its averaged weights (if there are any); afterwards everything is as before."""
        own = {name: self._updated[name].detach().clone() for name in self._mean}
        with self.run.casts.set_aside():
            try:
                self._put(self._mean)
                yield
            finally:
                self._put(own)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """In it, the model computes in the scheme, without gradients and with its averaged weights if there are any.

        It leaves no trace: counts, random bits and rounded weights are afterwards as before, so that a training has the
        same bits however often it is evaluated. Where there are averaged weights, evaluate after a step, not between a
        forward pass and its gradients.
        """
        counted = self.run.counts.state()
        try:
            with self.averaged(), torch.no_grad(), self:
                yield
        finally:
            self.run.counts.load_state(counted)

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, value in weights.items():
            self._updated[name].copy_(value)

    @torch.no_grad()
    def _average(self) -> None:
        """mean <- (n·mean + w) / (n + 1), in float32."""
        first, scheme = self._average_from, self.run.scheme
        if first is None or self.steps < first or (self.steps - first) % scheme.average_every:
            return
        n = self._averaged
        for name, own in self._updated.items():
            self._mean[name] = own.detach().clone() if n == 0 else (self._mean[name] * n + own) / (n + 1)
        self._averaged = n + 1

    # ---- reports and state -----------------------------------------------------------------------------------------

    def by_layer(self) -> list[LayerCounts]:
        """What saturated, overflowed and underflowed by layer and role, in the order of their first occurrence."""
        counted = self.run.counts.by_layer.items()
        return [LayerCounts(layer, role, *astuple(happened)) for (layer, role), happened in counted]

    def coverage(self) -> Coverage:
        """Which functions were emulated and which were not, by role; as a string, a table."""
        return self.run.counts.coverage()

    def metrics(self) -> dict[str, float]:
        """Numbers for a log: the loss scale, skipped steps, MACs and their events so far."""
        self.run.scaler("")
        return self.run.metrics()

    def state(self) -> dict[str, Tensor]:
        """Everything that decides the future, besides the model and the optimizer."""
        mean = {f"mean.{name}": value for name, value in self._mean.items()}
        return self.run.state() | mean | {"averaged": torch.tensor(self._averaged)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned, after the model and the optimizer have been loaded."""
        if not {"averaged", "mac.calls"} <= state.keys():
            raise UserError("This is not the state of a training in a scheme.")
        self.run.load_state(state)
        self._averaged = int(state["averaged"])
        self._mean = {name: value.clone() for name, value in part_of(state, "mean.").items()}


def _first_averaged(scheme: Scheme, steps: int | None) -> int | None:
    """The step from which weights are averaged."""
    after = scheme.average_after
    if after is None or after >= 1:
        return None if after is None else int(after)
    if steps is None:
        raise UserError(
            f"{scheme} averages weights after {after:.0%} of the training; give steps=, or average_after in steps, or "
            "average_after=never."
        )
    return max(1, int(after * whole_number("steps", steps, 1)))
