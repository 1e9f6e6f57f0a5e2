"""The loops over the ring's rows: a step goes in, mini-batches come out.

Rows are as described in `layout.py`; how they follow each other is described in `ring.py`.

Shape letters: E copies, L some of them, R rows a copy, W words a row, C transitions a copy, M mini-batches, B batch,
N agents, O observation, A action, J joint.
"""

from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.replay.half import narrow_bfloat16, narrow_float16, widen_bfloat16, widen_float16
from shoal.replay.intrinsics import copy, prefetch
from shoal.replay.layout import RowLayout

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ALIVE, TERMINATED = 1, 2  # bits of an agent's flag

CHUNK = 32  # mini-batch rows that a thread takes at a time
AHEAD = 8  # rows between the one asked from memory and the one copied: without, a small team's rows take twice as long
LINE = 16  # words in a cache line
STREAM = 512  # words after which the processor has noticed that we read in order and fetches by itself


class Store(NamedTuple):
    """The ring's arrays as the loops see them: a row's address is copy · R + row."""

    floats: Floats  # (E·R, W)
    halves: Halves  # (E·R, 2W)  the same memory
    start: Ints  # (E, C)  the row number, counted from the start of the run, where transition t mod C starts
    rows: int  # R
    agents: int  # N
    size: int  # N·O, values in the observations of a row
    actions: int  # N·A
    kind: int  # position in STORAGES: float32, float16 or bfloat16


class Batch(NamedTuple):
    """M mini-batches of B transitions of all agents.

    The arrays belong to the ring, whose next sample overwrites them: copy what has to stay.
    """

    joint: Floats  # (M, B, J)  all agents' observations, then all agents' actions as played: a critic's input
    next_joint: Floats  # (M, B, J)  the observations that followed; where the actions go there are zeros to fill in
    reward: Floats  # (M, B, N)
    terminated: Bools  # (M, B, N)  nothing to bootstrap from
    alive: Bools  # (M, B, N)  the agent took part in this step
    copies: Ints  # (M, B)  where the transitions are from
    transitions: Ints  # (M, B)


class Returns(NamedTuple):
    """The same of returns of several steps: `next_joint` is what followed the last."""

    joint: Floats
    next_joint: Floats
    reward: Floats  # (M, B, N)  discounted and added
    terminated: Bools  # (M, B, N)  in one of the steps
    alive: Bools  # (M, B, N)  the agent took part in the first
    copies: Ints
    transitions: Ints
    steps: Ints  # (M, B)  how many
    next_alive: Bools  # (M, B, N)  the agent is there to act on the next observation


def empty_batch(layout: RowLayout, minibatches: int, batch: int) -> Batch:
    """Arrays for M × B transitions."""
    shape, agents, joint = (minibatches, batch), layout.agents, layout.joint_size
    return Batch(
        joint=np.zeros((*shape, joint), np.float32),
        next_joint=np.zeros((*shape, joint), np.float32),
        reward=np.zeros((*shape, agents), np.float32),
        terminated=np.zeros((*shape, agents), np.bool_),
        alive=np.zeros((*shape, agents), np.bool_),
        copies=np.zeros(shape, np.int64),
        transitions=np.zeros(shape, np.int64),
    )


def empty_returns(layout: RowLayout, minibatches: int, batch: int) -> Returns:
    """Arrays for M × B returns."""
    one_step = empty_batch(layout, minibatches, batch)
    return Returns(*one_step, np.zeros_like(one_step.copies), np.zeros_like(one_step.alive))


@njit(cache=True)
def columns(store: Store) -> tuple[int, int, int]:
    """Where in a row the actions, the rewards and the flags begin."""
    flags = store.floats.shape[1] - store.agents
    rewards = flags - store.agents
    return rewards - store.actions, rewards, flags


# ---- a step goes in -------------------------------------------------------------------------------------------------


@njit(cache=True)
def write_observation(store: Store, row: int, source: Floats, first: int) -> None:
    """Store source[first : first + N·O] as the observations of a row."""
    if store.kind == 0:
        for k in range(store.size):
            store.floats[row, k] = source[first + k]
    elif store.kind == 1:
        for k in range(store.size):
            store.halves[row, k] = narrow_float16(source[first + k])
    else:
        for k in range(store.size):
            store.halves[row, k] = narrow_bfloat16(source[first + k])


@njit(cache=True)
def write_restart(store: Store, head: Ints, added: Ints, copies: Ints, observation: Floats) -> None:
    """Store observations (L, N, O), the first or such that do not follow from what these copies (L,) hold."""
    flat, capacity, played = observation.ravel(), store.start.shape[1], columns(store)[0]
    for i in range(copies.size):
        e = copies[i]
        if head[e] < 0:
            head[e] = 0
        elif added[e] and head[e] == store.start[e, (added[e] - 1) % capacity] + 1:  # the newest transition looks there
            store.floats[e * store.rows + head[e] % store.rows, played:] = 0
            head[e] += 1
        write_observation(store, e * store.rows + head[e] % store.rows, flat, i * store.size)


@njit(cache=True)
def fits(store: Store, head: Ints, oldest: Ints, added: Ints, copies: Ints, ended: Bools) -> bool:
    """Whether one more transition in each of these copies leaves every row of the live ones alone."""
    capacity = store.start.shape[1]
    for i in range(copies.size):
        e = copies[i]
        first = max(oldest[e], added[e] + 1 - capacity)  # once it is in
        tail = head[e] if first == added[e] else store.start[e, first % capacity]
        if head[e] + 1 + ended[i] - tail >= store.rows:
            return False
    return True


@njit(cache=True)
def write_step(
    store: Store,
    head: Ints,  # (E,)  the row that holds the newest observation, counted from the start of the run
    oldest: Ints,  # (E,)
    added: Ints,  # (E,)
    copies: Ints,  # (L,)  those that made a step
    actions: Floats,  # (L, N, A)
    observation: Floats,  # (L, N, O)
    final_observation: Floats,  # (L, N, O)
    reward: Floats,  # (L, N)
    terminated: Bools,  # (L, N)
    alive: Bools,  # (L, N)
    ended: Bools,  # (L,)
) -> bool:
    """Store one more transition of each of these copies; False, and nothing done, where there is no room."""
    if not fits(store, head, oldest, added, copies, ended):
        return False
    floats, rows, agents, capacity = store.floats, store.rows, store.agents, store.start.shape[1]
    played, rewards, flags = columns(store)
    choices, first, final = actions.ravel(), observation.ravel(), final_observation.ravel()
    for i in range(copies.size):
        e = copies[i]
        row = e * rows + head[e] % rows
        store.start[e, added[e] % capacity] = head[e]
        for k in range(store.actions):
            floats[row, played + k] = choices[i * store.actions + k]
        for n in range(agents):
            floats[row, rewards + n] = reward[i, n]
            floats[row, flags + n] = ALIVE * alive[i, n] + TERMINATED * terminated[i, n]
        head[e] += 1
        row = e * rows + head[e] % rows
        write_observation(store, row, final, i * store.size)
        if ended[i]:  # that row starts no transition: the next episode begins in the one after it
            floats[row, played:] = 0
            head[e] += 1
            write_observation(store, e * rows + head[e] % rows, first, i * store.size)
        added[e] += 1
        oldest[e] = max(oldest[e], added[e] - capacity)
    return True


# ---- mini-batches come out ------------------------------------------------------------------------------------------


@njit(cache=True)
def locate(store: Store, copies: Ints, transitions: Ints, at: Ints, after: Ints) -> None:
    """Addresses of each drawn transition's row and of the row that holds its next observation; all are flat (M·B,)."""
    start, rows, capacity = store.start.ravel(), store.rows, store.start.shape[1]
    for i in range(copies.size):
        at[i] = copies[i] * capacity + transitions[i] % capacity
        prefetch(start, at[i])
    for i in range(copies.size):
        row = start[at[i]] % rows
        at[i] = copies[i] * rows + row
        after[i] = copies[i] * rows + (row + 1 if row + 1 < rows else 0)


@njit(cache=True)
def prefetch_rows(words: Floats, width: int, reach: int, at: Ints, low: int, high: int) -> None:
    """Ask memory for `reach` words from the start of each of these rows on."""
    for i in range(low, high):
        for k in range(0, min(reach, STREAM), LINE):
            prefetch(words, at[i] * width + k)


@njit(cache=True)
def gather_floats(store: Store, at: Ints, after: Ints, joint: Floats, next_joint: Floats, low: int, high: int) -> None:
    """Rows low to high of both joint vectors from float32 storage, where a joint vector is the front of a row.

    In a run of transitions that follow each other every row is asked from memory once: read as the next observation
    of one transition, it is still in the cache when it is the observation of the other.
    """
    size, width, total = store.size, store.floats.shape[1], joint.shape[1]
    words, ahead, target, next_target = store.floats.ravel(), width + size, joint.ravel(), next_joint.ravel()
    prefetch_rows(words, width, ahead, at, low, min(low + AHEAD, high))
    for i in range(low, high):
        prefetch_rows(words, width, ahead, at, i + AHEAD, min(i + AHEAD + 1, high))
        copy(target, i * total, words, at[i] * width, total)
        copy(next_target, i * total, words, after[i] * width, size)
        next_joint[i, size:] = 0


@njit(cache=True)
def widen_row(halves: Halves, row: int, size: int, kind: int, target: Floats, i: int) -> None:
    """target[i, :size] = the observations of a row."""
    if kind == 1:
        for k in range(size):
            target[i, k] = widen_float16(halves[row, k])
    else:
        for k in range(size):
            target[i, k] = widen_bfloat16(halves[row, k])


@njit(cache=True)
def gather_halves(store: Store, at: Ints, after: Ints, joint: Floats, next_joint: Floats, low: int, high: int) -> None:
    """Rows low to high of both joint vectors from 16-bit storage.

    Where one transition follows the other, the next observation of the first is the observation of the second, which
    is widened already: a run of k transitions widens k + 1 rows.
    """
    halves, size, kind, width, total = store.halves, store.size, store.kind, store.floats.shape[1], joint.shape[1]
    played = columns(store)[0]
    words, ahead, target, next_target = store.floats.ravel(), width + played, joint.ravel(), next_joint.ravel()
    prefetch_rows(words, width, ahead, at, low, min(low + AHEAD, high))
    for i in range(low, high):
        prefetch_rows(words, width, ahead, at, i + AHEAD, min(i + AHEAD + 1, high))
        widen_row(halves, at[i], size, kind, joint, i)
        copy(target, i * total + size, words, at[i] * width + played, total - size)
        next_joint[i, size:] = 0
        if i > low and at[i] == after[i - 1]:
            copy(next_target, (i - 1) * total, target, i * total, size)
        if i + 1 == high or at[i + 1] != after[i]:
            widen_row(halves, after[i], size, kind, next_joint, i)


@njit(cache=True)
def gather_chunk(store: Store, at: Ints, after: Ints, batch: Batch | Returns, chunk: int) -> None:
    """Fill one chunk of the mini-batches, given with M and B as one axis."""
    low, high = chunk * CHUNK, min(chunk * CHUNK + CHUNK, at.size)
    if store.kind == 0:
        gather_floats(store, at, after, batch.joint, batch.next_joint, low, high)
    else:
        gather_halves(store, at, after, batch.joint, batch.next_joint, low, high)
    _, rewards, flags = columns(store)
    for i in range(low, high):
        for n in range(store.agents):
            flag = int(store.floats[at[i], flags + n])
            batch.reward[i, n] = store.floats[at[i], rewards + n]
            batch.terminated[i, n] = flag & TERMINATED != 0
            batch.alive[i, n] = flag & ALIVE != 0


def _gather(store: Store, at: Ints, after: Ints, batch: Batch) -> None:
    """Find the rows of batch.copies and batch.transitions and fill the mini-batches."""
    locate(store, batch.copies, batch.transitions, at, after)
    for chunk in prange((at.size + CHUNK - 1) // CHUNK):
        gather_chunk(store, at, after, batch, chunk)


gather_serial = njit(cache=True)(_gather)  # in the calling thread
gather_parallel = njit(cache=True, parallel=True, key="parallel")(_gather)  # with all threads; the result is the same


# ---- returns of several steps ---------------------------------------------------------------------------------------


@njit(cache=True)
def goes_on(store: Store, added: Ints, e: int, t: int) -> bool:
    """Whether transition t + 1 of copy e continues what t began, for all agents that took part in t.

    It does not where t is the newest, where the episode ended (a dead row lies between), or where an agent left without
    a true end: such an agent bootstraps from the observation after t.
    """
    capacity, rows, flags = store.start.shape[1], store.rows, columns(store)[2]
    if t + 1 >= added[e]:
        return False
    row = store.start[e, t % capacity]
    if store.start[e, (t + 1) % capacity] != row + 1:
        return False
    here, there = e * rows + row % rows, e * rows + (row + 1) % rows
    for n in range(store.agents):
        left = not int(store.floats[there, flags + n]) & ALIVE
        if left and int(store.floats[here, flags + n]) == ALIVE:
            return False
    return True


@njit(cache=True)
def end_windows(store: Store, added: Ints, n_step: int, batch: Returns, after: Ints) -> None:
    """Take up to `n_step` steps from each drawn transition: how many, and the address of the row that follows them."""
    rows, capacity = store.rows, store.start.shape[1]
    for i in range(after.size):
        e, t, steps = batch.copies[i], batch.transitions[i], 1
        while steps < n_step and goes_on(store, added, e, t + steps - 1):
            steps += 1
        batch.steps[i] = steps
        after[i] = e * rows + (store.start[e, t % capacity] + steps) % rows


@njit(cache=True)
def sum_rewards(store: Store, discount: float, batch: Returns) -> None:
    """Each agent's discounted rewards up to the end of the window or to its own true end, if that comes first."""
    rows, capacity = store.rows, store.start.shape[1]
    _, rewards, flags = columns(store)
    for i in range(batch.copies.size):
        e, first = batch.copies[i], store.start[batch.copies[i], batch.transitions[i] % capacity]
        for n in range(store.agents):
            total, factor, ended, flag = 0.0, 1.0, False, 0
            for k in range(batch.steps[i]):
                row = e * rows + (first + k) % rows
                flag = int(store.floats[row, flags + n])
                if not ended:
                    total += factor * store.floats[row, rewards + n]
                    factor *= discount
                    ended = flag & TERMINATED != 0
            batch.reward[i, n] = total
            batch.terminated[i, n] = ended
            batch.next_alive[i, n] = flag == ALIVE


@njit(cache=True)
def gather_returns(
    store: Store, added: Ints, n_step: int, discount: float, at: Ints, after: Ints, batch: Returns
) -> None:
    """As `gather_serial`, with returns of up to `n_step` steps; `added` (E,) are the transitions of each copy."""
    locate(store, batch.copies, batch.transitions, at, after)
    end_windows(store, added, n_step, batch, after)
    for chunk in range((at.size + CHUNK - 1) // CHUNK):
        gather_chunk(store, at, after, batch, chunk)
    sum_rewards(store, discount, batch)
