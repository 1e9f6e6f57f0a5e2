"""What a row of the ring holds, how many rows a copy needs, and what that takes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import EnvSpec
from shoal.errors import counted
from shoal.replay.half import BFLOAT16_BOUND, FLOAT16_BOUND

STORAGES = ("float32", "float16", "bfloat16")
BOUNDS = {"float16": FLOAT16_BOUND, "bfloat16": BFLOAT16_BOUND}
"""The smallest magnitudes that 16-bit storage would round to infinity."""


@dataclass(frozen=True)
class RowLayout:
    """A row: [observations N·O | actions N·A | rewards N | flags N] in 32-bit words.

    With 16-bit storage the observations are packed two to a word, the last word filled up with a zero.
    """

    agents: int
    observation_size: int
    action_size: int
    storage: str

    @classmethod
    def of(cls, spec: EnvSpec, storage: str) -> "RowLayout":
        """The layout for a world."""
        return cls(spec.agents, spec.observation_size, spec.action_size, storage)

    @cached_property
    def kind(self) -> int:
        """The storage as a number: its position in `STORAGES`."""
        return STORAGES.index(self.storage)

    @cached_property
    def observation_words(self) -> int:
        """Words that the observations of all agents take."""
        values = self.agents * self.observation_size
        return values if self.kind == 0 else -(-values // 2)

    @cached_property
    def words(self) -> int:
        """W, words of a row."""
        return self.observation_words + self.agents * (self.action_size + 2)

    @property
    def joint_size(self) -> int:
        """J, values of all observations and all actions."""
        return self.agents * (self.observation_size + self.action_size)

    @property
    def sample_bytes(self) -> int:
        """Bytes of one transition in a mini-batch: two joint vectors, rewards, flags, where it is from and its rows."""
        return 8 * self.joint_size + 6 * self.agents + 32

    def observations(self, rows: NDArray[np.uint32]) -> NDArray[np.float32]:
        """(B, N, O): the observations in rows (B, W) of the ring, widened."""
        words = np.ascontiguousarray(rows[:, : self.observation_words])
        if self.storage == "float32":
            values = words.view(np.float32)
        else:
            halves = np.ascontiguousarray(words.view(np.uint16)[:, : self.agents * self.observation_size])
            if self.storage == "float16":
                values = halves.view(np.float16).astype(np.float32)
            else:
                values = (halves.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(-1, self.agents, self.observation_size)

    def numbers(self) -> NDArray[np.int64]:
        """The layout as an array, for a checkpoint."""
        return np.array([self.agents, self.observation_size, self.action_size, self.kind], np.int64)


def describe(numbers: NDArray[np.int64]) -> str:
    """What `RowLayout.numbers` gave, in words."""
    agents, observation, action, kind = (int(value) for value in numbers)
    storage = STORAGES[kind] if 0 <= kind < len(STORAGES) else "an unknown storage"
    return f"{counted(agents, 'agent')} with observations of {observation} in {storage} and actions of {action}"


def rows_needed(spec: EnvSpec, transitions: int) -> int:
    """R, the rows a copy needs to hold this many transitions at any moment of a run, whenever episodes end.

    Ends of fixed-length episodes are `episode_length` steps apart (a staggered first episode only comes earlier);
    elsewhere every episode may last one step. Every end costs a dead row, and one row is open: it waits for an action.
    """
    if spec.fixed_length and spec.episode_length:
        dead = -(-transitions // spec.episode_length)
    else:
        dead = transitions
    return transitions + dead + 1


def ring_bytes(spec: EnvSpec, layout: RowLayout, copies: int, transitions: int) -> int:
    """What a ring of this many transitions a copy takes: its rows and the table of where transitions start."""
    return copies * (4 * layout.words * rows_needed(spec, transitions) + 8 * transitions)
