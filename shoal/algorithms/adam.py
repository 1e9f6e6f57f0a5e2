"""Gradient steps on stacked networks: clipping agent by agent, Adam, and the slow targets."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from shoal.algorithms.precision import FULL


def clip_gradients(
    gradients: Sequence[Tensor], axes: Sequence[int], limit: float, by: str, of: Tensor | None = None
) -> None:
    """Scale gradients down to norm `limit`: each weight array of each agent by itself, or each agent's network whole.

    `axes` says for each gradient along which axis the networks are stacked: the norm is over all others.
    `of` (M,) is the network of each member where several share one. Its gradient is a sum over its members, which may
    be as many times the limit; arrays that every member has of its own count as one array of their network.
    """
    norms = [
        torch.linalg.vector_norm(gradient, dim=[d for d in range(gradient.dim()) if d != axis], keepdim=True)
        for gradient, axis in zip(gradients, axes, strict=True)
    ]
    shapes = [norm.shape for norm in norms]
    if of is not None:
        members = of.bincount()  # (C,)
        norms = [_of_networks(norm.flatten(), of, len(members)) / members for norm in norms]
    if by == "network":
        whole = torch.stack([norm.flatten() for norm in norms]).norm(dim=0)  # (C,)
        norms = [whole.view_as(norm).clone() for norm in norms]
    if of is not None:
        norms = [
            (norm if shape.numel() == len(norm) else norm[of]).view(shape)
            for norm, shape in zip(norms, shapes, strict=True)
        ]
    torch._foreach_clamp_min_(norms, limit)
    torch._foreach_reciprocal_(norms)
    torch._foreach_mul_(norms, limit)
    torch._foreach_mul_(list(gradients), norms)


def _of_networks(norm: Tensor, of: Tensor, networks: int) -> Tensor:
    """(C,): the norm of an array of each network, given those of its members' own arrays."""
    return norm if len(norm) == networks else norm.new_zeros(networks).index_add(0, of, norm.square()).sqrt()


def move_targets(targets: list[Tensor], online: list[Tensor], tau: float) -> None:
    """targets <- (1 - tau) targets + tau online."""
    with torch.no_grad():
        torch._foreach_lerp_(targets, online, tau)


class StackedAdam:
    """Adam on one stack of networks, with clipped gradients. Stacking changes nothing: Adam is element-wise."""

    def __init__(
        self,
        stacked: Sequence[tuple[nn.Parameter, int]],
        learning_rate: float,
        clip: float,
        clip_by: str,
        of: Tensor | None = None,
    ) -> None:
        """`stacked` gives each parameter with the axis along which the networks are stacked.

        `of` (M,): the network of each member, where several share one.
        """
        self.parameters: list[Tensor] = [parameter for parameter, _ in stacked]
        self.axes = [axis for _, axis in stacked]
        self.learning_rate, self.clip, self.clip_by, self.of = learning_rate, clip, clip_by, of
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = [torch.zeros((), device=parameter.device).float() for parameter in self.parameters]
        self.precision = FULL

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of `loss`, in the run's precision."""
        scaled = self.precision.scaled(loss)
        gradients = [gradient.contiguous() for gradient in torch.autograd.grad(scaled, self.parameters)]
        with torch.no_grad():
            if not self.precision.accept(gradients):
                return
            if self.clip > 0:
                clip_gradients(gradients, self.axes, self.clip, self.clip_by, self.of)
            step = partial(  # a function, as the class torch.optim.Adam imports torch's compiler, which takes a second
                adam, self.parameters, gradients, self.means, self.squares, [], self.steps, fused=True, amsgrad=False,
                beta1=0.9, beta2=0.999, lr=self.learning_rate, weight_decay=0.0, eps=1e-8, maximize=False,
            )  # fmt: skip
            self.precision.step(self.parameters, [*self.means, *self.squares], step)

    def state(self) -> dict[str, Tensor]:
        """Adam's moments and step counts, by parameter number."""
        lists = {"mean": self.means, "square": self.squares, "step": self.steps}
        return {f"{number}.{name}": value for name, values in lists.items() for number, value in enumerate(values)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])
