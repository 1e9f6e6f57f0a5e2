"""Experience on its way from an actor to the learner: a queue of whole chunks in shared memory, one for each actor.

A chunk is T steps of an actor's copies, as raw arrays behind a small header. The actor fills the slot at the head of
its queue and counts it up; the learner reads the one at the tail and counts that up. A chunk that was not finished is
as if it had never been. Shape letters: T steps, E copies of this actor, N agents, O observation, A action,
F metrics of an episode.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.actorq.versions import checksum
from shoal.envs.base import EnvSpec, Step, step_arrays
from shoal.system.shared_memory import LINE, ArrayLayout, SharedMemory

CHUNK = 64  # transitions of a chunk, about
CALL = 100  # steps that an actor on a cluster plays per call
NUMBER, STEPS, BEGINS, CHECKSUM = range(4)  # whole numbers in front of each chunk
ATTEMPTS = 10
"""Looks at a chunk before it is called damaged: on some processors its number can be seen before its contents."""


def steps_per_chunk(pull_every: int, copies: int, cluster: bool = False) -> int:
    """Steps of a chunk: short enough to be learned from soon, never longer than a version is played.

    On a cluster a chunk is a call, long enough for the call itself to cost little.
    """
    return CALL if cluster else max(1, min(pull_every, CHUNK // copies))


class Chunk(NamedTuple):
    """Some steps of an actor's copies."""

    first: NDArray[np.float32]  # (E, N, O)  what was seen before the first step
    fresh: NDArray[np.bool_]  # (E,)  whether that was the first observation of an episode
    actions: NDArray[np.float32]  # (T, E, N, A)  as the ring keeps them
    results: Step  # (T, E, …)  what came of them
    version: NDArray[np.int64]  # (T,)  the learner's updates when the policy that acted was published
    steps: int
    begins: bool
    """What came before `first` is unknown: a new actor's first chunk, or the one after a chunk that was lost."""

    def put(self, t: int, actions: NDArray[np.float32], step: Step, version: int) -> None:
        """Fill in step t."""
        self.actions[t], self.version[t] = actions, version
        for target, array in zip(self.results, step, strict=True):
            if target is not None and array is not None:
                target[t] = array

    def step(self, t: int | slice) -> Step:
        """Step t as the world gave it, or some steps with a leading axis T."""
        return Step(*(array[t] for array in self.results if array is not None))  # type: ignore[arg-type]


@dataclass(frozen=True)
class ChunkLayout:
    """Where the arrays of a chunk lie; both sides derive it from the same sizes."""

    spec: EnvSpec
    copies: int
    steps: int

    @cached_property
    def arrays(self) -> ArrayLayout:
        """Type, shape and place of every array behind the header."""
        spec, step = self.spec, (self.steps, self.copies)
        return ArrayLayout(
            {
                "first": (np.float32, (self.copies, spec.agents, spec.observation_size)),
                "fresh": (np.bool_, (self.copies,)),
                "actions": (np.float32, (*step, spec.agents, spec.action_size)),
                **step_arrays(spec, *step),
                "version": (np.int64, (self.steps,)),
            }
        )

    @property
    def nbytes(self) -> int:
        """Bytes of one chunk with its header."""
        return LINE + self.arrays.nbytes


class ChunkQueue:
    """A queue of chunks, as its actor or the learner sees it."""

    def __init__(self, layout: ChunkLayout, slots: int, memory: SharedMemory | None = None) -> None:
        self.layout, self.slots = layout, slots
        self.memory = memory = memory or SharedMemory(2 * LINE + slots * layout.nbytes)
        self.refused = 0
        """Damaged chunks that were not taken."""
        self._lost = False
        self._head = memory.array(np.int64, (1,))  # chunks put in, counted by the actor
        self._tail = memory.array(np.int64, (1,), LINE)  # chunks taken out, counted by the learner
        self._headers, self._arrays, self._words, self._whole = [], [], [], []
        for k in range(slots):
            at = 2 * LINE + k * layout.nbytes
            self._headers.append(memory.array(np.int64, (LINE // 8,), at))
            self._arrays.append(layout.arrays.views(memory, at + LINE))
            self._words.append(memory.array(np.uint64, ((layout.nbytes - LINE) // 8,), at + LINE))
            self._whole.append(memory.array(np.uint8, (layout.nbytes,), at))

    @property
    def waiting(self) -> int:
        """Whole chunks that nobody has taken yet."""
        return int(self._head[0] - self._tail[0])

    @property
    def sent(self) -> int:
        """Whole chunks put in since the run began, by every process that was this actor."""
        return int(self._head[0])

    # ---- the actor's side --------------------------------------------------------------------------------------------

    def free(self) -> Chunk | None:
        """The slot to fill next; None: all are full."""
        return None if self.waiting >= self.slots else self._chunk(int(self._head[0]), steps=0, begins=False)

    def send(self, steps: int, begins: bool) -> None:
        """Hand over the slot that `free` gave, with so many steps in it."""
        number = int(self._head[0])
        header = self._headers[number % self.slots]
        header[NUMBER], header[STEPS], header[BEGINS] = number, steps, begins
        header[CHECKSUM : CHECKSUM + 1].view(np.uint64)[0] = self._sum(number)
        self._head[0] = number + 1

    # ---- the learner's side ------------------------------------------------------------------------------------------

    def next(self) -> Chunk | None:
        """The oldest whole chunk, to be taken in before `done`; None: there is none. A damaged one is passed over."""
        while self.waiting > 0:
            number = int(self._tail[0])
            for _ in range(ATTEMPTS):
                header = self._headers[number % self.slots]
                steps, begins = int(header[STEPS]), bool(header[BEGINS])
                total = header[CHECKSUM : CHECKSUM + 1].view(np.uint64)[0]
                if header[NUMBER] == number and 0 < steps <= self.layout.steps and total == self._sum(number):
                    return self._chunk(number, steps, begins or self._lost)
            self.refused += 1
            self.done()
            self._lost = True
        return None

    def done(self) -> None:
        """The chunk that `next` gave is taken in; its slot is free again."""
        self._tail[0] += 1
        self._lost = False

    # ---- between queues on two machines ------------------------------------------------------------------------------

    def start_at(self, number: int) -> None:
        """Count on from this number: the actor before has sent so many chunks."""
        self._head[0] = self._tail[0] = number

    def unload(self) -> NDArray[np.uint8]:
        """The oldest chunk and its header as bytes; its slot is free again."""
        content = self._whole[int(self._tail[0]) % self.slots].copy()
        self.done()
        return content

    def load(self, content: NDArray[np.uint8]) -> None:
        """Put in what another queue unloaded; like every chunk it is checked when it is taken out."""
        assert self.waiting < self.slots
        self._whole[int(self._head[0]) % self.slots][:] = content
        self._head[0] += 1

    def _chunk(self, number: int, steps: int, begins: bool) -> Chunk:
        arrays = self._arrays[number % self.slots]
        results = Step(**{name: arrays[name] for name in Step._fields})
        return Chunk(arrays["first"], arrays["fresh"], arrays["actions"], results, arrays["version"], steps, begins)

    def _sum(self, number: int) -> np.uint64:
        """The checksum of a slot's contents and of what its header says about them."""
        header = self._headers[number % self.slots]
        counts = np.uint64(header[NUMBER] * 4 + header[BEGINS]) ^ np.uint64(header[STEPS] << 40)
        return np.uint64(checksum(self._words[number % self.slots])) ^ counts
