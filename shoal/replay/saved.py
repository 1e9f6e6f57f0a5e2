"""The replay ring in checkpoints: its state, and its transitions in segments that checkpoints share.

How rows follow each other is described in `ring.py`. Shape letters: E copies, T transitions of a segment.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shoal.errors import UserError, counted
from shoal.replay.gather import Store
from shoal.replay.layout import RowLayout, describe


class Loading(NamedTuple):
    """How far a ring is loaded that has its state, but not yet all of its segments."""

    transitions: NDArray[np.int64]  # (E,)  live ones below this number are in their rows
    rows: NDArray[np.int64]  # (E,)  the row number where that transition starts, unless the row is dead
    after: bool  # the state had what follows the newest transitions, should that be a dead row


class SavedRing:
    """The memory of a ring, and how it is saved and loaded; `Ring` adds and samples."""

    def __init__(self, layout: RowLayout, copies: int, capacity_per_copy: int, rows: int) -> None:
        """Reserve R rows for each copy; pages of memory are taken only when they are written."""
        self.layout, self.copies, self.capacity_per_copy = layout, copies, capacity_per_copy
        self.added = np.zeros(copies, np.int64)
        """(E,) transitions added to each copy so far."""
        self.oldest = np.zeros(copies, np.int64)
        """(E,) the oldest live transition of each copy."""
        self._all = np.arange(copies)
        self._head = np.full(copies, -1)  # (E,)  the open row; -1 in a copy that has not begun
        self._begun = False  # all copies have
        self._restarted = False  # there may be more dead rows than the world's episodes would make
        self._loading: Loading | None = None
        self._words = np.zeros((copies, rows, layout.words), np.uint32)  # (E, R, W)
        words = self._words.reshape(-1, layout.words)
        self.store = Store(
            floats=words.view(np.float32),
            halves=words.view(np.uint16),
            start=np.zeros((copies, capacity_per_copy), np.int64),
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

    def state(self) -> dict[str, NDArray]:
        """All but the rows of transitions, which `segment` gives: small arrays for a checkpoint.

        `window` is (2,), the oldest and the next transition, or (2, E) where the copies differ. A ring with restarts
        has `after`: where the newest transition is followed by a dead row, the observation in it.
        """
        self._check_whole()
        window = np.stack([self.oldest, self.added])
        state: dict[str, NDArray] = {
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
        self._begun = bool(head.min() >= 0)
        self._restarted = "after" in state
        self._loading = Loading(oldest.copy(), tail.copy(), self._restarted) if live.any() else None

    def segment(self, first: ArrayLike, last: ArrayLike) -> dict[str, NDArray]:
        """Transitions first <= t < last: their rows with the dead ones between, and where they start.

        Segments that follow each other share nothing and leave nothing out: a row belongs to the transition that
        starts in it, a dead row to the one that ended there. Only a row that died in a restart after the segment
        before was saved is not in that one's rows, hence `before`.

        `first` and `last` are one number for all copies or one per copy; where they are equal, the segment holds
        nothing of that copy. It has the `rows` of all copies one after the other, `counts` (E,) of them, and `start`:
        the row numbers, (E, T), or flat where the copies' lengths differ. Of a ring with restarts also `before`: where
        a dead row precedes `first`, the observation in it.
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
        parts = [self._words[e, part] for e in range(self.copies) for part in self._parts(begin[e], end[e])]
        offsets = np.cumsum(lengths) - lengths
        numbers = np.arange(lengths.sum()) + np.repeat(low - offsets, lengths)
        start = self.store.start[np.repeat(self._all, lengths), numbers % self.capacity_per_copy]
        arrays = {
            "rows": np.concatenate(parts),
            "counts": end - begin,
            "start": start.reshape(self._start_shape(lengths)),
        }
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
        loaded = self._loading or Loading(self.added, self._head, False)
        new = (lengths > 0) & (high > loaded.transitions)
        if np.any(new & (low > loaded.transitions)) or np.any(high > self.added):
            raise UserError(
                f"The segment from {one_or_each(low)} to {one_or_each(high)} does not fit: the ring lacks "
                f"{one_or_each(loaded.transitions)} to {one_or_each(self.added)}."
            )
        offsets, positions = np.cumsum(lengths) - lengths, np.cumsum(counts) - counts
        starts = {e: start[offsets[e] : offsets[e] + lengths[e]] for e in np.flatnonzero(new)}
        for e, started in starts.items():
            end = started[0] + counts[e]
            steps = np.diff(started, append=end)
            skipped, missing = loaded.transitions[e] - low[e], started[loaded.transitions[e] - low[e]] - loaded.rows[e]
            newest = loaded.transitions[e] - 1
            row = self.store.start[e, newest % self.capacity_per_copy]
            ends_open = newest >= self.oldest[e] and row == loaded.rows[e] - 1  # no dead row follows what is loaded yet
            follows = missing == 0 or (missing == 1 and skipped == 0 and ends_open)
            beyond = self._head[e] - end if high[e] == self.added[e] else 0
            ends = beyond == 0 or (beyond == 1 and steps[-1] == 1 and loaded.after)
            if not (follows and ends and np.all((steps == 1) | (steps == 2))):
                raise UserError(
                    f"The segment from {one_or_each(low)} to {one_or_each(high)} belongs to another run or is damaged."
                )
        for e, started in starts.items():
            skipped, end = loaded.transitions[e] - low[e], started[0] + counts[e]
            if started[skipped] != loaded.rows[e]:
                if before is None:
                    self._leave_out(e, loaded)
                else:
                    self._write_dead(e, loaded.rows[e], before[e])
            source = rows[positions[e] + started[skipped] - started[0] : positions[e] + counts[e]]
            before_end, from_start = self._parts(started[skipped], end)
            kept = before_end.stop - before_end.start
            self._words[e, before_end], self._words[e, from_start] = source[:kept], source[kept:]
            numbers = np.arange(loaded.transitions[e], high[e])
            self.store.start[e, numbers % self.capacity_per_copy] = started[skipped:]
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

    def _write_dead(self, copy: np.integer, row: int, observation: NDArray[np.uint32]) -> None:
        """Put an observation, as it is stored, into a row that starts no transition."""
        self._words[copy, row % self.store.rows] = 0
        self._words[copy, row % self.store.rows, : observation.size] = observation

    def _leave_out(self, copy: np.integer, loaded: Loading) -> None:
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

    def _parts(self, first: int, last: int) -> tuple[slice, slice]:
        """Where row numbers first to last of a copy lie: up to the end of its sub-ring, and from its start on."""
        low, count, rows = int(first) % self.store.rows, int(last - first), self.store.rows
        return slice(low, min(low + count, rows)), slice(0, max(0, low + count - rows))

    def _check_whole(self) -> None:
        """Refuse to work while segments are missing after `load_state`."""
        if self._loading is not None:
            raise UserError(
                f"The ring is not whole yet: load the segments of {one_or_each(self._loading.transitions)} to "
                f"{one_or_each(self.added)} first."
            )


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
