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

from bisect import bisect_right
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shoal.envs.base import EnvSpec, Step
from shoal.errors import UserError, check_choice, check_range, counted
from shoal.replay import gather
from shoal.replay.gather import Batch, Returns, empty_batch, empty_returns
from shoal.replay.half import first_beyond
from shoal.replay.layout import BOUNDS, STORAGES, RowLayout, ring_bytes, rows_needed
from shoal.replay.samplers import Sampler, can_sample
from shoal.replay.saved import SavedRing
from shoal.system.memory import check_fits

KEPT = 3  # kinds and sizes of mini-batches whose arrays are reused: one for updates, two for diagnoses
PARALLEL_BYTES = 16_000_000
"""Mini-batches of fewer bytes are gathered by one thread: waking the others could take longer than they would save."""


def gathered_in_parallel(batch: Batch | Returns) -> bool:
    """Whether mini-batches of this size are gathered by all threads."""
    return batch.joint.nbytes + batch.next_joint.nbytes >= PARALLEL_BYTES


class Ring(SavedRing):
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
        each = capacity // copies
        if limit is not None:
            check_range("limit", limit, 1)
            each = min(each, -(-limit // copies))
        layout = RowLayout.of(spec, storage)
        needed = partial(ring_bytes, spec, layout, copies)

        def largest(usable: int) -> str:
            fit = bisect_right(range(1, each + 1), usable, key=needed) * copies
            if fit == 0:
                return f"not even one transition for each copy fits ({counted(copies, 'copy', 'copies')})"
            return f"the largest capacity that fits is {counted(fit, 'transition')}"

        check_fits(f"A ring for {counted(each * copies, 'transition')}", needed(each), largest, reserved)
        super().__init__(layout, copies, each, rows_needed(spec, each))
        self.spec = spec
        self._kept: dict[Any, tuple[Batch | Returns, Batch | Returns, NDArray[np.int64], NDArray[np.int64]]] = {}

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
        return sum(array.nbytes for batch, *_ in self._kept.values() for array in batch)

    def __len__(self) -> int:
        """Live transitions of all copies."""
        return int((self.added - self.oldest).sum())

    # ---- adding ------------------------------------------------------------------------------------------------------

    def begin(self, observation: ArrayLike, copies: ArrayLike | None = None) -> None:
        """Take the first observation of a run (E, N, O), or (L, N, O) of some copies (L,)."""
        chosen = self._all if copies is None else self._chosen(copies)
        if self.added[chosen].any():
            raise UserError("The ring has begun already: begin() takes the first observation of a run only.")
        self._continue_with(self._seen(observation, chosen), chosen)

    def restart(self, observation: ArrayLike, copies: ArrayLike) -> None:
        """Take an observation (L, N, O) that does not follow from what these copies (L,) hold.

        The last transition of a copy whose episode had not ended keeps its next observation, in a row that is now dead.
        """
        chosen = self._chosen(copies)
        self._check_whole()
        first = self._seen(observation, chosen)
        while np.any(full := self._head[chosen] + 1 - self._starts(self.oldest)[chosen] >= self.store.rows):
            self.oldest[chosen[full]] += 1
        self._continue_with(first, chosen)
        self._restarted = True

    def add(self, actions: ArrayLike, step: Step) -> None:
        """Add one transition to every copy: the actions (E, N, A) as played and what came of them."""
        self._check_ready(self._all)
        self._write(self._all, *self._checked_step(actions, step, self._all, ()))

    def add_chunk(self, copies: ArrayLike, actions: ArrayLike, steps: Step) -> None:
        """Add T transitions to each of some copies (L,), which go at their own pace; each is named once.

        The actions (T, L, N, A) are as played; in what came of them each array of a step has a leading axis T.
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
            *_, ended = arrays
            for i in range(copies.size):  # only where there is no room
                one = slice(i, i + 1)
                if not gather.fits(self.store, self._head, self.oldest, self.added, copies[one], ended[one]):
                    self.oldest[copies[i]] += 1

    def _continue_with(self, observation: NDArray[np.float32], copies: NDArray[np.int64]) -> None:
        """These copies act next on these observations."""
        gather.write_restart(self.store, self._head, self.added, copies, observation)
        self._begun = bool(self._head.min() >= 0)

    def _seen(self, observation: ArrayLike, copies: NDArray[np.int64]) -> NDArray[np.float32]:
        """(L, N, O): what these copies see before they act."""
        shape = (copies.size, self.spec.agents, self.spec.observation_size)
        return self._checked_observation("observation", observation, copies, shape)

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
        observed = (*agents, self.spec.observation_size)
        return (
            checked("actions", actions, np.float32, (*agents, self.spec.action_size)),
            self._checked_observation("step.observation", step.observation, copies, observed),
            self._checked_observation("step.final_observation", step.final_observation, copies, observed),
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

    def _checked_observation(
        self, what: str, value: ArrayLike, copies: NDArray[np.int64], shape: tuple[int, ...]
    ) -> NDArray[np.float32]:
        """The same of observations of these copies; refuses what 16 bits would turn into infinity."""
        observation = self._checked(what, value, np.float32, shape)
        if self.layout.kind and (position := first_beyond(observation, BOUNDS[self.layout.storage])) >= 0:
            *_, place, agent, _ = np.unravel_index(position, shape)
            raise UserError(
                f"An observation of {self.spec.agent_names[agent]} in copy {copies[place]} is "
                f"{observation.flat[position]:g}, which {self.layout.storage} cannot hold; choose storage float32."
            )
        return observation

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
        """The mini-batches' arrays, kept from one call to the next of the same kind and shape."""
        if (kind, minibatches, batch) not in self._kept:
            if len(self._kept) == KEPT:
                self._kept.clear()  # before new ones are made: both may not fit
            each = minibatches * self.layout.sample_bytes
            check_fits(
                f"A sample of {minibatches} × {batch:,} transitions",
                batch * each,
                lambda usable: f"the largest batch that fits is {usable // each:,}",
            )
            rows, empty = minibatches * batch, empty_batch if kind is Batch else empty_returns
            made = empty(self.layout, minibatches, batch)
            flat = kind(*(array.reshape(rows, *array.shape[2:]) for array in made))  # type: ignore[arg-type]
            self._kept[kind, minibatches, batch] = made, flat, np.empty(rows, np.int64), np.empty(rows, np.int64)
        arrays, self._flat, self.rows_at, self.rows_after = self._kept[kind, minibatches, batch]
        return arrays
