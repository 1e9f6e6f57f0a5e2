"""Gradient steps on stacked networks: clipping agent by agent, Adam, and the slow targets."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


def clip_gradients(stacked: Sequence[tuple[nn.Parameter, int]], limit: float, by: str) -> None:
    """Scale gradients down to norm `limit`: each weight array of each agent by itself, or each agent's network whole.

    `stacked` gives each parameter with the axis along which the networks are stacked: the norm is over all others.
    """
    gradients = [(parameter.grad, axis) for parameter, axis in stacked if parameter.grad is not None]
    norms = [
        torch.linalg.vector_norm(gradient, dim=[d for d in range(gradient.dim()) if d != axis], keepdim=True)
        for gradient, axis in gradients
    ]
    if by == "network":
        whole = torch.stack([norm.flatten() for norm in norms]).norm(dim=0)  # (C,)
        norms = [whole.view_as(norm) for norm in norms]
    for (gradient, _), norm in zip(gradients, norms, strict=True):
        gradient.mul_(limit / norm.clamp_(min=limit))


def move_targets(targets: nn.Module, online: nn.Module, tau: float) -> None:
    """targets <- (1 - tau) targets + tau online."""
    with torch.no_grad():
        torch._foreach_lerp_(list(targets.parameters()), list(online.parameters()), tau)


class Descent:
    """Adam on one stack of networks, with clipped gradients. Stacking changes nothing: Adam is element-wise."""

    def __init__(
        self, stacked: Sequence[tuple[nn.Parameter, int]], learning_rate: float, clip: float, clip_by: str
    ) -> None:
        self.stacked = list(stacked)
        self.clip, self.clip_by = clip, clip_by
        parameters = [parameter for parameter, _ in self.stacked]
        fused = parameters[0].device.type in ("cpu", "cuda")
        self.adam = torch.optim.Adam(parameters, lr=learning_rate, fused=fused)

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of `loss`."""
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        if self.clip > 0:
            clip_gradients(self.stacked, self.clip, self.clip_by)
        self.adam.step()

    def state(self) -> dict[str, Tensor]:
        """Adam's moments and step counts, by parameter number."""
        return {
            f"{number}.{key}": value
            for number, (parameter, _) in enumerate(self.stacked)
            for key, value in self.adam.state[parameter].items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        for number, (parameter, _) in enumerate(self.stacked):
            prefix = f"{number}."
            moments = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            self.adam.state[parameter] = {
                key: value.clone() if key == "step" else value.to(parameter.device, copy=True)
                for key, value in moments.items()
            }
