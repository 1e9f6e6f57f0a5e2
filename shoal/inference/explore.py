"""Exploration as in training, with any engine: the same noise gives the same actions as `Team.act`.

    explorer = Explorer(policy, partial(make_engine, precision="int8", batch=copies))
    actions = explorer.explore(observation)              # (E, N, A) as the replay ring stores them
    step = env.step(explorer.to_world(actions))

The engine runs only the network, so exploration works in every precision; the head is implemented here, once:

    choices            softmax(outputs + Gumbel noise), or the one-hot vector of its largest entry
    choices, Q values  the one-hot vector of the largest output, or with probability deviation any choice
    boxes              tanh(outputs) + deviation * normal noise, clipped to [-1, 1]
    boxes, Gaussian    tanh(mean + standard deviation * normal noise)

Shape letters: E copies, N agents, O observation, A action, U outputs.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError
from shoal.inference.engine import Engine, check_noise, make_engine
from shoal.inference.layers import Array
from shoal.inference.policy import LOG_STD_HIGH, LOG_STD_LOW, MASKED, Draws, Policy


class Explorer:
    """A policy that acts with the exploration noise of training."""

    def __init__(self, policy: Policy, make: Callable[[Policy], Engine] = make_engine, seed: int = 0) -> None:
        """`make` creates the engine for the policy's network; `seed` is that of noise the caller does not pass."""
        self.policy = _explorable(policy)
        self.engine = make(policy.network())
        assert self.policy.exploration is not None
        self.deviation = self.policy.exploration.deviation
        """Of the noise; of Q values the probability of a random choice."""
        self._draws = Draws(seed)

    def explore(self, observation: Array, noise: Array | None = None) -> Array:
        """Noisy actions (E, N, A) as the replay ring stores them: soft or one-hot choices, boxes in [-1, 1].

        Args:
            observation: (E, N, O) as the world returns them.
            noise: (E, N, A), standard Gumbel for choices and standard normal for boxes, also side by side; of Q values
                (E, N, 2), uniform: whether to explore, and how; None: drawn.

        """
        if noise is None:
            noise = self.draw(len(observation))
        check_noise(self.policy, noise, len(observation), self._noise_size)
        outputs = self.policy.apply_masks(self.engine.act(observation), observation)
        return explored(self.policy, outputs, noise, self.deviation)

    def draw(self, copies: int) -> Array:
        """The noise of one step."""
        shape = (copies, self.policy.agents, self._noise_size)
        if self._values:
            return self._draws.uniform(shape)
        if self.policy.head.discrete:
            return self._draws.gumbel(shape)
        normal = self._draws.normal(shape)
        return np.where(self.policy.chosen, self._draws.gumbel(shape), normal) if self.policy.mixed else normal

    @property
    def _values(self) -> bool:
        return self.policy.exploration is not None and self.policy.exploration.values

    @property
    def _noise_size(self) -> int:
        return 2 if self._values else self.policy.action_size

    def to_world(self, actions: Array) -> Array:
        """Actions in the form that `env.step` takes: boxes rescaled from [-1, 1] to its units, choices unchanged."""
        low, high = self.policy.head.low, self.policy.head.high
        if low is None or high is None:
            return actions
        return np.asarray((high + low) / 2 + (high - low) / 2 * actions, np.float32)

    def load(self, policy: Policy) -> None:
        """Replace the weights by others of the same shapes."""
        policy = _explorable(policy)
        if _actions(policy) != _actions(self.policy):
            raise UserError("The new weights belong to a policy with different actions; create a new explorer for it.")
        self.engine.load(policy.network())
        self.policy = policy


def explored(policy: Policy, outputs: NDArray[np.float32], noise: Array, deviation: float) -> Array:
    """Noisy actions (E, N, A) for the network's outputs (E, N, U)."""
    exploration, size = policy.exploration, policy.action_size
    assert exploration is not None
    noise, real = np.asarray(noise, np.float32), policy.mask == 0
    if exploration.values:
        values = outputs + policy.mask
        legal = values > MASKED / 2
        number = (noise[..., 1] * legal.sum(-1).astype(np.float32)).astype(np.int64)  # among the legal choices
        chosen = (legal.cumsum(-1) > number[..., None]).argmax(-1)
        choice = np.where(noise[..., 0] < deviation, chosen, values.argmax(-1))
        return (np.arange(size) == choice[..., None]).astype(np.float32)
    if policy.head.discrete and not policy.choices:
        return _sampled(outputs + policy.mask + noise, exploration.one_hot)
    mean = outputs[..., :size]
    if policy.head.kind == "gaussian":
        half = (LOG_STD_HIGH - LOG_STD_LOW) / 2  # as `shoal.networks.actors.log_deviation`
        log_deviation = np.asarray(LOG_STD_LOW + half * (np.tanh(outputs[..., size:]) + 1), np.float32)
        actions = np.tanh(mean + np.exp(log_deviation) * noise) * real
    else:
        actions = np.clip(np.tanh(mean) + np.float32(deviation) * noise, -1, 1) * real
    for i, block in policy.each_choice:
        actions[:, i, block] = _sampled((mean + noise)[:, i, block], exploration.one_hot)
    return actions


def _sampled(logits: NDArray[np.float32], one_hot: bool) -> Array:
    """(..., A): the softmax of logits with noise, or the one-hot vector of its largest entry."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    soft = powers / powers.sum(-1, keepdims=True)
    return (np.arange(logits.shape[-1]) == soft.argmax(-1)[..., None]).astype(np.float32) if one_hot else soft


def _explorable(policy: Policy) -> Policy:
    if policy.exploration is None:
        raise UserError("The policy cannot explore: only a policy taken from a training run describes its exploration.")
    return policy.check()


def _actions(policy: Policy) -> tuple[object, ...]:
    head = policy.head
    return head.discrete, head.kind == "gaussian", policy.action_sizes, policy.one_hot, policy.choices, policy.masked
