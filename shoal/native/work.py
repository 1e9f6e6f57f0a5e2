"""Runs a program: lists of operations, cut into pieces that any thread may take.

A piece is a list of operations on some rows of the mini-batch, chunk by chunk; which pieces there are does not depend
on the threads, so neither do the results. Idle threads take pieces in the order of the program, once the pieces that
they depend on are done. No thread waits for one that is descheduled: a piece writes only memory of the thread that runs
it, until it is published, which takes a moment and happens once. So a thread that would otherwise wait repeats an
unfinished piece of another thread, and the first of the two to finish publishes it; the other, whenever it resumes,
finds that its piece or even the whole update is done, and discards its result. Steps of the optimizer are the
exception: they change the weights in place, are short, and only one thread ever runs them.

The state of a piece is 2 (round - 1) when a round begins, one more while it is published, and 2 round when it is done;
rounds count up, so nothing has to be reset, and a late thread cannot mistake one round for another.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.native.machine import CURRENT, SINCE, compare_exchange, fetch_add, load, now, read_clock, yield_processor
from shoal.native.operations import Operation, dispatch, dispatch_source

PIECE_FIELDS = 15
(
    BEGIN, EACH, PUBLISH, END, FIRST, LAST, NEEDS, NEEDED, ALSO, ALSO_NEEDED, TELLS, ALSO_TELLS, SLOT, SLOT_BUFFER,
    ALONE,
) = range(PIECE_FIELDS)  # fmt: skip
"""Of a piece: where its operations that run once begin, those of every chunk, those that publish, and their end; its
rows; two counters that it needs, and up to what per round; two counters that it adds to; where its gradients are left,
and which buffer they are in; whether it is for one thread only."""

SEED, MOMENT = range(2)  # what decides the noise: a seed, and the number of the update. That is also Adam's step.

PATIENCE = 50_000  # nanoseconds that a thread waits before it does a piece of another thread again


class Tables(NamedTuple):
    """A program as all threads see it."""

    zero: NDArray  # (1,)  of the numbers' type
    ops: NDArray[np.int64]  # the operations, see operations.py
    pieces: NDArray[np.int64]  # (pieces, PIECE_FIELDS), in an order in which they can be done
    strides: NDArray[np.int64]  # numbers per row of the mini-batch in each buffer; 0 where it has no such rows
    slots: NDArray[np.int64]  # addresses of published gradients
    state: NDArray[np.int64]  # of the pieces, see above
    claims: NDArray[np.int64]  # the last round in which a thread took each piece
    counts: NDArray[np.int64]  # pieces that are done, over all rounds
    counters: NDArray[np.int64]  # seed and number of the update


class Own(NamedTuple):
    """What a thread has for itself."""

    bases: NDArray[np.int64]  # addresses of all buffers as this thread sees them
    clocks: NDArray[np.int64]


@register_jitable
def ready(tables, piece, round_number):  # type: ignore[no-untyped-def]
    """Whether what the piece needs is done."""
    for need in (NEEDS, ALSO):
        counter = tables.pieces[piece, need]
        if counter >= 0 and load(tables.counts, counter) < tables.pieces[piece, need + 1] * round_number:
            return False
    return True


@cache
def compiled_work(operations: tuple[Operation, ...]) -> Any:
    """`work` for programs of these operations, compiled when it is first called, or loaded from the cache."""
    execute = dispatch(operations)
    key = dispatch_source(operations) if all(declared.source for declared in operations) else ""

    @njit(nogil=True, error_model="numpy")
    def run_piece(tables, own, number, round_number, chunk):  # type: ignore[no-untyped-def]
        """Run a piece and publish it, unless another thread has."""
        piece = tables.pieces[number]
        first, last = piece[FIRST], piece[LAST]
        execute(tables, own, piece[BEGIN], piece[EACH], first, last - first)
        for row in range(first, last, chunk):
            if load(tables.state, number) > 2 * (round_number - 1):
                return
            execute(tables, own, piece[EACH], piece[PUBLISH], row, min(chunk, last - row))
        if not compare_exchange(tables.state, number, 2 * (round_number - 1), 2 * round_number - 1):
            return
        execute(tables, own, piece[PUBLISH], piece[END], first, last - first)
        if piece[SLOT] >= 0:  # the buffer that was there becomes this thread's
            buffer = own.bases[piece[SLOT_BUFFER]]
            own.bases[piece[SLOT_BUFFER]] = tables.slots[piece[SLOT]]
            tables.slots[piece[SLOT]] = buffer
        fetch_add(tables.state, number, 1)
        for tells in (TELLS, ALSO_TELLS):
            if piece[tells] >= 0:
                fetch_add(tables.counts, piece[tells], 1)

    @njit(nogil=True, cache=bool(key), key=key, error_model="numpy")
    def work(tables, own, round_number, chunk, helps):  # type: ignore[no-untyped-def]
        """Take pieces of this round until all are done.

        Args:
            tables: The program.
            own: This thread's memory.
            round_number: Counts from 1.
            chunk: Rows that go through a piece's operations together.
            helps: Whether this thread only helps: it leaves steps of the optimizer to others while there is something
                else to do, because all would have to wait if it were interrupted in one.
        """
        state, claims, pieces = tables.state, tables.claims, tables.pieces
        total, low, idle_since = len(pieces), 0, 0
        own.clocks[SINCE], own.clocks[CURRENT] = now(), 0
        while True:
            while low < total and load(state, low) >= 2 * round_number:
                low += 1
            if low == total:
                break
            taken, late, step, claimed_before = -1, -1, -1, 0
            for piece in range(low, total):
                if load(state, piece) > 2 * (round_number - 1):
                    continue
                claimed = load(claims, piece)
                if claimed >= round_number:
                    if late < 0 and claimed == round_number and not pieces[piece, ALONE]:
                        late = piece
                elif ready(tables, piece, round_number):
                    if helps and pieces[piece, ALONE]:
                        if step < 0:
                            step, claimed_before = piece, claimed
                    elif compare_exchange(claims, piece, claimed, round_number):
                        taken = piece
                        break
            if taken < 0 and step >= 0 and compare_exchange(claims, step, claimed_before, round_number):
                taken = step
            if taken < 0:
                time = now()
                if idle_since == 0:
                    read_clock(own.clocks, 0)
                    idle_since = time
                if time - idle_since < PATIENCE:
                    continue
                if late < 0:
                    yield_processor()
                    continue
                taken = late
            idle_since = 0
            run_piece(tables, own, taken, round_number, chunk)
        read_clock(own.clocks, 0)

    return work
