"""Operations are recorded and run as their loops declare, and recording refuses what would not be right."""

import numpy as np
import pytest

from shoal.native.arithmetic import key_of, number, uniform
from shoal.native.kernels import OPERATIONS
from shoal.native.machine import view
from shoal.native.operations import (
    NOWHERE,
    Changes,
    Count,
    Double,
    Reads,
    Real,
    RowCount,
    Rows,
    Stream,
    Writes,
    dispatch_source,
    operation,
)
from shoal.native.program import Program
from shoal.native.runner import Runner


@operation()
def everything(
    like, row, rows, moment, x: Changes, ld_x, width_x, y: Reads, key: Stream, times: Count, count: RowCount,
    factor: Real, exact: Double, other: Reads = NOWHERE,
):  # fmt: skip
    """x[r, u] += times factor y[r] + other[r], and marks what else there is in the first four rows' last columns."""
    values, by = view(like, x, rows * ld_x), view(like, y, count)
    for r in range(rows):
        for u in range(width_x):
            values[r * ld_x + u] += times * factor * by[r]
            if other:
                values[r * ld_x + u] += view(like, other, rows)[r]
        values[r * ld_x + ld_x - 1] = number(like, moment + exact + uniform(key, row + r))


@operation()
def nothing(like, at: Writes):
    """Does nothing."""


def one_piece(program, record, alone=True):
    with program.span() as span:
        span.every_chunk()
        record()
    program.piece(span, tells=[program.counter()], rows=(0, program.rows), alone=alone)


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_kind_of_parameter_reaches_the_loop(dtype, other):
    rng = np.random.default_rng(0)
    x, y, z = rng.normal(size=(10, 4)).astype(dtype), rng.normal(size=10).astype(dtype), np.arange(10).astype(dtype)
    program = Program(dtype, 10, 4, (nothing, everything))
    at, by, third = program.array(x, stride=4), program.array(y, stride=1), program.array(z, stride=1)
    more = {"other": third} if other else {}
    one_piece(program, lambda: program.everything(Rows(at, 4, 2), by, 7, 3, NOWHERE, 0.1, 1e-3, **more))
    runner, counters = Runner(program), np.array([5, 2], np.int64)
    runner.run(runner.rounds(counters=counters))
    expected = x.copy()
    expected[:, :2] += 3 * dtype(0.1) * y[:, None] + (z[:, None] if other else 0)
    expected[:, 3] = [2 + 1e-3 + uniform(np.uint64(key_of(5, 2, 7)), r) for r in range(10)]
    np.testing.assert_allclose(program.values(at).reshape(10, 4), expected, rtol=1e-6)


def test_a_wrong_call_fails_when_it_is_recorded():
    program = Program(np.float32, 4, 4, (nothing,))
    with pytest.raises(TypeError, match="missing a required argument: 'at'"):
        program.nothing()
    with pytest.raises(AttributeError, match="no operation 'something'"):
        program.something(1)


def test_shared_memory_is_written_alone_or_when_a_piece_is_published():
    """Another thread may run the piece at the same time."""
    program = Program(np.float32, 4, 4, (nothing,))
    shared, private = program.zeros(4), program.own(4)
    one_piece(program, lambda: program.nothing(private), alone=False)
    one_piece(program, lambda: program.nothing(shared))
    with pytest.raises(ValueError, match="'nothing' writes shared memory before its piece is published"):
        one_piece(program, lambda: program.nothing(shared), alone=False)
    with program.span() as span:
        span.every_chunk()
        span.publish()
        program.nothing(shared)
    program.piece(span, tells=[program.counter()])


def test_names_are_unique_and_the_text_of_the_dispatch_follows_the_sources():
    assert len({declared.name for declared in OPERATIONS}) == len(OPERATIONS)
    text = dispatch_source(OPERATIONS)
    assert all(f"# {declared.name} {declared.source}" in text and declared.source for declared in OPERATIONS)
    assert dispatch_source(OPERATIONS[::-1]) != text
