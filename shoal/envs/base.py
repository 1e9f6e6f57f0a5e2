"""The interface of every world: E copies of N agents in arrays.

Shape letters: E copies, N agents, O observation, A action, K entities, F metrics of an episode.
Shorter observations and actions are padded with zeros at the end; the true sizes are in the spec.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shoal.errors import UserError
from shoal.seeding import stream

Array = NDArray[np.float32]
Bools = NDArray[np.bool_]


class AgentSizes:
    """What a team sees and does, from its agents' names and the sizes of their observations and actions."""

    if TYPE_CHECKING:  # fields of the dataclasses that inherit from it
        agent_names: tuple[str, ...]
        observation_sizes: tuple[int, ...]
        action_sizes: tuple[int, ...]
        choices: tuple[tuple[int, ...], ...]
        masked: bool

        @property
        def discrete(self) -> bool: ...

    @property
    def agents(self) -> int:
        """N."""
        return len(self.agent_names)

    @property
    def observation_size(self) -> int:
        """O, the longest observation."""
        return max(self.observation_sizes)

    @property
    def action_size(self) -> int:
        """A, the longest action vector."""
        return max(self.action_sizes)

    @property
    def padded(self) -> bool:
        """Whether any agent has padded actions."""
        return len(set(self.action_sizes)) > 1

    @cached_property
    def action_mask(self) -> Bools:
        """(N, A): True where the action entry is real, False where it is padding."""
        return np.arange(self.action_size)[None, :] < np.array(self.action_sizes)[:, None]

    @property
    def mixed(self) -> bool:
        """Whether some agents have choices and others boxes."""
        return not self.discrete and any(self.choices)

    @cached_property
    def each_choice(self) -> tuple[tuple[int, slice], ...]:
        """Every choice: its agent, and its entries in the agent's action vector."""
        sizes = self.choices or tuple((size,) * self.discrete for size in self.action_sizes)
        ends = [list(accumulate(own)) for own in sizes]
        return tuple(
            (i, slice(end - size, end)) for i in range(self.agents) for size, end in zip(sizes[i], ends[i], strict=True)
        )

    @cached_property
    def chosen(self) -> Bools:
        """(N, A): True for action entries that belong to a choice."""
        chosen = np.zeros_like(self.action_mask)
        for i, block in self.each_choice:
            chosen[i, block] = True
        return chosen

    def legal(self, observation: NDArray[np.floating]) -> Bools:
        """(E, N, A) for observations (E, N, O): True for entries of choices that are not masked."""
        if not self.masked:
            return np.broadcast_to(self.chosen, (len(observation), *self.chosen.shape))
        return np.asarray((observation[..., : self.action_size] > 0) & self.chosen)


@dataclass(frozen=True, eq=False)
class EnvSpec(AgentSizes):
    """Static description of a world: agents, observations, actions."""

    name: str
    agent_names: tuple[str, ...]
    observation_sizes: tuple[int, ...]
    """True length of each agent's observation."""
    action_sizes: tuple[int, ...]
    """True length of each agent's action vector."""
    discrete: bool
    """All actions are choices, given as one-hot (or soft) vectors; else boxes, given in the world's own units."""
    soft_actions: bool = False
    """A discrete world that also takes soft vectors (particle worlds: they are forces)."""
    action_low: NDArray[np.float32] | None = None
    """(N, A) lower bounds of the boxes, -1 for choices (upper: 1), 0 in the padding; None where `discrete`."""
    action_high: NDArray[np.float32] | None = None
    team: int = 0
    """Number of leading agents that the reported return is of (predators); 0: all. The rest is the other side."""
    episode_length: int | None = None
    """Steps after which a copy is truncated; None where only the world itself ends episodes."""
    stated_length: int | None = None
    """Where only the world itself ends episodes: the most steps that it says one has (PettingZoo's max_cycles)."""
    whole_numbers: bool = False
    """Every observation is one whole number from 0, below the same limit for all agents, encoded one-hot."""
    from_zero: bool = True
    """Every agent's choices are counted from 0 in the world itself; False: some start elsewhere or are combinations."""
    fixed_length: bool = False
    """Every episode has exactly `episode_length` steps (staggered first ones apart): nobody terminates."""
    agent_groups: tuple[str, ...] = ()
    """The group of each agent (predator, prey) for the returns by group; empty: by the agents' names."""
    metrics: tuple[str, ...] = ()
    """Names of what the world reports of each episode beside the rewards, such as landmarks_covered."""
    choices: tuple[tuple[int, ...], ...] = ()
    """Sizes of each agent's choices, side by side in its action vector; empty: one choice of all entries per agent
    where `discrete`, else boxes only."""
    masked: bool = False
    """Each observation begins with the agent's action mask, one number per entry of its action vector: 0 for choices
    that are not legal."""

    @cached_property
    def _box(self) -> tuple[NDArray, NDArray] | None:
        """Middle and half-width of the box; None where actions are choices."""
        low, high = self.action_low, self.action_high
        return None if low is None or high is None else ((high + low) / 2, (high - low) / 2)

    def to_world(self, actions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions (E, N, A) as the world takes them: boxes from [-1, 1] to its own units, choices unchanged."""
        if self._box is None:
            return actions
        middle, half = self._box
        return np.asarray(middle + half * actions, np.float32)

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """Agents by group, in their order; adversary_0 is in the group adversary unless the world says otherwise."""
        groups: dict[str, list[int]] = {}
        for i, name in enumerate(self.agent_groups or map(group_of, self.agent_names)):
            groups.setdefault(name, []).append(i)
        return groups

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Each agent's kind, counted from 0: agents of one group with the same observations and actions are alike."""
        bounds = [ends for ends in (self.action_low, self.action_high) if ends is not None]
        sizes = [self.observation_sizes, self.action_sizes, *([self.choices] if self.choices else [])]
        each = [
            (group, *(own[i] for own in sizes), *(ends[i].tobytes() for ends in bounds))
            for i, group in sorted((i, group) for group, agents in self.groups.items() for i in agents)
        ]
        return tuple(list(dict.fromkeys(each)).index(kind) for kind in each)


def members(number_of: Sequence[int]) -> list[list[int]]:
    """The agents that share each network, given the number of each agent's network."""
    groups: dict[int, list[int]] = {}
    for i, number in enumerate(number_of):
        groups.setdefault(number, []).append(i)
    return [groups[number] for number in sorted(groups)]


def group_of(agent: str) -> str:
    """An agent's name without the number at its end; agents that are only numbered are one group."""
    return re.sub(r"[-_. ]*\d+$", "", agent) or "agent"


class Entity(NamedTuple):
    """One body of a particle world, for pictures."""

    kind: str  # agent, predator, prey, landmark or obstacle
    radius: float


class Step(NamedTuple):
    """The result of one step of all copies.

    A copy whose episode ended is reset at once: `observation` is then the first of the next episode
    and `final_observation` the last of the old one. For other copies the two are equal.
    """

    observation: Array  # (E, N, O)
    reward: Array  # (E, N)
    terminated: Bools  # (E, N)  the agent reached a true end: nothing to bootstrap from
    truncated: Bools  # (E,)    the time limit cut the copy's episode: bootstrap from final_observation
    alive: Bools  # (E, N)  the agent took part in this step; False once it has left the episode
    ended: Bools  # (E,)    the copy's episode is over, for whichever reason
    final_observation: Array  # (E, N, O)
    metrics: Array | None = None  # (E, F)  those that the spec names, of episodes that ended; zeros for other copies


class VectorEnv(Protocol):
    """E copies of one world, stepped together."""

    spec: EnvSpec
    copies: int

    @property
    def episode_step(self) -> NDArray[np.int64]:
        """(E,) steps that each copy has played in its episode; not all zero after a staggered reset."""
        ...

    def reset(self) -> Array:
        """Start a new episode in every copy and return the observations (E, N, O)."""
        ...

    def step(self, actions: ArrayLike) -> Step:
        """Play one step in every copy: actions (E, N, A), or whole numbers (E, N) in a world of choices."""
        ...

    def sample_actions(self) -> Array:
        """Uniformly random actions (E, N, A): one-hot choices, or points of the box."""
        ...

    def state(self) -> dict[str, NDArray]:
        """The complete state of the copies, as arrays."""
        ...

    def load_state(self, state: dict[str, NDArray]) -> None:
        """Continue exactly from what `state` returned."""
        ...

    def close(self) -> None:
        """Release the copies' resources."""
        ...


class Copies(VectorEnv):
    """What the worlds here have in common; they inherit it, and the interface's descriptions of its methods."""

    def __init__(self, spec: EnvSpec, copies: int, seed: int) -> None:
        self.spec, self.copies = spec, copies
        self._sampler = stream(seed, "sampled actions")
        self._episode_step = np.zeros(copies, np.int64)

    @property
    def episode_step(self) -> NDArray[np.int64]:
        return self._episode_step.copy()

    def sample_actions(self) -> Array:
        return random_actions(self.spec, self.copies, self._sampler)

    def close(self) -> None:
        """Nothing needs releasing unless a world says so."""


def step_arrays(spec: EnvSpec, *leading: int) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
    """Data type and shape of the arrays of a `Step`, by name, with these leading axes: (E,), or (T, E)."""
    agents = (*leading, spec.agents)
    return {
        "observation": (np.float32, (*agents, spec.observation_size)),
        "reward": (np.float32, agents),
        "terminated": (np.bool_, agents),
        "truncated": (np.bool_, leading),
        "alive": (np.bool_, agents),
        "ended": (np.bool_, leading),
        "final_observation": (np.float32, (*agents, spec.observation_size)),
        "metrics": (np.float32, (*leading, len(spec.metrics))),
    }


def stagger_offsets(copies: int, episode_length: int | None) -> NDArray[np.int64]:
    """(E,) steps to count as played at the start, spread evenly so that the copies do not end together."""
    if episode_length is None:
        return np.zeros(copies, np.int64)
    return np.arange(copies, dtype=np.int64) * episode_length // copies % episode_length


def random_actions(
    spec: EnvSpec, copies: int, rng: np.random.Generator, observation: NDArray[np.floating] | None = None
) -> Array:
    """(E, N, A) uniformly random actions: one-hot choices, legal ones given an observation, or points of the box."""
    shape = (copies, spec.agents, spec.action_size)
    legal = np.broadcast_to(spec.chosen, shape) if observation is None else spec.legal(observation)
    if spec.discrete and not spec.choices:
        return _any_of(legal, rng)
    actions = np.zeros(shape, np.float32)
    if spec.action_low is not None and spec.action_high is not None:
        actions = rng.uniform(spec.action_low, spec.action_high, shape).astype(np.float32)
    for i, block in spec.each_choice:
        actions[:, i, block] = _any_of(legal[:, i, block], rng)
    return actions


def _any_of(legal: Bools, rng: np.random.Generator) -> Array:
    """One-hot vectors (..., A) of uniformly random legal choices."""
    number = (rng.random(legal.shape[:-1]) * legal.sum(-1)).astype(int)  # among the legal ones
    return np.asarray(legal & (legal.cumsum(-1) == number[..., None] + 1), np.float32)


def one_hot(spec: EnvSpec, copies: int, actions: ArrayLike, present: Bools | bool = True) -> ArrayLike:
    """Whole numbers (E, N), each a choice counted from 0, as one-hot actions (E, N, A); other actions unchanged.

    Numbers of agents that are not `present` (E, N) may be anything.
    """
    try:
        choices = np.asarray(actions)
    except ValueError:  # rows of different lengths: refused where vectors are checked
        return actions
    if not spec.discrete or choices.shape != (copies, spec.agents) or choices.dtype.kind not in "iu":
        return actions
    sizes = np.array(spec.action_sizes)
    wrong = np.logical_and(present, (choices < 0) | (choices >= sizes))  # (E, N)
    if wrong.any():
        e, i = np.argwhere(wrong)[0]
        raise UserError(
            f"Agent '{spec.agent_names[i]}' in copy {e} of {spec.name} was given choice {choices[e, i]}, but its "
            f"choices are 0 to {sizes[i] - 1}."
        )
    return (np.arange(spec.action_size) == choices[..., None]).astype(np.float32)
