"""The agents' policies, stacked.

Choices are made by Gumbel-softmax or by the largest Q value, boxes by a squashed mean or a squashed Gaussian.
Actions of boxes are in [-1, 1] here; `to_world` puts them into the world's units.
Every draw takes its noise as an argument: what is random is decided by the caller.
Shape letters: N agents, B batch rows, O observation, A action.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.envs.base import EnvSpec
from shoal.inference.policy import LOG_STD_HIGH, LOG_STD_LOW, MASKED
from shoal.networks.layout import Kind, Random, actor_widths, network_numbers
from shoal.networks.stacked import StackedMLP, to_arrays, to_tensors

NoiseSource = Callable[[str, tuple[int, ...]], Tensor]  # called with "gumbel", "normal" or "uniform" and a shape


class Noise:
    """A seeded source of noise on any device; every draw moves its one generator on."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def __call__(self, kind: str, shape: tuple[int, ...]) -> Tensor:
        """Standard Gumbel ("gumbel"), standard normal ("normal"), or uniform noise in [0, 1) ("uniform")."""
        empty = torch.empty(shape, device=self.device)
        if kind == "uniform":
            return empty.uniform_(generator=self.generator)
        if kind == "gumbel":
            # by uniform numbers, never 0 or 1: quicker than by exponential ones
            return empty.uniform_(generator=self.generator).clamp_(min=2**-25).log_().neg_().log_().neg_()
        return empty.normal_(generator=self.generator)


def noise_states(sources: Mapping[str, Noise]) -> dict[str, NDArray]:
    """The states of these generators, by name."""
    return to_arrays({name: source.generator.get_state() for name, source in sources.items()})


def load_noise_states(sources: Mapping[str, Noise], states: Mapping[str, NDArray]) -> None:
    """Continue from what `noise_states` returned."""
    for name, state in to_tensors(states).items():
        sources[name].generator.set_state(state)


def softmax(logits: Tensor) -> Tensor:
    """Over the last axis, by way of the one before it: processors do that many rows at a time."""
    return logits.mT.softmax(-2).mT


def one_hot(choice: Tensor, like: Tensor) -> Tensor:
    """Choices as vectors of the width and type of `like`."""
    return torch.nn.functional.one_hot(choice, like.shape[-1]).to(like.dtype)


def log_deviation(output: Tensor) -> Tensor:
    """A Gaussian's log-deviation, kept between its ends, of the network's output for it."""
    return LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (output.tanh() + 1)


class Actors(StackedMLP):
    """One policy per agent.

    `forward` gives the head: logits or Q values (N, B, A), or means, or means and log-deviations.
    """

    real: Tensor

    def __init__(
        self, spec: EnvSpec, hidden: Sequence[int], kind: Kind, random: Random, hard: bool = False, shared: bool = False
    ) -> None:
        """`hard`: one-hot samples with the straight-through gradient in place of soft ones.

        `shared`: agents of one kind share one policy.
        """
        widths = actor_widths(spec, hidden, 2 if kind == "gaussian" else 1, shared)
        super().__init__(widths, random, network_numbers(spec, shared))
        self.kind = kind
        self.weight_count = spec.agents * sum(parameter[0].numel() for parameter in self.parameters())
        self.hard = hard
        self.padded = spec.padded
        self.register_buffer("real", torch.from_numpy(spec.action_mask)[:, None, :], persistent=False)  # (N, 1, A)
        self.real_count: Tensor
        self.register_buffer("real_count", self.real.sum(-1), persistent=False)  # (N, 1)

    def sample(self, head: Tensor, noise: NoiseSource) -> Tensor:
        """Differentiable actions (N, B, A) drawn from the policies."""
        if self.kind == "categorical":
            return self._gumbel(head, noise)
        return self._unpadded(head.tanh()) if self.kind == "deterministic" else self._gaussian(head, noise)[0]

    def sample_with_entropy(self, head: Tensor, noise: NoiseSource) -> tuple[Tensor, Tensor]:
        """Actions and their policies' entropy (N, B): exact for choices, minus the log-probability for boxes."""
        if self.kind == "categorical":
            return self._gumbel(head, noise), self.entropy(head)
        return self._gaussian(head, noise)

    def entropy(self, logits: Tensor) -> Tensor:
        """(N, B) exact entropy of the categorical policies."""
        log_probability = self.masked(logits).log_softmax(-1)
        return -(log_probability.exp() * log_probability).sum(-1)

    def greedy(self, head: Tensor) -> Tensor:
        """The most likely choice as one-hot vector, or the squashed mean: no noise."""
        if self.kind in ("categorical", "values"):
            return one_hot(self.masked(head).argmax(-1), head)
        return self._unpadded(head[..., : self.real.shape[-1]].tanh())

    def explore(self, head: Tensor, noise: NoiseSource, deviation: float) -> Tensor:
        """Actions for rollouts: samples; deterministic policies get Gaussian noise and stay in their box.

        Of Q values the greedy choice, or with probability `deviation` any choice, as one-hot vectors.
        """
        if self.kind == "values":
            explores, which = noise("uniform", (*head.shape[:2], 2)).unbind(-1)  # (N, B) each
            chosen = (which * self.real_count).long().clamp_(max=head.shape[-1] - 1)
            return one_hot(torch.where(explores < deviation, chosen, self.masked(head).argmax(-1)), head)
        actions = self.sample(head, noise)
        if self.kind == "deterministic":
            actions = (actions + deviation * self._unpadded(noise("normal", tuple(actions.shape)))).clamp_(-1, 1)
        return actions

    def penalty(self, head: Tensor) -> Tensor:
        """(N, B) mean square of the real logits (of the means before squashing, for boxes)."""
        return self._unpadded(head[..., : self.real.shape[-1]]).square().sum(-1) / self.real_count

    def _gumbel(self, logits: Tensor, noise: NoiseSource) -> Tensor:
        soft = softmax(self.masked(logits) + noise("gumbel", tuple(logits.shape)))
        if not self.hard:
            return soft
        choice = one_hot(soft.argmax(-1), soft)
        return choice + (soft - soft.detach())  # exactly one-hot: the bracket is zero, but for its gradient

    def _gaussian(self, head: Tensor, noise: NoiseSource) -> tuple[Tensor, Tensor]:
        mean, squashed = head.chunk(2, -1)
        log_std = log_deviation(squashed)
        unit = noise("normal", tuple(mean.shape))
        before = mean + log_std.exp() * unit
        # log(1 - tanh(x)^2) in a form that does not cancel for large |x|
        log_slope = 2 * (math.log(2) - before - torch.nn.functional.softplus(-2 * before))
        entropy = 0.5 * unit.square() + log_std + 0.5 * math.log(2 * math.pi) + log_slope
        return self._unpadded(before.tanh()), self._unpadded(entropy).sum(-1)

    def masked(self, logits: Tensor) -> Tensor:
        """Logits or Q values (N, B, A) that are never the largest where there is no such choice."""
        return logits.masked_fill(~self.real, MASKED) if self.padded else logits

    def _unpadded(self, actions: Tensor) -> Tensor:
        return actions * self.real if self.padded else actions
