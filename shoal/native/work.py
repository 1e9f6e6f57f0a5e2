"""Runs a program: lists of operations, cut into pieces that any thread may take.

A piece is a list of operations on some rows of the mini-batch, chunk by chunk; which pieces there are does not depend
on the threads, so neither do the results. Pieces need others to be done, and are taken in the order of the program by
whoever has nothing to do. Nobody waits for a thread that is not running: a piece writes only memory of the thread
that runs it, until it is published, which takes a moment and happens once. So whoever would otherwise wait does an
unfinished piece of another thread again, and the first of the two to finish publishes it; the other, whenever it comes
back, finds that its piece or even the whole update is done, and throws its result away. Steps of the optimizer are the
exception: they change the weights in place, are short, and only one thread ever runs them.

The state of a piece is 2 (round - 1) when a round begins, one more while it is published, and 2 round when it is done;
rounds count up, so nothing has to be reset, and a thread that is late cannot mistake one round for another.
"""

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.native import kernels
from shoal.native.arithmetic import key_of
from shoal.native.arithmetic import number as as_number
from shoal.native.machine import add, exchange, give_up, load, now, view

OFFSET_BITS = 44
"""An operand is a buffer's number and, in its lowest bits, the place in it."""
NOWHERE = -1
"""An operand that is not there; a size that is the number of rows at hand."""

FIELDS = 20
"""Numbers of an operation: its code, then what it works on. Real numbers are the bits of a float64."""
(
    PHASE, PRODUCT, COLUMN_SUMS, DOTS, CLEAR, COPY, SUBTRACT, GUMBEL, ENTROPY, CHOICES_BACK, ENTROPY_BACK, GREEDY,
    SQUASH, DISTURB, SQUASH_BACK, GAUSSIAN, GAUSSIAN_BACK, BACK_UP, SQUARED_ERROR, CLIMB, WEIGHTED_SUM, GATHER, ADAM,
    MOVE, TRANSPOSE, EXPONENTIAL,
) = range(26)  # fmt: skip

PIECE_FIELDS = 15
(
    BEGIN, EACH, PUBLISH, END, FIRST, LAST, NEEDS, NEEDED, ALSO, ALSO_NEEDED, TELLS, ALSO_TELLS, SLOT, SLOT_BUFFER,
    ALONE,
) = range(PIECE_FIELDS)  # fmt: skip
"""Of a piece: where its operations that run once begin, those of every chunk, those that publish, and their end; its
rows; two counters that it needs, and up to what per round; two counters that it adds to; where its gradients are left,
and which buffer they are in; whether it is for one thread only."""

SEED, MOMENT = range(2)
"""What decides the noise: a seed, and the number of the update. That is also Adam's step."""

SINCE, CURRENT, CLOCKS = range(3)
"""Of a thread's clock: the time of the last reading, the phase since then; then nanoseconds per phase."""

PATIENCE = 50_000
"""Nanoseconds that a thread waits before it does a piece of another thread again."""


class Tables(NamedTuple):
    """A program as all threads see it."""

    zero: NDArray  # (1,)  of the numbers' type
    ops: NDArray[np.int64]  # (operations, FIELDS)
    pieces: NDArray[np.int64]  # (pieces, PIECE_FIELDS), in an order in which they can be done
    strides: NDArray[np.int64]  # numbers per row of the mini-batch in each buffer; 0 where it has no such rows
    slots: NDArray[np.int64]  # addresses of published gradients
    state: NDArray[np.int64]  # of the pieces, see above
    claims: NDArray[np.int64]  # the last round in which somebody took each piece
    counts: NDArray[np.int64]  # pieces that are done, over all rounds
    counters: NDArray[np.int64]  # seed and number of the update


class Own(NamedTuple):
    """What a thread has for itself."""

    bases: NDArray[np.int64]  # addresses of all buffers as this thread sees them
    clocks: NDArray[np.int64]


@register_jitable
def place(bases, strides, operand, row, item):  # type: ignore[no-untyped-def]
    """The address of an operand, for rows from `row` on; 0 if there is none."""
    if operand < 0:
        return 0
    buffer = operand >> OFFSET_BITS
    return bases[buffer] + ((operand & ((1 << OFFSET_BITS) - 1)) + row * strides[buffer]) * item


@register_jitable
def real(like, bits):  # type: ignore[no-untyped-def]
    """The number whose float64 bits these are, in the type of `like`."""
    return as_number(like, np.int64(bits).view(np.float64))


@register_jitable
def read_clock(clocks, phase):  # type: ignore[no-untyped-def]
    """The time since the last reading belongs to the phase that began then; now another one begins."""
    time = now()
    clocks[CLOCKS + clocks[CURRENT]] += time - clocks[SINCE]
    clocks[SINCE], clocks[CURRENT] = time, phase


@njit(nogil=True, error_model="numpy")
def execute(tables, own, first, last, row, rows):  # type: ignore[no-untyped-def]
    """Run operations on rows of the mini-batch."""
    like, item, bases, strides = tables.zero[0], tables.zero.itemsize, own.bases, tables.strides
    counters, slots = tables.counters, tables.slots
    for number in range(first, last):
        op = tables.ops[number]
        code = op[0]
        # every operation has at most six operands in fields 1 to 6, so they are found once
        p1, p2 = place(bases, strides, op[1], row, item), place(bases, strides, op[2], row, item)
        p3, p4 = place(bases, strides, op[3], row, item), place(bases, strides, op[4], row, item)
        p5, p6 = place(bases, strides, op[5], row, item), place(bases, strides, op[6], row, item)
        if code == PRODUCT:  # C, A, B, bias, mask
            m, k = rows if op[15] < 0 else op[15], rows if op[16] < 0 else op[16]
            kernels.product(like, item, p1, op[7], op[8], p2, op[9], op[10], p3, op[11], op[12], op[13], m, k, op[14],
                            p4, p5, op[17], op[18])  # fmt: skip
        elif code == COLUMN_SUMS:
            kernels.column_sums(like, item, p1, p2, op[7], op[8], p3, op[9], rows)
        elif code == DOTS:
            kernels.dots(like, item, p1, p2, op[7], op[8], p3, p4, rows)
        elif code == PHASE:
            read_clock(own.clocks, op[7])
        elif code == CLEAR:
            view(like, p1, op[7])[:] = like
        elif code == COPY:
            kernels.copy_rows(like, item, p1, op[7], p2, op[8], op[9], p3, rows)
        elif code == SUBTRACT:
            kernels.subtract_rows(like, item, p1, op[7], p2, op[8], p3, op[9], op[10], rows)
        elif code == GUMBEL:
            key = key_of(counters[SEED], counters[MOMENT], op[9])
            kernels.gumbel_softmax(like, p1, p2, p3, op[7], op[8], key, row, rows, op[10])
        elif code == ENTROPY:
            kernels.choice_entropy(like, p1, p2, p3, op[7], op[8], rows)
        elif code == CHOICES_BACK:
            kernels.choices_backward(like, p1, p2, p3, p4, op[7], op[8], p5, real(like, op[9]), p6, rows)
        elif code == ENTROPY_BACK:
            kernels.add_choice_entropy_gradient(like, p1, p2, p3, op[7], op[8], p4, p5, rows)
        elif code == GREEDY:
            kernels.greedy_choices(like, p1, p2, op[7], op[8], rows)
        elif code == SQUASH:
            kernels.squash(like, p1, op[7], p2, op[8], op[9], rows)
        elif code == DISTURB:
            key = key_of(counters[SEED], counters[MOMENT], op[9])
            kernels.disturb(like, p1, op[7], op[8], real(like, op[10]), key, row, rows)
        elif code == SQUASH_BACK:
            kernels.squash_backward(like, p1, op[7], p2, p3, op[8], p4, op[9], p5, real(like, op[10]), p6, rows)
        elif code == GAUSSIAN:
            key = key_of(counters[SEED], counters[MOMENT], op[11])
            kernels.gaussian(like, p1, op[7], p2, p3, p4, op[8], op[9], op[10], real(like, op[12]), real(like, op[13]),
                             key, row, rows)  # fmt: skip
        elif code == GAUSSIAN_BACK:
            p7 = place(bases, strides, op[13], row, item)
            kernels.gaussian_backward(like, p1, op[7], p2, p3, p4, op[8], p5, op[9], op[10], real(like, op[11]),
                                      real(like, op[12]), p6, p7, rows)  # fmt: skip
        elif code == BACK_UP:
            kernels.back_up(like, p1, p2, op[7], p3, p4, p5, p6, op[8], place(bases, strides, op[9], row, item), rows)
        elif code == SQUARED_ERROR:
            kernels.squared_error(like, p1, p2, p3, p4, p5, rows)
        elif code == CLIMB:
            kernels.climb(like, p1, p2, p3, p4, p5, p6, rows)
        elif code == WEIGHTED_SUM:
            kernels.weighted_sum(like, p1, p2, p3, p4, real(like, op[7]), rows if op[8] < 0 else op[8])
        elif code == GATHER:  # the gradients of all parts into those of the first
            bases[op[7]] = slots[op[8]]
            for part in range(1, op[9]):
                kernels.add_to(like, slots[op[8]], slots[op[8] + part], op[10])
        elif code == ADAM:
            scale = kernels.clip_scale(like, p2, op[7], real(like, op[8]))
            rate = np.float64(np.int64(op[9]).view(np.float64))
            kernels.adam(like, p1, p2, p3, p4, op[7], scale, rate, counters[MOMENT])
        elif code == MOVE:
            if counters[MOMENT] % op[8] == 0:
                kernels.move(like, p1, p2, op[7], real(like, op[9]))
        elif code == TRANSPOSE:
            kernels.transpose(like, item, p1, p2, op[7], op[8], op[9], op[10])
        elif code == EXPONENTIAL:
            view(like, p1, 1)[0] = kernels.exp(view(like, p2, 1)[0])


@register_jitable
def ready(tables, piece, round_number):  # type: ignore[no-untyped-def]
    """Whether what the piece needs is done."""
    for need in (NEEDS, ALSO):
        counter = tables.pieces[piece, need]
        if counter >= 0 and load(tables.counts, counter) < tables.pieces[piece, need + 1] * round_number:
            return False
    return True


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
    if not exchange(tables.state, number, 2 * (round_number - 1), 2 * round_number - 1):
        return
    execute(tables, own, piece[PUBLISH], piece[END], first, last - first)
    if piece[SLOT] >= 0:  # the buffer that was there becomes this thread's
        buffer = own.bases[piece[SLOT_BUFFER]]
        own.bases[piece[SLOT_BUFFER]] = tables.slots[piece[SLOT]]
        tables.slots[piece[SLOT]] = buffer
    add(tables.state, number, 1)
    for tells in (TELLS, ALSO_TELLS):
        if piece[tells] >= 0:
            add(tables.counts, piece[tells], 1)


@njit(nogil=True, cache=True, error_model="numpy")
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
                elif exchange(claims, piece, claimed, round_number):
                    taken = piece
                    break
        if taken < 0 and step >= 0 and exchange(claims, step, claimed_before, round_number):
            taken = step
        if taken < 0:
            time = now()
            if idle_since == 0:
                read_clock(own.clocks, 0)
                idle_since = time
            if time - idle_since < PATIENCE:
                continue
            if late < 0:
                give_up()
                continue
            taken = late
        idle_since = 0
        run_piece(tables, own, taken, round_number, chunk)
    read_clock(own.clocks, 0)
