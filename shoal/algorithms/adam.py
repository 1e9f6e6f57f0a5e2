"""Gradient steps on stacked networks: clipping agent by agent, Adam, and the slow targets."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from shoal.algorithms.precision import FULL

MOMENTS = {"mean": "exp_avg", "square": "exp_avg_sq"}
"""Names in checkpoints, with torch's."""


def clip_gradients(gradients: Sequence[Tensor], axes: Sequence[int], limit: float, by: str) -> None:
    """Scale gradients down to norm `limit`: each weight array of each agent by itself, or each agent's network whole.

    `axes` says for each gradient along which axis the networks are stacked: the norm is over all others.
    """
    norms = [
        torch.linalg.vector_norm(gradient, dim=[d for d in range(gradient.dim()) if d != axis], keepdim=True)
        for gradient, axis in zip(gradients, axes, strict=True)
    ]
    if by == "network":
        whole = torch.stack([norm.flatten() for norm in norms]).norm(dim=0)  # (C,)
        norms = [whole.view_as(norm).clone() for norm in norms]
    torch._foreach_clamp_min_(norms, limit)
    torch._foreach_reciprocal_(norms)
    torch._foreach_mul_(norms, limit)
    torch._foreach_mul_(list(gradients), norms)


def move_targets(targets: list[Tensor], online: list[Tensor], tau: float) -> None:
    """targets <- (1 - tau) targets + tau online."""
    with torch.no_grad():
        torch._foreach_lerp_(targets, online, tau)


class StackedAdam:
    """Adam on one stack of networks, with clipped gradients. Stacking changes nothing: Adam is element-wise."""

    def __init__(
        self, stacked: Sequence[tuple[nn.Parameter, int]], learning_rate: float, clip: float, clip_by: str
    ) -> None:
        """`stacked` gives each parameter with the axis along which the networks are stacked."""
        self.parameters: list[Tensor] = [parameter for parameter, _ in stacked]
        self.axes = [axis for _, axis in stacked]
        self.learning_rate, self.clip, self.clip_by = learning_rate, clip, clip_by
        self.precision = FULL

    @cached_property
    def adam(self) -> torch.optim.Adam:
        """Torch's optimizer. It imports torch's compiler, which takes most of a second: not where a team only plays."""
        adam = torch.optim.Adam(self.parameters, self.learning_rate, fused=True)
        for parameter in self.parameters:  # torch would begin with the first step: too late for a precision, or a state
            moments = {name: torch.zeros_like(parameter) for name in MOMENTS.values()}
            adam.state[parameter] = moments | {"step": torch.zeros((), device=parameter.device).float()}
        return adam

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of `loss`, in the run's precision."""
        self.adam.zero_grad()
        self.precision.scaled(loss).backward()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        with torch.no_grad():
            if not self.precision.accept(gradients):
                return
            if self.clip > 0:
                clip_gradients(gradients, self.axes, self.clip, self.clip_by)
            moments = [self.adam.state[parameter][name] for name in MOMENTS.values() for parameter in self.parameters]
            self.precision.step(self.parameters, moments, self.adam.step)

    def state(self) -> dict[str, Tensor]:
        """Adam's moments and step counts, by parameter number."""
        return {
            f"{number}.{name}": self.adam.state[parameter][key]
            for name, key in (MOMENTS | {"step": "step"}).items()
            for number, parameter in enumerate(self.parameters)
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        for name, value in self.state().items():
            value.copy_(state[name])
