"""The characterised replay: every agent has its own list of tuples, and a Python loop gathers from it.

A slot of the list holds one whole transition; once the list is full the oldest slot is overwritten. Observations are
stored once: the next observation of a transition is the same object as the observation of the one after it.

Neighbour sampling is Algorithm 1 of the papers: walk a list of random slots, and for each take the slots around it
without itself, clipped at the ends of the buffer, until there are enough. Its two versions differ only in a buffer
that is not yet full, since "the buffer" D has its whole capacity d there: `v1` drops a neighbourhood that is not wholly
filled, `v2` only the empty slots of it. As printed the last neighbourhood may overshoot the batch (1026 rows instead of
1024) and nothing is returned if the list runs out; here the overshoot is cut by default, so that shapes stay the
same, and what was found is returned in every case. As printed, the end of the ring and the borders of episodes are not
treated: the oldest and the newest slot of a full buffer are neighbours.

Shape letters: B batch rows, T transitions, N agents, O observation, A action.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.envs.base import Array, EnvSpec, Step
from shoal.errors import UserError, check_choice, check_range, counted
from shoal.replay.samplers import Uniform
from shoal.system.memory import check_fits
from shoal_papers.reference import SAMPLERS

Transition = tuple[Array, Array, float, Array, float]  # observation, action, reward, next observation, done


class Transitions(NamedTuple):
    """One agent's part of a mini-batch."""

    obs_t: Array  # (B, O)
    actions: Array  # (B, A)
    rewards: Array  # (B,)
    obs_tp1: Array  # (B, O)
    dones: Array  # (B,)


class AgentReplay:
    """One agent's transitions, in a list."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.storage: list[Transition] = []
        self.next_slot = 0

    def __len__(self) -> int:
        """Filled slots."""
        return len(self.storage)

    def add(self, obs_t: Array, action: Array, reward: float, obs_tp1: Array, done: float) -> None:
        """Put a transition into the next slot."""
        transition = (obs_t, action, reward, obs_tp1, done)
        if self.next_slot >= len(self.storage):
            self.storage.append(transition)
        else:
            self.storage[self.next_slot] = transition
        self.next_slot = (self.next_slot + 1) % self.capacity

    def sample(self, indices: list[int]) -> Transitions:
        """The transitions in these slots."""
        obs_t, actions, rewards, obs_tp1, dones = [], [], [], [], []
        for i in indices:
            obs, action, reward, next_obs, done = self.storage[i]
            obs_t.append(obs)
            actions.append(action)
            rewards.append(reward)
            obs_tp1.append(next_obs)
            dones.append(done)
        return as_arrays(obs_t, actions, rewards, obs_tp1, dones)

    def sample_neighbors_v1(self, indices: list[int], neighbors: int, batch: int, cut: bool = True) -> Transitions:
        """Algorithm 1, first version: a neighbourhood counts only if all of it is filled; stop at `batch` rows."""
        obs_t, actions, rewards, obs_tp1, dones = [], [], [], [], []
        for i in indices:
            first, last = max(0, i - neighbors), min(self.capacity, i + neighbors + 1)
            if last <= len(self.storage):
                for j in range(first, last):
                    if j != i:
                        obs, action, reward, next_obs, done = self.storage[j]
                        obs_t.append(obs)
                        actions.append(action)
                        rewards.append(reward)
                        obs_tp1.append(next_obs)
                        dones.append(done)
            if len(obs_t) >= batch:
                break
        end = batch if cut else None
        return as_arrays(obs_t[:end], actions[:end], rewards[:end], obs_tp1[:end], dones[:end])

    def sample_neighbors_v2(self, indices: list[int], neighbors: int, cut: bool = True) -> Transitions:
        """Algorithm 1, second version: every filled neighbour counts; stop at as many rows as there are indices."""
        obs_t, actions, rewards, obs_tp1, dones = [], [], [], [], []
        for i in indices:
            for j in range(max(0, i - neighbors), min(self.capacity, i + neighbors + 1)):
                if j != i and j < len(self.storage):
                    obs, action, reward, next_obs, done = self.storage[j]
                    obs_t.append(obs)
                    actions.append(action)
                    rewards.append(reward)
                    obs_tp1.append(next_obs)
                    dones.append(done)
            if len(obs_t) >= len(indices):
                break
        end = len(indices) if cut else None
        return as_arrays(obs_t[:end], actions[:end], rewards[:end], obs_tp1[:end], dones[:end])


def as_arrays(
    obs_t: list[Array], actions: list[Array], rewards: list[float], obs_tp1: list[Array], dones: list[float]
) -> Transitions:
    """One array per field."""
    return Transitions(
        np.array(obs_t),
        np.array(actions),
        np.array(rewards, np.float32),
        np.array(obs_tp1),
        np.array(dones, np.float32),
    )


@dataclass(frozen=True)
class ListSampler(Uniform):
    """How an agent draws its index list, uniformly with replacement, and gathers transitions for it."""

    method: str = "uniform"
    """uniform, neighbor-v1 or neighbor-v2; neighbor is neighbor-v2."""
    neighbors: int = 3
    """Slots taken on either side of a drawn one."""

    def __post_init__(self) -> None:
        """Check the sampler's name and the number of neighbors."""
        check_choice("sampler", self.method, SAMPLERS)
        check_range("neighbors", self.neighbors, 1)

    @property
    def needs(self) -> int:
        """Smallest number of transitions from which every mini-batch can be filled."""
        if self.method == "uniform":
            return 1
        return self.neighbors + 1 if self.method == "neighbor-v1" else 2

    def indices(self, replays: "Replays", batch: int, rng: np.random.Generator) -> list[int]:
        """A list of random slots: as many as the batch has rows, though neighbour sampling stops long before its end.

        In a partly filled buffer `v1` may drop all neighbourhoods that were drawn; then it draws again.
        """
        while True:
            _, numbers = self.draw(replays, 1, batch, rng)
            slots: list[int] = (numbers[0] % replays.capacity).tolist()
            if self.method != "neighbor-v1":
                return slots
            if min(replays.capacity, min(slots) + self.neighbors + 1) <= len(replays):
                return slots

    def gather(self, buffer: AgentReplay, indices: list[int]) -> Transitions:
        """One agent's transitions for this index list."""
        if self.method == "uniform":
            return buffer.sample(indices)
        if self.method == "neighbor-v1":
            return buffer.sample_neighbors_v1(indices, self.neighbors, len(indices))
        return buffer.sample_neighbors_v2(indices, self.neighbors)


class Replays:
    """The N agents' buffers behind the replay interface of the loop and the checkpoints."""

    copies = 1

    def __init__(self, spec: EnvSpec, capacity: int, limit: int | None = None, reserved: int = 0) -> None:
        """`limit`: most transitions that the run can produce, and so must fit into memory.

        `reserved`: bytes of memory needed elsewhere.
        """
        check_range("capacity", capacity, 1)
        self.spec, self.capacity = spec, capacity
        self.agents = [AgentReplay(capacity) for _ in range(spec.agents)]
        self.added = np.zeros(1, np.int64)
        """(1,) transitions added so far, in the only copy."""
        self._first = 0  # the oldest transition of the saved replay that this one continues
        self._open: list[Array] = []  # each agent's current observation, the first half of its next transition
        most = capacity if limit is None else min(capacity, limit)
        check_fits(
            f"A list of {counted(most, 'transition')} for each of {counted(spec.agents, 'agent')}",
            most * self.transition_bytes,
            lambda usable: f"the largest `capacity` that fits is {usable // self.transition_bytes:,}",
            reserved,
        )

    def __len__(self) -> int:
        """Live transitions per agent."""
        return len(self.agents[0])

    @property
    def oldest(self) -> NDArray[np.int64]:
        """(1,) the oldest live transition, counted from the start of the run; t is in slot t mod capacity."""
        return np.maximum(self._first, self.added - self.capacity)

    @property
    def row_bytes(self) -> int:
        """Bytes of all agents' parts of a transition on disk."""
        return 4 * self.spec.agents * (2 * self.spec.observation_size + self.spec.action_size + 2)

    @property
    def transition_bytes(self) -> int:
        """Approximate bytes of all agents' parts of a transition as Python objects.

        Per agent an observation, an action, a tuple, two floats and a list entry. A small float32 array has an object,
        a shape and values, the last two rounded up to the allocator's 16 bytes.
        """
        sizes = [*self.spec.observation_sizes, *self.spec.action_sizes]
        arrays = sum(96 + 32 + max(32, -(-(4 * size + 8) // 16) * 16) for size in sizes)
        return arrays + self.spec.agents * (80 + 2 * 24 + 9)

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the buffers now."""
        return len(self) * self.transition_bytes

    def begin(self, observation: ArrayLike) -> None:
        """Store the first observation of the run (1, N, O)."""
        self._open = self._by_agent(np.asarray(observation, np.float32)[0])

    def add(self, actions: ArrayLike, step: Step) -> None:
        """Add one transition to every agent's list."""
        played = np.asarray(actions, np.float32)[0]  # (N, A)
        seen = self._by_agent(step.final_observation[0])
        for i, buffer in enumerate(self.agents):
            action = played[i, : self.spec.action_sizes[i]].copy()
            buffer.add(self._open[i], action, float(step.reward[0, i]), seen[i], float(step.terminated[0, i]))
        self._open = self._by_agent(step.observation[0]) if step.ended[0] else seen
        self.added += 1

    def _by_agent(self, observation: Array) -> list[Array]:
        """Each agent's own observation as a separate array without padding."""
        return [observation[i, :size].copy() for i, size in enumerate(self.spec.observation_sizes)]

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """The state without the transitions."""
        return {"window": np.concatenate([self.oldest, self.added]), "open": self._padded(self._open)}

    def load_state(self, state: Mapping[str, NDArray]) -> None:
        """Restore a saved state; the segments follow, oldest first."""
        if not {"window", "open"} <= state.keys() or state["open"].shape != self._padded(self._open).shape:
            raise UserError("The saved replay does not fit: it belongs to another implementation or another world.")
        oldest, added = (int(number) for number in state["window"])
        if added - oldest > self.capacity or (oldest > 0 and added - oldest < self.capacity):
            raise UserError(
                f"The saved replay holds {counted(added - oldest, 'transition')}, which does not fit a capacity of "
                f"{self.capacity:,}: it belongs to another run."
            )
        self._first, self.added[:] = oldest, oldest  # the segments contain the rest
        self._open = self._by_agent(state["open"])
        nothing = np.zeros(0, np.float32)
        for buffer in self.agents:  # only a full list has an oldest transition other than 0
            buffer.storage = [(nothing, nothing, 0.0, nothing, 0.0)] * (self.capacity if oldest else 0)
            buffer.next_slot = oldest % self.capacity

    def segment(self, first: ArrayLike, last: ArrayLike) -> dict[str, NDArray]:
        """Transitions first <= t < last of all agents, (T, N, ...), padded as the engine pads."""
        numbers = range(np.asarray(first).item(), np.asarray(last).item())
        rows = [[buffer.storage[t % self.capacity] for buffer in self.agents] for t in numbers]  # T lists of N tuples
        return {
            "observation": np.array([self._padded([row[0] for row in agents]) for agents in rows]),
            "action": np.array([_pad([row[1] for row in agents], self.spec.action_size) for agents in rows]),
            "reward": np.array([[row[2] for row in agents] for agents in rows], np.float32),
            "next_observation": np.array([self._padded([row[3] for row in agents]) for agents in rows]),
            "done": np.array([[row[4] for row in agents] for agents in rows], np.float32),
        }

    def load_segment(self, first: ArrayLike, last: ArrayLike, arrays: Mapping[str, NDArray]) -> None:
        """Restore what `segment` returned, from the first transition that is still missing."""
        begin, end, added = np.asarray(first).item(), np.asarray(last).item(), int(self.added[0])
        if begin > added:
            raise UserError(f"The segment from {begin} to {end} does not fit: the replay ends at {added}.")
        for t in range(added, end):
            seen, next_seen = (self._by_agent(arrays[name][t - begin]) for name in ("observation", "next_observation"))
            for i, buffer in enumerate(self.agents):
                if buffer.storage:  # the next observation of the transition before, unless an episode began
                    before = buffer.storage[buffer.next_slot - 1][3]
                    seen[i] = before if np.array_equal(before, seen[i]) else seen[i]
                action = arrays["action"][t - begin, i, : self.spec.action_sizes[i]].copy()
                reward, done = float(arrays["reward"][t - begin, i]), float(arrays["done"][t - begin, i])
                buffer.add(seen[i], action, reward, next_seen[i], done)
            self.added += 1

    def _padded(self, observations: list[Array]) -> Array:
        """(N, O)."""
        return _pad(observations, self.spec.observation_size)


def _pad(vectors: list[Array], width: int) -> Array:
    """(N, width): padded with zeros."""
    rows = np.zeros((len(vectors), width), np.float32)
    for row, vector in zip(rows, vectors, strict=True):
        row[: len(vector)] = vector
    return rows
