"""A scheme at work in one training: the emulation of its products, its casts, loss scales and updates.

`training.py` applies it to any PyTorch model and optimizer; Shoal's teams use it through their precision plug.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from shoal.errors import UserError
from shoal.numerics.emulation.coverage import NOTHING
from shoal.numerics.emulation.emulate import Emulation
from shoal.numerics.formats.types import FloatFormat
from shoal.numerics.mac.matmul import MacStats
from shoal.numerics.mac.unit import MacUnit
from shoal.numerics.schemes.casting import SchemeCasts
from shoal.numerics.schemes.loss_scale import LossScale, Scaler
from shoal.numerics.schemes.scheme import UNITS, Scheme


class SchemeRun:
    """One training in a scheme, for any number of losses."""

    def __init__(self, scheme: Scheme, rule: LossScale, seed: int, strict: bool = True, stats: bool = True) -> None:
        self.scheme, self.rule = scheme, rule
        units = {role: None if (unit := getattr(scheme, role)) is None else lenient(unit) for role in UNITS}
        self.emulation = Emulation(units, strict, seed, stats)
        self.emulation.layer_units = {key: lenient(unit) for key, unit in scheme.layer_units().items()}
        self.counts = self.emulation.counts
        self.casts = SchemeCasts(scheme, self.counts, seed, stats)
        self.emulation.casts = self.casts
        self._lost: dict[str, Tensor] = {}
        """What compensated updates remember, by parameter."""
        self.scalers: dict[str, Scaler] = {}
        self._before: dict[str, dict[str, MacStats]] = {}
        """Counts by loss and role before its first backward pass since the last step."""

    def begin(self, parameters: Mapping[str, Tensor], updated: Mapping[str, Tensor]) -> None:
        """Take over a model's parameters by name; those that are `updated` get the master's format."""
        layers = {name.removesuffix(".weight") for name in parameters}
        if unknown := [layer for layer, _ in self.emulation.layer_units if layer not in layers]:
            raise UserError(f"The scheme has an accumulator for '{unknown[0]}', but the model has no such layer.")
        self.casts.know(parameters)
        if self.scheme.master is not None:
            with torch.no_grad():
                for name, parameter in updated.items():
                    parameter.copy_(self._kept(name, parameter))

    def context(self) -> AbstractContextManager[object]:
        """In it, the model computes in the scheme; float32 throughout needs none."""
        if self.scheme.is_plain:
            return nullcontext()
        self.casts.find()
        return self.emulation

    def scaler(self, name: str) -> Scaler:
        """The scaler of a loss."""
        return self.scalers.setdefault(name, Scaler(self.rule))

    def scaled(self, name: str, loss: Tensor) -> Tensor:
        """The loss whose gradient is to be taken next."""
        self._before.setdefault(name, self._backward_counts())
        scale = self.scaler(name).scale
        return loss if scale == 1 else loss * scale

    @torch.no_grad()
    def accept(self, name: str, gradients: Mapping[str, Tensor], finite_loss: bool = True) -> bool:
        """Round the gradients of the scaled loss and undo its scale, in place; False: skip this step."""
        scaler = self.scaler(name)
        scale = scaler.scale  # before it changes
        finite = finite_loss and all(bool(gradient.isfinite().all()) for gradient in gradients.values())
        if self.scheme.weight_gradients is not None:  # it may hide what is not finite, or make it so
            for parameter, gradient in gradients.items():
                gradient.copy_(self.casts.round("weight_gradients", parameter.removesuffix(".weight"), gradient))
            finite = finite and all(bool(gradient.isfinite().all()) for gradient in gradients.values())
        if not scaler.judge(finite, self._overflow_share(self._before.pop(name, None))):
            return False
        if scale != 1 and gradients:
            torch._foreach_mul_(list(gradients.values()), 1 / scale)
        return True

    @torch.no_grad()
    def apply(
        self, parameters: Mapping[str, Tensor], state: Callable[[], Sequence[Tensor]], step: Callable[[], object]
    ) -> None:
        """Let the optimizer `step` in float32, then round the parameters and its `state`, in place."""
        scheme = self.scheme
        compensated = scheme.update == "compensated"
        before = {name: parameter.clone() for name, parameter in parameters.items()} if compensated else {}
        step()
        if scheme.master is not None:
            for name, parameter in parameters.items():
                new = self._compensated(name, before[name], parameter) if compensated else self._kept(name, parameter)
                parameter.copy_(new)
        if scheme.state is not None:
            for tensor in state():
                tensor.copy_(self.casts.round("state", "optimizer", tensor))
        self.casts.forget_weights()

    def _compensated(self, name: str, old: Tensor, parameter: Tensor) -> Tensor:
        """The difference u between the new weights and the old ones w, added as Kahan does.

        y = round(u - c), t = round(w + y), c = round(round(t - w) - y), w = t.
        """
        lost = self._lost.setdefault(name, torch.zeros_like(old))
        change = self._kept(name, (parameter - old) - lost)
        new = self._kept(name, old + change)
        lost.copy_(self._kept(name, self._kept(name, new - old) - change))
        return new

    def _kept(self, name: str, x: Tensor) -> Tensor:
        """x in the master's format."""
        return self.casts.round("master", name.removesuffix(".weight"), x)

    def _backward_counts(self) -> dict[str, MacStats]:
        """Events of the backward pass in which a loss scale shows: not casts that adjust to their tensor's range."""
        casts = {role: getattr(self.scheme, role) for role in ("activation_gradients", "weight_gradients")}
        limited = [role for role, cast in casts.items() if cast is None or not (cast.shares or cast.squeeze)]
        sums = dict.fromkeys(("grad_input", "grad_weight", *limited), NOTHING)
        for (_, role), happened in self.counts.by_layer.items():
            if role in sums:
                sums[role] += happened
        return sums

    def _overflow_share(self, since: Mapping[str, MacStats] | None) -> float:
        """Of the numbers of each kind in the backward passes since then, the largest share that overflowed."""
        shares, until = [0.0], self._backward_counts()
        for role, before in (since or {}).items():
            now = until[role]
            numbers = now.macs - before.macs
            events = now.saturated + now.overflowed - before.saturated - before.overflowed
            shares.append(events / numbers if numbers else 0.0)
        return max(shares)

    # ---- log and state ---------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Numbers for the log: loss scales, skipped steps, MACs and their events so far."""
        metrics: dict[str, float] = {}
        for name, scaler in self.scalers.items():
            suffix = f"/{name}" if name else ""
            metrics |= {f"scale{suffix}": scaler.scale, f"skipped{suffix}": scaler.skipped}
        total = sum(self.counts.by_role.values(), NOTHING)
        return metrics | {f"mac/{name}": count for name, count in vars(total).items()}

    def state(self) -> dict[str, Tensor]:
        """Everything that decides the future, besides weights and optimizer."""
        counts = {f"mac.{name}": torch.tensor(numbers) for name, numbers in self.counts.state().items()}
        scalers = {
            f"scaler.{name}": torch.tensor(scaler.state(), dtype=torch.float64) for name, scaler in self.scalers.items()
        }
        lost = {f"lost.{name}": value for name, value in self._lost.items()}
        return counts | self.casts.state() | lost | scalers

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self.counts.load_state({name: value.tolist() for name, value in part_of(state, "mac.").items()})
        self._before = {}
        self.casts.load_state(state)
        self._lost = {name: value.clone() for name, value in part_of(state, "lost.").items()}
        for name, value in part_of(state, "scaler.").items():
            self.scaler(name).load_state(value.tolist())


def lenient(unit: MacUnit) -> MacUnit:
    """The unit, with NaN read as infinity instead of refused, so that a step that overflows is skipped, not an error.

    Where an operand has no infinities, NaN reads as zero.
    """
    if unit.nan != "error":
        return unit
    lacking = [format for format in unit.multiplier.formats if not (isinstance(format, FloatFormat) and format.nans)]
    infinite = all(isinstance(format, FloatFormat) and format.infinities for format in lacking)
    return replace(unit, nan="infinity" if infinite else "zero")


def part_of(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries of a saved state whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
