"""The replay ring: what all agents of E copies saw and did, observations kept once, oldest forgotten first.

Each copy counts its own transitions t (0, 1, 2, ... from the start of the run); its live ones are oldest <= t < added.
Copies that one process steps together have equal counts (`add`); chunks of some copies may also come at their own pace
(`add_chunk`). Every copy writes its own sub-ring of R rows:

    row      4          5          6 (dead)     7          8 (open)
    holds    obs, act   obs, act   last obs     obs, act   obs
    t        3          4          -            5          not yet

The next observation of a transition is the observation of the row after it. Where an episode ended, that row holds the
episode's last observation and starts no transition: it is dead. `start` says in which row each transition begins, so
drawing one takes no search and no rejection, and t + 1 follows t in time whatever rows lie between them. Row numbers
count from the start of the run; row number n lies in row n mod R.

Shape letters: E copies, L some of them, R rows a copy, W words a row, C transitions a copy, M mini-batches, B batch,
T time, N agents, O observation, A action, J joint.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shoal.envs.base import EnvSpec, Step
from shoal.errors import UserError, check_choice, check_range, counted
from shoal.memory import check_fits
from shoal.replay import gather
from shoal.replay.gather import Batch, Returns, Store, empty_batch, empty_returns
from shoal.replay.half import first_beyond
from shoal.replay.layout import BOUNDS, STORAGES, RowLayout, describe, most_that_fit, ring_bytes, rows_needed
from shoal.replay.samplers import Sampler, can_sample

PARALLEL_BYTES = 16_000_000
"""Mini-batches of fewer bytes are gathered by one thread: waking the others could take longer than they would save."""


def gathered_in_parallel(batch: Batch | Returns) -> bool:
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
        self.layout = RowLayout.of(spec, storage)
        self.capacity_per_copy = capacity // copies
        if limit is not None:
            check_range("limit", limit, 1)
            self.capacity_per_copy = min(self.capacity_per_copy, -(-limit // copies))
        self.added = np.zeros(copies, np.int64)
        """(E,) transitions added to each copy so far."""
        self.oldest = np.zeros(copies, np.int64)
        """(E,) the oldest live transition of each copy."""
        self._all = np.arange(copies)
        self._begun = False  # all copies have
        self._restarted = False  # there may be more dead rows than the world's episodes would make
        self._loading: _Loading | None = None
        self._batch: Batch | Returns | None = None
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
        self._head = np.full(self.copies, -1)  # (E,)  the open row; -1 in a copy that has not begun
        words = self._words.reshape(-1, layout.words)
        self.store = Store(
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
        return self._words.nbytes + self.store.start.nbytes

    @property
    def sample_nbytes(self) -> int:
        """Bytes of the mini-batches that were sampled last; they are kept for the next."""
        return 0 if self._batch is None else sum(array.nbytes for array in self._batch)

    def __len__(self) -> int:
        """Live transitions of all copies."""
        return int((self.added - self.oldest).sum())

    # ---- adding ------------------------------------------------------------------------------------------------------

    def begin(self, observation: ArrayLike, copies: ArrayLike | None = None) -> None:
        """Take the first observation of a run (E, N, O), or (L, N, O) of some copies (L,)."""
        chosen = self._all if copies is None else self._chosen(copies)
        if self.added[chosen].any():
            raise UserError("The ring has begun already: begin() takes the first observation of a run only.")
        shape = (chosen.size, self.spec.agents, self.spec.observation_size)
        first = self._checked("observation", observation, np.float32, shape)
        self._check_storable(first, chosen)
        gather.write_first(self.store, self._head, chosen, first)
        self._begun = bool(self._head.min() >= 0)

    def restart(self, observation: ArrayLike, copies: ArrayLike) -> None:
        """Take an observation (L, N, O) that does not follow from what these copies (L,) hold.

        The last transition of a copy whose episode had not ended keeps its next observation, in a row that is now dead.
        """
        chosen = self._chosen(copies)
        self._check_whole()
        shape = (chosen.size, self.spec.agents, self.spec.observation_size)
        first = self._checked("observation", observation, np.float32, shape)
        self._check_storable(first, chosen)
        while np.any(full := self._head[chosen] + 1 - self._starts(self.oldest)[chosen] >= self.store.rows):
            self.oldest[chosen[full]] += 1
        gather.write_restart(self.store, self._head, self.added, chosen, first)
        self._restarted = True
        self._begun = bool(self._head.min() >= 0)

    def add(self, actions: ArrayLike, step: Step) -> None:
        """Add one transition to every copy: the actions (E, N, A) as played and what came of them."""
        self._check_ready(self._all)
        self._write(self._all, *self._checked_step(actions, step, self._all, ()))

    def add_chunk(self, copies: ArrayLike, actions: ArrayLike, steps: Step) -> None:
        """Add T transitions to each of some copies (L,), which go at their own pace.

        Args:
            copies: Which copies, each at most once; row l of everything else is that of copies[l].
            actions: (T, L, N, A) as played.
            steps: What came of them: each array of a step with a leading axis T.
        """
        chosen = self._chosen(copies)
        self._check_ready(chosen)
        time = np.shape(actions)[:1]
        for moment in zip(*self._checked_step(actions, steps, chosen, time), strict=True):
            self._write(chosen, *moment)

    def _write(self, copies: NDArray[np.int64], *arrays: NDArray) -> None:
        """Add one transition to each of these copies."""
        while not gather.write_step(self.store, self._head, self.oldest, self.added, copies, *arrays):
            if not self._restarted:
                raise RuntimeError(
                    f"{self.spec.name} promised episodes of {self.spec.episode_length} steps, but ended one early"
                )
            self.oldest[copies] = np.minimum(self.oldest[copies] + 1, self.added[copies])

    def _chosen(self, copies: ArrayLike) -> NDArray[np.int64]:
        """Copies by number, if they are in the ring and each is named once."""
        chosen = np.ascontiguousarray(copies, np.int64)
        if chosen.ndim != 1 or np.unique(chosen).size != chosen.size or np.any((chosen < 0) | (chosen >= self.copies)):
            raise UserError(
                f"copies is {chosen.tolist()}, but must be a list of numbers from 0 to {self.copies - 1}, each once."
            )
        return chosen

    def _check_ready(self, copies: NDArray[np.int64]) -> None:
        """Refuse a step in a copy that has no first observation."""
        if not self._begun and np.any(self._head[copies] < 0):
            raise UserError("The ring has no first observation yet: call begin() with it before add().")
        self._check_whole()

    def _checked_step(
        self, actions: ArrayLike, step: Step, copies: NDArray[np.int64], time: tuple[int, ...]
    ) -> tuple[NDArray, ...]:
        """What `write_step` takes of a step of these copies, or of a chunk with a leading time axis."""
        checked, agents = self._checked, (*time, copies.size, self.spec.agents)
        seen = (*agents, self.spec.observation_size)
        observation = checked("step.observation", step.observation, np.float32, seen)
        final_observation = checked("step.final_observation", step.final_observation, np.float32, seen)
        self._check_storable(observation, copies)
        self._check_storable(final_observation, copies)
        return (
            checked("actions", actions, np.float32, (*agents, self.spec.action_size)),
            observation,
            final_observation,
            checked("step.reward", step.reward, np.float32, agents),
            checked("step.terminated", step.terminated, np.bool_, agents),
            checked("step.alive", step.alive, np.bool_, agents),
            checked("step.ended", step.ended, np.bool_, agents[:-1]),
        )

    def _checked(self, what: str, value: ArrayLike, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray:
        """The value as the contiguous array the loops expect."""
        array = np.ascontiguousarray(value, dtype)
        if array.shape != shape:
            raise UserError(f"{what} has shape {array.shape}, but the ring of {self.spec.name} takes {shape}.")
        return array

    def _check_storable(self, observation: NDArray[np.float32], copies: NDArray[np.int64]) -> None:
        """Refuse what 16 bits would turn into infinity; the observations are those of these copies."""
        if self.layout.kind == 0:
            return
        position = first_beyond(observation, BOUNDS[self.layout.kind])
        if position >= 0:
            *_, place, agent, _ = np.unravel_index(position, observation.shape)
            value = observation.flat[position]
            raise UserError(
                f"An observation of {self.spec.agent_names[agent]} in copy {copies[place]} is {value:g}, which "
                f"{self.layout.storage} cannot hold; choose storage float32."
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
    ) -> Batch | Returns:
        """Draw mini-batches of `batch` transitions: one that all agents share, or N independent ones.

        For `n_step` and `discount` see `gather`.
        """
        check_range("batch", batch, 1)
        check_range("minibatches", minibatches, 1)
        if not can_sample(self, sampler):
            raise UserError(
                f"No copy in the ring holds more than {counted(int((self.added - self.oldest).max()), 'transition')}, "
                f"but {sampler} needs at least {sampler.needs} to draw from."
            )
        return self._gathered(*sampler.draw(self, minibatches, batch, rng), n_step, discount)

    def gather(
        self, copies: ArrayLike, transitions: ArrayLike, n_step: int = 1, discount: float = 1.0
    ) -> Batch | Returns:
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
        if np.any(missing := (numbers < self.oldest[chosen]) | (numbers >= self.added[chosen])):
            copy = chosen[missing][0]
            raise UserError(
                f"A transition to gather is not in the ring: of copy {copy} the live ones are {self.oldest[copy]} to "
                f"{self.added[copy] - 1}."
            )
        return self._gathered(chosen, numbers, n_step, discount)

    def _gathered(
        self, copies: NDArray[np.int64], transitions: NDArray[np.int64], n_step: int, discount: float
    ) -> Batch | Returns:
        """Fill the mini-batches."""
        self._check_whole()
        check_range("n_step", n_step, 1)
        kind = Batch if n_step == 1 else Returns
        batch = self._arrays(kind, *copies.shape)._replace(copies=copies, transitions=transitions)
        flat = self._flat._replace(copies=copies.ravel(), transitions=transitions.ravel())
        if isinstance(flat, Returns):
            gather.gather_returns(self.store, self.added, n_step, float(discount), self.rows_at, self.rows_after, flat)
        elif gathered_in_parallel(batch):
            gather.gather_parallel(self.store, self.rows_at, self.rows_after, flat)
        else:
            gather.gather_serial(self.store, self.rows_at, self.rows_after, flat)
        return batch

    def _arrays(self, kind: type[Batch] | type[Returns], minibatches: int, batch: int) -> Batch | Returns:
        """The mini-batches' arrays, kept from one call to the next while kind and shape stay."""
        if not isinstance(self._batch, kind) or self._batch.copies.shape != (minibatches, batch):
            self._batch = None  # the old ones go first: both may not fit
            each = minibatches * self.layout.sample_bytes
            check_fits(
                f"A sample of {minibatches} × {batch:,} transitions",
                batch * each,
                lambda usable: f"the largest batch that fits is {usable // each:,}",
            )
            rows, empty = minibatches * batch, empty_batch if kind is Batch else empty_returns
            self._batch = empty(self.layout, minibatches, batch)
            self._flat = kind(*(array.reshape(rows, *array.shape[2:]) for array in self._batch))  # type: ignore[arg-type]
            self.rows_at = np.empty(rows, np.int64)  # (M·B,)  addresses of the rows
            self.rows_after = np.empty(rows, np.int64)  # (M·B,)  and of those that follow them
        return self._batch

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """All but the rows of transitions, which `segment` gives: small arrays for a checkpoint.

        `window` is (2,), the oldest and the next transition, or (2, E) where the copies differ. A ring with restarts
        has `after`: where the newest transition is followed by a dead row, the observation in it.
        """
        self._check_whole()
        window = np.stack([self.oldest, self.added])
        state = {
            "layout": self.layout.numbers(),
            "window": window[:, 0] if np.all(window == window[:, :1]) else window,
            "tail": self._starts(self.oldest),
            "head": self._head.copy(),
            "open": self._words[self._observations(self._head)],
        }
        if self._restarted:
            state["after"] = self._dead_after(self.added - 1)
        return state

    def load_state(self, state: Mapping[str, NDArray]) -> None:
        """Take over a saved state; then load the segments that cover the live transitions, in ascending order.

        The saved ring may have had another capacity or limit, as long as its live transitions fit into this one.
        """
        layout = _taken(state, "layout", np.int64, (4,))
        if not np.array_equal(layout, self.layout.numbers()):
            raise UserError(
                f"The saved ring is for {describe(layout)}, but this one for {describe(self.layout.numbers())}."
            )
        window = _taken(state, "window", np.int64, (2,), (2, self.copies))
        tail = _taken(state, "tail", np.int64, (self.copies,))
        head = _taken(state, "head", np.int64, (self.copies,))
        opened = _taken(state, "open", np.uint32, (self.copies, self.layout.observation_words))
        oldest, added = np.broadcast_to(window.reshape(2, -1), (2, self.copies))
        live, rows = added - oldest, head - tail
        begun = (tail >= 0) | ((tail == -1) & (head == -1))
        if not np.all((oldest >= 0) & (live >= 0) & begun & (rows >= live) & (rows <= 2 * live)):
            raise UserError("The saved ring's numbers contradict each other: it is damaged.")
        if np.any(live > self.capacity_per_copy) or np.any(rows >= self.store.rows):
            raise UserError(
                f"The saved ring holds {counted(int(live.sum()), 'transition')}, but this one has room for "
                f"{self.capacity:,}: raise its capacity or its limit."
            )
        self.oldest[:], self.added[:], self._head[:] = oldest, added, head
        self._words[self._observations(head)] = opened
        if "after" in state:
            after = _taken(state, "after", np.uint32, opened.shape)
            for e in np.flatnonzero(live):
                self._write_dead(e, head[e] - 1, after[e])
        self._restarted = "after" in state
        self._begun = bool(head.min() >= 0)
        self._loading = _Loading(oldest.copy(), tail.copy(), self._restarted) if live.any() else None

    def segment(self, first: ArrayLike, last: ArrayLike) -> dict[str, NDArray]:
        """Transitions first <= t < last: their rows with the dead ones between, and where they start.

        Segments that follow each other share nothing and leave nothing out: a row belongs to the transition that
        starts in it, a dead row to the one that ended there. Only a row that died in a restart after the segment
        before was saved is not in that one's rows, hence `before`.

        Args:
            first: One number for all copies, or one per copy.
            last: Likewise; where it equals `first`, the segment holds nothing of that copy.

        Returns:
            `rows` of all copies one after the other, `counts` (E,) of them, and `start`: the row numbers, (E, T), or
            flat where the copies' lengths differ. Of a ring with restarts also `before`: where a dead row precedes
            `first`, the observation in it.
        """
        self._check_whole()
        low, high = self._per_copy(first), self._per_copy(last)
        lengths = high - low
        if np.any((low < self.oldest) | (lengths < 0) | (high > self.added)) or not lengths.any():
            raise UserError(
                f"A segment from {one_or_each(low)} to {one_or_each(high)} is not in the ring, which holds "
                f"{one_or_each(self.oldest)} to {one_or_each(self.added)}."
            )
        begin, end = self._starts(low), self._starts(high)
        counts = end - begin
        rows = np.empty((counts.sum(), self.layout.words), np.uint32)
        position = 0
        for e in range(self.copies):
            for part in self._parts(begin[e], end[e]):
                size = part.stop - part.start
                rows[position : position + size] = self._words[e, part]
                position += size
        offsets = np.cumsum(lengths) - lengths
        numbers = np.arange(lengths.sum()) + np.repeat(low - offsets, lengths)
        start = self.store.start[np.repeat(self._all, lengths), numbers % self.capacity_per_copy]
        arrays = {"rows": rows, "counts": counts, "start": start.reshape(self._start_shape(lengths))}
        if self._restarted:
            arrays["before"] = self._dead_after(low - 1)
        return arrays

    def load_segment(self, first: ArrayLike, last: ArrayLike, arrays: Mapping[str, NDArray]) -> None:
        """Take over what `segment` gave; transitions that are no longer live or are here already are skipped.

        Earlier versions of Shoal had no `before`: a row that died in a restart right after a checkpoint was in no
        segment. The transition before it is left out, because its next observation is not known.
        """
        low, high = self._per_copy(first), self._per_copy(last)
        lengths = high - low
        counts = _taken(arrays, "counts", np.int64, (self.copies,))
        start = _taken(arrays, "start", np.int64, self._start_shape(lengths)).reshape(-1)
        rows = _taken(arrays, "rows", np.uint32, (int(counts.sum()), self.layout.words))
        before = arrays.get("before")
        if before is not None:
            before = _taken(arrays, "before", np.uint32, (self.copies, self.layout.observation_words))
        loaded = self._loading or _Loading(self.added, self._head, False)
        new = (lengths > 0) & (high > loaded.transitions)
        if np.any(new & (low > loaded.transitions)) or np.any(high > self.added):
            raise UserError(
                f"The segment from {one_or_each(low)} to {one_or_each(high)} does not fit: the ring lacks "
                f"{one_or_each(loaded.transitions)} to {one_or_each(self.added)}."
            )
        offsets, positions = np.cumsum(lengths) - lengths, np.cumsum(counts) - counts
        starts = {e: start[offsets[e] : offsets[e] + lengths[e]] for e in np.flatnonzero(new)}
        for e, own in starts.items():
            end = own[0] + counts[e]
            steps = np.diff(own, append=end)
            skipped, missing = loaded.transitions[e] - low[e], own[loaded.transitions[e] - low[e]] - loaded.rows[e]
            follows = missing == 0 or (missing == 1 and skipped == 0 and self._ends_open(e, loaded))
            beyond = self._head[e] - end if high[e] == self.added[e] else 0
            ends = beyond == 0 or (beyond == 1 and steps[-1] == 1 and loaded.after)
            if not (follows and ends and np.all((steps == 1) | (steps == 2))):
                raise UserError(
                    f"The segment from {one_or_each(low)} to {one_or_each(high)} belongs to another run or is damaged."
                )
        for e, own in starts.items():
            skipped, end = loaded.transitions[e] - low[e], own[0] + counts[e]
            if own[skipped] != loaded.rows[e]:
                if before is None:
                    self._leave_out(e, loaded)
                else:
                    self._write_dead(e, loaded.rows[e], before[e])
            source = positions[e] + own[skipped] - own[0]
            for part in self._parts(own[skipped], end):
                size = part.stop - part.start
                self._words[e, part] = rows[source : source + size]
                source += size
            numbers = np.arange(loaded.transitions[e], high[e])
            self.store.start[e, numbers % self.capacity_per_copy] = own[skipped:]
            loaded.transitions[e], loaded.rows[e] = high[e], end
        if np.array_equal(loaded.transitions, self.added):
            self._loading = None

    def _per_copy(self, numbers: ArrayLike) -> NDArray[np.int64]:
        """(E,) of one number for all copies, or of one per copy."""
        return np.broadcast_to(np.asarray(numbers, np.int64), (self.copies,))

    def _start_shape(self, lengths: NDArray[np.int64]) -> tuple[int, ...]:
        """The shape in which a segment with these lengths keeps where transitions start."""
        equal = np.all(lengths == lengths[0])
        return (self.copies, int(lengths[0])) if equal else (int(lengths.sum()),)

    def _starts(self, transitions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(E,) row numbers where a live transition of each copy, or the one to come, starts."""
        start = self.store.start[self._all, transitions % self.capacity_per_copy]
        return np.where(transitions == self.added, self._head, start)

    def _observations(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], slice]:
        """Index of the observations in a row (E,) of each copy."""
        return self._all, rows % self.store.rows, slice(self.layout.observation_words)

    def _dead_after(self, transitions: NDArray[np.int64]) -> NDArray[np.uint32]:
        """(E, words): what was seen after these transitions (E,) where a dead row holds it, else zeros."""
        row = self._starts(transitions) + 1
        dead = (transitions >= self.oldest) & (transitions < self.added) & (self._starts(transitions + 1) == row + 1)
        return np.where(dead[:, None], self._words[self._observations(row)], np.uint32(0))

    def _write_dead(self, copy: int, row: int, observation: NDArray[np.uint32]) -> None:
        """Put an observation, as it is stored, into a row that starts no transition."""
        self._words[copy, row % self.store.rows] = 0
        self._words[copy, row % self.store.rows, : observation.size] = observation

    def _ends_open(self, copy: int, loaded: "_Loading") -> bool:
        """Whether something is loaded whose newest transition is not followed by a dead row yet."""
        newest = loaded.transitions[copy] - 1
        row = self.store.start[copy, newest % self.capacity_per_copy]
        return bool(newest >= self.oldest[copy] and row == loaded.rows[copy] - 1)

    def _leave_out(self, copy: int, loaded: "_Loading") -> None:
        """Remove the newest transition that is loaded; the rows and numbers of those before it move up."""
        start, capacity = self.store.start[copy], self.capacity_per_copy
        numbers = np.arange(self.oldest[copy], loaded.transitions[copy] - 1)
        if numbers.size:
            end = start[numbers[-1] % capacity] + 2  # of the rows that these need
            rows = np.arange(start[numbers[0] % capacity], end)
            moved = loaded.rows[copy] + 1 - end
            self._words[copy, (rows + moved) % self.store.rows] = self._words[copy, rows % self.store.rows]
            self._words[copy, (end - 1 + moved) % self.store.rows, self.layout.observation_words :] = 0
            start[(numbers + 1) % capacity] = start[numbers % capacity] + moved
        self.oldest[copy] += 1
        self._restarted = True

    def _parts(self, first: int, last: int) -> list[slice]:
        """Rows of a copy where row numbers first to last lie: one slice, or two around the end of the sub-ring."""
        low, count, rows = int(first) % self.store.rows, int(last - first), self.store.rows
        return [slice(low, min(low + count, rows)), slice(0, max(0, low + count - rows))]

    def _check_whole(self) -> None:
        """Refuse to work while segments are missing after `load_state`."""
        if self._loading is not None:
            raise UserError(
                f"The ring is not whole yet: load the segments of {one_or_each(self._loading.transitions)} to "
                f"{one_or_each(self.added)} first."
            )


class _Loading(NamedTuple):
    """How far a ring is loaded that has its state, but not yet all of its segments."""

    transitions: NDArray[np.int64]  # (E,)  live ones below this number are in their rows
    rows: NDArray[np.int64]  # (E,)  the row number where that transition starts, unless the row is dead
    after: bool  # the state had what follows the newest transitions, should that be a dead row


def one_or_each(numbers: NDArray[np.int64]) -> int | list[int]:
    """The number that all copies have in common, or all of their numbers (E,)."""
    each = np.atleast_1d(numbers).tolist()
    return each[0] if each.count(each[0]) == len(each) else each


def _taken(arrays: Mapping[str, NDArray], name: str, dtype: DTypeLike, *shapes: tuple[int, ...]) -> NDArray:
    """The saved array of this name, if it is what it must be."""
    array = arrays.get(name)
    if array is None:
        raise UserError(f"The saved ring has no array '{name}': it is damaged.")
    if array.dtype != dtype or array.shape not in shapes:
        raise UserError(
            f"The saved ring's array '{name}' is {array.dtype} {array.shape}, but must be {np.dtype(dtype)} "
            f"{shapes[0]}."
        )
    return array
