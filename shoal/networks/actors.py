"""The agents' policies, stacked.

Choices are made by Gumbel-softmax or by the largest Q value, boxes by a squashed mean or a squashed Gaussian. Where
some agents have several choices or boxes besides, each choice has its block of the action vector.
Actions of boxes are in [-1, 1] here; `to_world` puts them into the world's units.
Every draw takes its noise as an argument: what is random is decided by the caller.
Shape letters: N agents, B batch rows, O observation, A action, S choices of an agent, L the longest of them, R rows: B,
or B*S where agents have several choices.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
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
        self.padded, self.masks_choices, self.mixed = spec.padded, spec.masked, spec.mixed
        self.register_buffer("real", torch.from_numpy(spec.action_mask)[:, None, :], persistent=False)  # (N, 1, A)
        self.real_count: Tensor
        self.register_buffer("real_count", self.real.sum(-1), persistent=False)  # (N, 1)
        self.chosen: Tensor
        self.register_buffer("chosen", torch.from_numpy(spec.chosen)[:, None, :], persistent=False)  # (N, 1, A)
        self.several = bool(spec.choices)
        if self.several:
            self._place_choices(spec)

    def _place_choices(self, spec: EnvSpec) -> None:
        """Index the entries of the action vector by choice (S, L), and the choices by entry."""
        own = [[block for agent, block in spec.each_choice if agent == i] for i in range(spec.agents)]
        self.most = max(map(len, own))  # S
        longest = max(block.stop - block.start for _, block in spec.each_choice)  # L
        entry = np.full((spec.agents, self.most, longest), -1)
        place = np.zeros((spec.agents, spec.action_size), np.int64)
        for i, blocks in enumerate(own):
            for s, block in enumerate(blocks):
                size = block.stop - block.start
                entry[i, s, :size] = np.arange(block.start, block.stop)
                place[i, block] = s * longest + np.arange(size)
        self.entry: Tensor
        self.place: Tensor
        self.register_buffer("entry", torch.from_numpy(entry), persistent=False)  # (N, S, L), -1: none
        self.register_buffer("place", torch.from_numpy(place)[:, None], persistent=False)  # (N, 1, A)

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """The head, in which masked choices have the value of padding."""
        head = super().forward(x, frozen)
        if not self.masks_choices:
            return head
        actions = self.chosen.shape[-1]
        forbidden = (x[..., :actions] <= 0) & self.chosen
        return head.masked_fill(torch.nn.functional.pad(forbidden, (0, head.shape[-1] - actions)), MASKED)

    def sample(self, head: Tensor, noise: NoiseSource) -> Tensor:
        """Differentiable actions (N, B, A) drawn from the policies."""
        if self.kind == "categorical":
            return self._gumbel(head, noise)
        if self.kind == "gaussian":
            return self._gaussian(head, noise)[0]
        actions = self._unpadded(head.tanh())
        return torch.where(self.chosen, self._gumbel(head, noise), actions) if self.mixed else actions

    def sample_with_entropy(self, head: Tensor, noise: NoiseSource) -> tuple[Tensor, Tensor]:
        """Actions and their policies' entropy (N, B): exact for choices, minus the log-probability for boxes."""
        if self.kind == "categorical":
            return self._gumbel(head, noise), self.entropy(head)
        return self._gaussian(head, noise)

    def entropy(self, logits: Tensor) -> Tensor:
        """(N, B) exact entropy of the categorical policies, of all their choices."""
        log_probability = self._rows(logits).log_softmax(-1)
        entropy = -(log_probability.exp() * log_probability).sum(-1)  # (N, R)
        if not self.several:
            return entropy
        return (entropy.unflatten(1, (-1, self.most)) * (self.entry[:, None, :, 0] >= 0)).sum(-1)

    def greedy(self, head: Tensor) -> Tensor:
        """The most likely choice as one-hot vector, or the squashed mean: no noise."""
        if self.kind in ("categorical", "values"):
            return self._likeliest(head)
        means = head[..., : self.real.shape[-1]]
        actions = self._unpadded(means.tanh())
        return torch.where(self.chosen, self._likeliest(means), actions) if self.mixed else actions

    def explore(self, head: Tensor, noise: NoiseSource, deviation: float) -> Tensor:
        """Actions for rollouts: samples; deterministic policies get Gaussian noise and stay in their box.

        Of Q values the greedy choice, or with probability `deviation` any choice, as one-hot vectors.
        """
        if self.kind == "values":
            explores, which = noise("uniform", (*head.shape[:2], 2)).unbind(-1)  # (N, B) each
            values = self.masked(head)
            legal = values > MASKED / 2
            number = (which * legal.sum(-1)).long()  # among the legal choices
            chosen = (legal.cumsum(-1) > number[..., None]).long().argmax(-1)
            return one_hot(torch.where(explores < deviation, chosen, values.argmax(-1)), head)
        actions = self.sample(head, noise)
        if self.kind == "deterministic":
            unit = self._unpadded(noise("normal", tuple(actions.shape)))
            if self.mixed:
                unit = unit.masked_fill(self.chosen, 0)
            actions = (actions + deviation * unit).clamp_(-1, 1)
        return actions

    def penalty(self, head: Tensor) -> Tensor:
        """(N, B) mean square of the real logits (of the means before squashing, for boxes); masked choices count 0."""
        if self.masks_choices:
            head = head.masked_fill(head <= MASKED / 2, 0)
        return self._unpadded(head[..., : self.real.shape[-1]]).square().sum(-1) / self.real_count

    def _gumbel(self, logits: Tensor, noise: NoiseSource) -> Tensor:
        soft = softmax(self._rows(logits + noise("gumbel", tuple(logits.shape))))
        if not self.hard:
            return self._joined(soft)
        choice = one_hot(soft.argmax(-1), soft)
        return self._joined(choice + (soft - soft.detach()))  # exactly one-hot: the bracket is 0, but for its gradient

    def _likeliest(self, logits: Tensor) -> Tensor:
        rows = self._rows(logits)
        return self._joined(one_hot(rows.argmax(-1), rows))

    def _rows(self, logits: Tensor) -> Tensor:
        """Logits (N, B, A) as (N, R, L), one choice per row; padding is never the largest."""
        if not self.several:
            return self.masked(logits)
        entry = self.entry.flatten(1)[:, None]  # (N, 1, S*L)
        rows = logits.gather(-1, entry.clamp(min=0).expand(-1, logits.shape[1], -1)).masked_fill(entry < 0, MASKED)
        return rows.reshape(len(logits), -1, self.entry.shape[-1])

    def _joined(self, rows: Tensor) -> Tensor:
        """Action vectors (N, B, A) from choices (N, R, L); zeros elsewhere."""
        if not self.several:
            return rows
        flat = rows.reshape(len(rows), -1, self.entry[0].numel())  # (N, B, S*L)
        return flat.gather(-1, self.place.expand(-1, flat.shape[1], -1)) * self.chosen

    def _gaussian(self, head: Tensor, noise: NoiseSource) -> tuple[Tensor, Tensor]:
        mean, squashed = head.chunk(2, -1)
        log_std = log_deviation(squashed)
        unit = noise("normal", tuple(mean.shape))
        before = mean + log_std.exp() * unit
        # log(1 - tanh(x)^2) in a form that does not cancel for large |x|
        log_slope = 2 * (math.log(2) - before - torch.nn.functional.softplus(-2 * before))
        entropy = 0.5 * unit.square() + log_std + 0.5 * math.log(2 * math.pi) + log_slope
        actions, entropy = self._unpadded(before.tanh()), self._unpadded(entropy)
        if not self.mixed:
            return actions, entropy.sum(-1)
        choices = torch.where(self.chosen, self._gumbel(mean, noise), actions)
        return choices, entropy.masked_fill(self.chosen, 0).sum(-1) + self.entropy(mean)

    def masked(self, logits: Tensor) -> Tensor:
        """Logits or Q values (N, B, A) that are never the largest where there is no such choice."""
        return logits.masked_fill(~self.real, MASKED) if self.padded else logits

    def _unpadded(self, actions: Tensor) -> Tensor:
        return actions * self.real if self.padded else actions
