"""The interface of a team, in torch, in native code or in the reference; outcomes, checks, and sizes in memory."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.config import LearnConfig
from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.networks.layout import Kind, network_numbers
from shoal.replay import Batch, Returns, Ring, Sampler
from shoal.replay.normalisation import Normalisation
from shoal.system.memory import check_fits

Phase = Callable[[str], None]  # called with the name of the phase that begins now
Arrays = dict[str, NDArray]  # a part of a team's state by name; stacked, see `networks/layout.py`


class BaseTeam:
    """All agents of a world, with the settings that they learn by.

    Its state has one form wherever it learns, so that a checkpoint serves all teams: arrays of stacked networks.
    """

    losses: tuple[str, ...]
    """What `update` returns, by name."""
    targets: dict[str, str]
    """Names of target networks, each with that of its online one."""

    def __init__(self, spec: EnvSpec, config: LearnConfig) -> None:
        self.spec, self.config = spec, config
        self.targets = {}
        self.samples = 0  # that the run has collected so far; see `progress`
        self.learning_rate_factor = 1.0  # of its schedule; see `progress`
        self.normalisation = Normalisation(
            spec, config.normalize_observations, config.normalize_rewards, config.discount
        )

    @property
    def kind(self) -> Kind:
        """What the policies' outputs are."""
        raise NotImplementedError

    @property
    def hard(self) -> bool:
        """Whether samples of choices are one-hot, with the straight-through gradient."""
        gumbel = self.config.gumbel
        return gumbel == "straight-through" or (gumbel == "auto" and not self.spec.soft_actions)

    @property
    def exploration(self) -> float:
        """How much noise rollouts have: of boxes its standard deviation, in half-widths of the box."""
        return self.config.exploration_noise

    def progress(self, samples: int, done: float = 0.0) -> None:
        """Advance schedules: the run has collected so many samples, and this share of its episodes."""
        self.samples = samples
        self.learning_rate_factor = self.config.learning_rate_factor(done)

    def to_world(self, actions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions in the world's units."""
        return self.spec.to_world(actions)

    def draw(self, ring: Ring, sampler: Sampler, rng: np.random.Generator) -> Batch | Returns:
        """The transitions that an update learns from."""
        config = self.config
        minibatches = 1 if config.minibatch == "shared" else self.spec.agents
        batch = ring.sample(sampler, config.batch, rng, minibatches, config.n_step, config.discount)
        self.normalisation.apply(batch)
        return batch

    def rollout_arrays(self) -> list[NDArray]:
        """The policies that play: weight (C, in, out), bias (C, 1, out), weight, bias, …; see `network_numbers`."""
        raise NotImplementedError

    def act(self, observation: NDArray[np.float32], explore: bool = True) -> NDArray[np.float32]:
        """Actions (E, N, A) for observations (E, N, O): noisy as in training, or the most likely ones."""
        raise NotImplementedError

    def update(self, ring: Any, sampler: Any, rng: np.random.Generator, phase: Phase) -> Arrays:
        """Draw mini-batches and update all agents once; returns each agent's losses (N,)."""
        raise NotImplementedError

    def weights(self) -> Arrays:
        """All networks' parameters by name, targets included, and the statistics of its normalisation."""
        raise NotImplementedError

    def load_weights(self, weights: Mapping[str, NDArray]) -> None:
        """Restore what `weights` returned; other names or shapes are refused."""
        raise NotImplementedError

    def optimizer_state(self) -> Arrays:
        """All optimizers' moments by name; and the number of updates where targets do not move in every one."""
        raise NotImplementedError

    def load_optimizer_state(self, state: Mapping[str, NDArray]) -> None:
        """Continue from what `optimizer_state` returned."""
        raise NotImplementedError

    def random_state(self) -> Arrays:
        """The state of everything that the team draws from."""
        raise NotImplementedError

    def load_random_state(self, state: Mapping[str, NDArray]) -> None:
        """Continue from what `random_state` returned."""
        raise NotImplementedError


class Outcomes(NamedTuple):
    """What came of the rows of a mini-batch, agent by agent."""

    bootstrap: NDArray | float  # (N, B)  gamma^steps, or 0 where the agent reached a true end; (1, B) if none can
    weight: NDArray | None  # (N, B)  for means over the rows an agent took part in; None: it took part in all
    alive: NDArray | None  # (N, M*B, 1)  who was there, in every mini-batch; None: always everyone
    next_alive: NDArray | None  # (N, M*B, 1)  whether the agent still acts on the next observation


def outcomes_of(batch: Batch | Returns, spec: EnvSpec, discount: float) -> Outcomes:
    """Discounts and weights of the rows."""
    bootstrap = discount**batch.steps if isinstance(batch, Returns) else discount  # (M, B)
    if spec.fixed_length:
        return Outcomes(bootstrap, None, None, None)
    bootstrap = bootstrap * ~own_columns(batch.terminated)
    present = own_columns(batch.alive).astype(batch.joint.dtype)
    weight = present / np.maximum(present.sum(-1, keepdims=True), 1)
    stays = batch.next_alive if isinstance(batch, Returns) else batch.alive & ~batch.terminated
    alive, next_alive = (flags.reshape(-1, spec.agents).T[..., None] for flags in (batch.alive, stays))
    return Outcomes(bootstrap, weight, alive, next_alive)


def own_columns(columns: NDArray) -> NDArray:
    """(N, B) of (M, B, N): agent i's own column, in the shared mini-batch or in its own."""
    agents = np.arange(len(columns))
    return columns[0].T if len(columns) == 1 else columns[agents, :, agents]


def check_choices(spec: EnvSpec, algorithm: str) -> None:
    """Refuse boxes, and several choices per agent, to DQN."""
    if algorithm == "dqn" and (not spec.discrete or spec.choices):
        actions = "several choices per agent" if spec.discrete else "choices and boxes" if spec.mixed else "boxes"
        raise UserError(
            f"`algorithm=dqn` supports one choice per agent, but the actions of {spec.name} are {actions}; "
            "choose d4pg, maddpg or masac."
        )


def check_weights(expected: Mapping[str, NDArray], given: Mapping[str, NDArray]) -> None:
    """Refuse weights of other names or shapes than a team's."""
    if missing := expected.keys() - given.keys():
        raise UserError(f"The weights lack '{min(missing)}': they are of another algorithm or number of layers.")
    for name, array in expected.items():
        if array.shape != given[name].shape:
            raise UserError(
                f"The weights '{name}' have shape {given[name].shape}, but this team needs {array.shape}: "
                "the number of agents or the sizes of the world differ."
            )


def target_entropies(spec: EnvSpec, config: LearnConfig) -> list[float]:
    """The entropy that each agent's learned temperature aims at: half of the largest, minus the size of a box."""
    asked = config.target_entropy
    sizes = [[block.stop - block.start for agent, block in spec.each_choice if agent == i] for i in range(spec.agents)]
    boxes = [size - sum(own) for size, own in zip(spec.action_sizes, sizes, strict=True)]
    largest = [sum(map(math.log, own)) for own in sizes]  # of choices
    if asked is None:
        return [0.5 * most - float(box) for most, box in zip(largest, boxes, strict=True)]
    for most, box, own in zip(largest, boxes, sizes, strict=True):
        if not box and asked >= most:
            raise UserError(
                f"`target_entropy` is {asked}, but the largest possible is {most:.3f}, "
                f"of {counted(math.prod(own), 'choice')}: the temperature would grow without end."
            )
    return [asked] * spec.agents


# ---- sizes ----------------------------------------------------------------------------------------------------------


def check_team_fits(spec: EnvSpec, config: LearnConfig) -> None:
    """Refuse a team that there is no memory for."""
    widths = " × ".join(f"{width:,}" for width in config.hidden[:4]) + (" × …" if len(config.hidden) > 4 else "")
    check_fits(
        f"A team of {spec.agents} agents with hidden layers of {widths} units",
        team_bytes(spec, config),
        lambda usable: "fewer agents or smaller hidden layers need less",
    )


def team_bytes(spec: EnvSpec, config: LearnConfig) -> int:
    """What a team takes to be built: networks, targets, Adam's two moments, and layers before they are stacked."""
    return 4 * 5 * sum(network_weights(spec, config))


def network_weights(spec: EnvSpec, config: LearnConfig) -> tuple[int, int]:
    """Numbers in the actors and in the critics of all agents, targets and agents' own biases not counted."""
    seen, layers, outputs = spec.observation_size + spec.action_size, config.critic_layers, config.atoms or 1
    actor = _weights((spec.observation_size, *config.hidden, 2 * spec.action_size))
    if config.critic == "pooled":
        embeddings = len(set(spec.kinds)) * _weights((seen, layers[0]))
        critic = embeddings + _weights((2 * layers[0], *layers[1:], outputs))
    else:
        critic = _weights((spec.agents * seen, *layers, outputs))
    actors, critics = (
        len(set(network_numbers(spec, shared))) for shared in (config.shared_actors, config.shared_critics)
    )
    return actors * actor, critics * heads(config) * critic


def heads(config: LearnConfig) -> int:
    """Critics per agent."""
    if ":" in config.algorithm:
        from shoal.algorithms import algorithm_class

        return algorithm_class(config.algorithm).heads
    return {"masac": 2, "dqn": 0}.get(config.algorithm, 1)


def _weights(layers: tuple[int, ...]) -> int:
    """Numbers in a network with these layers, inputs and outputs included."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(layers))
