"""The replay ring: what all agents of E copies saw and did, observations kept once, oldest forgotten first.

The copies move in lock-step, so transition number t (0, 1, 2, ... from the start of the run) exists in all copies or
in none; the live ones are oldest <= t < added. Every copy writes its own sub-ring of R rows:

    row      4          5          6 (dead)     7          8 (open)
    holds    obs, act   obs, act   last obs     obs, act   obs
    t        3          4          -            5          not yet

The next observation of a transition is the observation of the row after it. Where an episode ended, that row holds the
episode's last observation and starts no transition: it is dead. `start` says in which row each transition begins, so
drawing one takes no search and no rejection, and t + 1 follows t in time whatever rows lie between them. Row numbers
count from the start of the run; row number n lies in row n mod R.

Shape letters: E copies, R rows a copy, W words a row, C transitions a copy, M mini-batches, B batch, N agents,
O observation, A action, J joint.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shoal.envs.base import EnvSpec, Step
from shoal.errors import UserError, check_choice, check_range, counted
from shoal.memory import check_fits
from shoal.replay import gather
from shoal.replay.gather import Batch, Store, empty_batch
from shoal.replay.half import first_beyond
from shoal.replay.layout import BOUNDS, STORAGES, Layout, describe, most_that_fit, ring_bytes, rows_needed
from shoal.replay.samplers import Sampler, can_sample

PARALLEL_BYTES = 16_000_000
"""Mini-batches of fewer bytes are gathered by one thread: waking the others could take longer than they would save."""


def gathered_in_parallel(batch: Batch) -> bool:
    """Whether mini-batches of this size are gathered by all threads."""
    return batch.joint.nbytes + batch.next_joint.nbytes >= PARALLEL_BYTES


class Ring:
    """The last `capacity` transitions of all copies together, `capacity // copies` of each.

    Give `limit`, the transitions that the run can produce in all copies together, and no more than that is allocated.
    `storage` is how observations are kept: float32, or 16 bits as float16 or bfloat16 and widened when sampled.
    `reserved` bytes of memory will be taken by others.
    """

    def __init__(
        self,
        spec: EnvSpec,
        copies: int,
        capacity: int = 1_000_000,
        storage: str = "float32",
        limit: int | None = None,
        reserved: int = 0,
    ) -> None:
        check_choice("storage", storage, STORAGES)
        check_range("copies", copies, 1)
        if capacity < copies:
            raise UserError(f"The ring's capacity is {capacity}, but must be at least {copies}, one for each copy.")
        self.spec = spec
        self.copies = copies
        self.layout = Layout.of(spec, storage)
        self.capacity_per_copy = capacity // copies
        if limit is not None:
            check_range("limit", limit, 1)
            self.capacity_per_copy = min(self.capacity_per_copy, -(-limit // copies))
        self.added = 0
        """Transitions added to each copy so far."""
        self.oldest = 0
        """The oldest live transition."""
        self._loaded = 0  # live transitions below this number are in their rows; less than `added` only while loading
        self._begun = False
        self._batch: Batch | None = None
        self._check_memory(reserved)
        self._allocate()

    def _check_memory(self, reserved: int) -> None:
        """Refuse a ring that free memory cannot hold, besides the bytes reserved for others."""

        def largest(usable: int) -> str:
            fit = most_that_fit(self.spec, self.layout, self.copies, self.capacity_per_copy, usable) * self.copies
            if fit == 0:
                return f"not even one transition for each copy fits ({counted(self.copies, 'copy', 'copies')})"
            return f"the largest capacity that fits is {counted(fit, 'transition')}"

        needed = ring_bytes(self.spec, self.layout, self.copies, self.capacity_per_copy)
        check_fits(f"A ring for {counted(self.capacity, 'transition')}", needed, largest, reserved)

    def _allocate(self) -> None:
        """Reserve the rows; pages of memory are taken only when they are written."""
        rows, layout = rows_needed(self.spec, self.capacity_per_copy), self.layout
        self._words = np.zeros((self.copies, rows, layout.words), np.uint32)  # (E, R, W)
        self._head = np.zeros(self.copies, np.int64)  # (E,)  the open row
        words = self._words.reshape(-1, layout.words)
        self._store = Store(
            floats=words.view(np.float32),
            halves=words.view(np.uint16),
            start=np.zeros((self.copies, self.capacity_per_copy), np.int64),
            rows=rows,
            agents=layout.agents,
            size=layout.agents * layout.observation_size,
            actions=layout.agents * layout.action_size,
            kind=layout.kind,
        )

    @property
    def capacity(self) -> int:
        """The most transitions held at a time, all copies together."""
        return self.capacity_per_copy * self.copies

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: what everyone saw and did at one step."""
        return 4 * self.layout.words

    @property
    def nbytes(self) -> int:
        """Bytes of all rows and of the table of where transitions start."""
        return self._words.nbytes + self._store.start.nbytes

    @property
    def sample_nbytes(self) -> int:
        """Bytes of the mini-batches that were sampled last; they are kept for the next."""
        return 0 if self._batch is None else sum(array.nbytes for array in self._batch if array is not None)

    def __len__(self) -> int:
        """Live transitions of all copies."""
        return (self.added - self.oldest) * self.copies

    # ---- adding ------------------------------------------------------------------------------------------------------

    def begin(self, observation: ArrayLike) -> None:
        """Take the first observation of the run (E, N, O)."""
        if self.added:
            raise UserError("The ring has begun already: begin() takes the first observation of a run only.")
        first = self._checked("observation", observation, np.float32, self._shape(self.spec.observation_size))
        self._check_storable(first)
        gather.write_first(self._store, first)
        self._begun = True

    def add(self, actions: ArrayLike, step: Step) -> None:
        """Add one transition to every copy: the actions (E, N, A) as played and what came of them."""
        if not self._begun:
            raise UserError("The ring has no first observation yet: call begin() with it before add().")
        self._check_whole()
        checked, agents = self._checked, self._shape()
        seen = self._shape(self.spec.observation_size)
        observation = checked("step.observation", step.observation, np.float32, seen)
        final_observation = checked("step.final_observation", step.final_observation, np.float32, seen)
        self._check_storable(observation)
        self._check_storable(final_observation)
        oldest = max(self.oldest, self.added + 1 - self.capacity_per_copy)
        if not gather.write_step(
            self._store,
            self._head,
            oldest,
            self.added,
            checked("actions", actions, np.float32, self._shape(self.spec.action_size)),
            observation,
            final_observation,
            checked("step.reward", step.reward, np.float32, agents),
            checked("step.terminated", step.terminated, np.bool_, agents),
            checked("step.alive", step.alive, np.bool_, agents),
            checked("step.ended", step.ended, np.bool_, (self.copies,)),
        ):
            raise RuntimeError(
                f"{self.spec.name} promised episodes of {self.spec.episode_length} steps, but ended one early"
            )
        self.oldest = oldest
        self.added += 1
        self._loaded = self.added

    def _shape(self, *size: int) -> tuple[int, ...]:
        """(E, N) and what follows."""
        return (self.copies, self.spec.agents, *size)

    def _checked(self, what: str, value: ArrayLike, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray:
        """The value as the contiguous array the loops expect."""
        array = np.ascontiguousarray(value, dtype)
        if array.shape != shape:
            raise UserError(f"{what} has shape {array.shape}, but the ring of {self.spec.name} takes {shape}.")
        return array

    def _check_storable(self, observation: NDArray[np.float32]) -> None:
        """Refuse what 16 bits would turn into infinity."""
        if self.layout.kind == 0:
            return
        position = first_beyond(observation, BOUNDS[self.layout.kind])
        if position >= 0:
            copy, agent, _ = np.unravel_index(position, observation.shape)
            raise UserError(
                f"An observation of {self.spec.agent_names[agent]} in copy {copy} is {observation.flat[position]:g}, "
                f"which {self.layout.storage} cannot hold; choose storage float32."
            )

    # ---- sampling ----------------------------------------------------------------------------------------------------

    def sample(
        self,
        sampler: Sampler,
        batch: int,
        rng: np.random.Generator,
        minibatches: int = 1,
        n_step: int = 1,
        discount: float = 1.0,
    ) -> Batch:
        """Draw mini-batches of `batch` transitions: one that all agents share, or N independent ones.

        For `n_step` and `discount` see `gather`.
        """
        check_range("batch", batch, 1)
        check_range("minibatches", minibatches, 1)
        if not can_sample(self, sampler):
            raise UserError(
                f"Every copy in the ring holds {counted(self.added - self.oldest, 'transition')}, "
                f"but {sampler} needs at least {sampler.needs} to draw from."
            )
        return self._gathered(*sampler.draw(self, minibatches, batch, rng), n_step, discount)

    def gather(self, copies: ArrayLike, transitions: ArrayLike, n_step: int = 1, discount: float = 1.0) -> Batch:
        """The live transitions of these copies (M, B) and numbers (M, B).

        With an `n_step` above 1 their returns: rewards of up to so many steps, discounted and added, and the
        observation after the last. A return is shorter where the episode or the history ends, and where an agent leaves
        without a true end; an agent's own ends at its true end.
        """
        chosen, numbers = np.ascontiguousarray(copies, np.int64), np.ascontiguousarray(transitions, np.int64)
        if chosen.ndim != 2 or chosen.shape != numbers.shape or chosen.size == 0:
            raise UserError(
                f"copies has shape {chosen.shape} and transitions {numbers.shape}, but both must be (M, B), not empty."
            )
        if chosen.min() < 0 or chosen.max() >= self.copies:
            raise UserError(f"A copy to gather is not in the ring: they must be from 0 to {self.copies - 1}.")
        if numbers.min() < self.oldest or numbers.max() >= self.added:
            raise UserError(
                f"A transition to gather is not in the ring: the live ones are {self.oldest} to {self.added - 1}."
            )
        return self._gathered(chosen, numbers, n_step, discount)

    def _gathered(
        self, copies: NDArray[np.int64], transitions: NDArray[np.int64], n_step: int, discount: float
    ) -> Batch:
        """Fill the mini-batches."""
        self._check_whole()
        check_range("n_step", n_step, 1)
        batch = self._arrays(copies.shape[0], copies.shape[1], n_step > 1)._replace(
            copies=copies, transitions=transitions
        )
        flat = self._flat._replace(copies=copies.ravel(), transitions=transitions.ravel())
        if n_step > 1:
            added = np.full(self.copies, self.added)
            gather.gather_returns(self._store, added, n_step, float(discount), self._at, self._after, flat)
            return batch
        fill = gather.gather_parallel if gathered_in_parallel(batch) else gather.gather_serial
        fill(self._store, self._at, self._after, flat)
        return batch

    def _arrays(self, minibatches: int, batch: int, several_steps: bool) -> Batch:
        """The mini-batches' arrays, kept from one call to the next while the shape stays."""
        if (
            self._batch is None
            or self._batch.copies.shape != (minibatches, batch)
            or (self._batch.steps is not None) != several_steps
        ):
            self._batch = None  # the old ones go first: both may not fit
            each = minibatches * self.layout.sample_bytes
            check_fits(
                f"A sample of {minibatches} × {batch:,} transitions",
                batch * each,
                lambda usable: f"the largest batch that fits is {usable // each:,}",
            )
            self._batch = empty_batch(self.layout, minibatches, batch, several_steps)
            rows = minibatches * batch
            self._flat = Batch(
                *(None if array is None else array.reshape(rows, *array.shape[2:]) for array in self._batch)  # type: ignore[arg-type]
            )
            self._at = np.empty(minibatches * batch, np.int64)  # (M·B,)  addresses of the rows
            self._after = np.empty(minibatches * batch, np.int64)  # (M·B,)  and of those that follow them
        return self._batch

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """All but the rows of transitions, which `segment` gives: small arrays for a checkpoint."""
        self._check_whole()
        if not self._begun:
            raise RuntimeError("a ring that has not begun has no state to save")
        return {
            "layout": self.layout.numbers(),
            "window": np.array([self.oldest, self.added]),
            "tail": self._starts(self.oldest),
            "head": self._head.copy(),
            "open": self._words[self._open(self._head)],
        }

    def load_state(self, state: Mapping[str, NDArray]) -> None:
        """Take over a saved state; then load the segments that cover the live transitions, in ascending order.

        The saved ring may have had another capacity or limit, as long as its live transitions fit into this one.
        """
        layout = _taken(state, "layout", np.int64, (4,))
        if not np.array_equal(layout, self.layout.numbers()):
            raise UserError(
                f"The saved ring is for {describe(layout)}, but this one for {describe(self.layout.numbers())}."
            )
        oldest, added = (int(number) for number in _taken(state, "window", np.int64, (2,)))
        tail = _taken(state, "tail", np.int64, (self.copies,))
        head = _taken(state, "head", np.int64, (self.copies,))
        opened = _taken(state, "open", np.uint32, (self.copies, self.layout.observation_words))
        live, rows = added - oldest, head - tail
        if not (0 <= oldest <= added and np.all(tail >= 0) and np.all(rows >= live) and np.all(rows <= 2 * live)):
            raise UserError("The saved ring's numbers contradict each other: it is damaged.")
        if live > self.capacity_per_copy or np.any(rows >= self._store.rows):
            raise UserError(
                f"The saved ring holds {counted(live * self.copies, 'transition')}, but this one has room for "
                f"{self.capacity:,}: raise its capacity or its limit."
            )
        self.oldest, self.added, self._loaded = oldest, added, oldest
        self._loaded_rows = tail.copy()  # (E,)  the row number where transition `_loaded` starts
        self._head[:] = head
        self._words[self._open(head)] = opened
        self._begun = True

    def segment(self, first: int, last: int) -> dict[str, NDArray]:
        """Transitions first <= t < last of all copies: their rows with the dead ones between, and where they start.

        Segments that follow each other share nothing and leave nothing out: a row belongs to the transition that
        starts in it, a dead row to the one that ended there.
        """
        self._check_whole()
        if not self.oldest <= first < last <= self.added:
            raise UserError(
                f"A segment from {first} to {last} is not in the ring, which holds {self.oldest} to {self.added}."
            )
        begin, end = self._starts(first), self._starts(last)
        counts = end - begin
        rows = np.empty((counts.sum(), self.layout.words), np.uint32)
        position = 0
        for e in range(self.copies):
            for part in self._parts(begin[e], end[e]):
                size = part.stop - part.start
                rows[position : position + size] = self._words[e, part]
                position += size
        start = self._store.start[:, np.arange(first, last) % self.capacity_per_copy]
        return {"rows": rows, "counts": counts, "start": start}

    def load_segment(self, first: int, last: int, arrays: Mapping[str, NDArray]) -> None:
        """Take over what `segment` gave; transitions that are no longer live or are here already are skipped."""
        counts = _taken(arrays, "counts", np.int64, (self.copies,))
        start = _taken(arrays, "start", np.int64, (self.copies, last - first))
        rows = _taken(arrays, "rows", np.uint32, (int(counts.sum()), self.layout.words))
        if last <= self._loaded:
            return
        if first > self._loaded or last > self.added:
            raise UserError(
                f"The segment from {first} to {last} does not fit: the ring lacks {self._loaded} to {self.added}."
            )
        skipped = self._loaded - first
        end = start[:, 0] + counts
        steps = np.diff(start, axis=1, append=end[:, None])
        follows = np.all(start[:, skipped] == self._loaded_rows) and np.all((steps == 1) | (steps == 2))
        if not follows or (last == self.added and np.any(end != self._head)):
            raise UserError(f"The segment from {first} to {last} belongs to another run or is damaged.")
        position = 0
        for e in range(self.copies):
            source = position + start[e, skipped] - start[e, 0]
            for part in self._parts(start[e, skipped], end[e]):
                size = part.stop - part.start
                self._words[e, part] = rows[source : source + size]
                source += size
            position += counts[e]
        self._store.start[:, np.arange(self._loaded, last) % self.capacity_per_copy] = start[:, skipped:]
        self._loaded, self._loaded_rows = last, end

    def _starts(self, transition: int) -> NDArray[np.int64]:
        """(E,) row numbers where a live transition, or the one to come, starts."""
        if transition == self.added:
            return self._head.copy()
        return self._store.start[:, transition % self.capacity_per_copy].copy()

    def _open(self, head: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], slice]:
        """Index of the open rows' observations."""
        return np.arange(self.copies), head % self._store.rows, slice(self.layout.observation_words)

    def _parts(self, first: int, last: int) -> list[slice]:
        """Rows of a copy where row numbers first to last lie: one slice, or two around the end of the sub-ring."""
        low, count, rows = int(first) % self._store.rows, int(last - first), self._store.rows
        return [slice(low, min(low + count, rows)), slice(0, max(0, low + count - rows))]

    def _check_whole(self) -> None:
        """Refuse to work while segments are missing after `load_state`."""
        if self._loaded < self.added:
            raise UserError(f"The ring is not whole yet: load the segments of {self._loaded} to {self.added} first.")


def _taken(arrays: Mapping[str, NDArray], name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray:
    """The saved array of this name, if it is what it must be."""
    array = arrays.get(name)
    if array is None:
        raise UserError(f"The saved ring has no array '{name}': it is damaged.")
    if array.dtype != dtype or array.shape != shape:
        raise UserError(
            f"The saved ring's array '{name}' is {array.dtype} {array.shape}, but must be {np.dtype(dtype)} {shape}."
        )
    return array
