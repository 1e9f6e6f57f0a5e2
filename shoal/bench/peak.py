"""The processor's peak: multiply-adds per second of a loop that never leaves the registers."""

import time
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.compiled import njit
from shoal.native.tile import host_plan

SUMS = 12
"""Sums at a time: more than the instruction's latency times the number of units."""
_plan = host_plan()
LANES = 4 if _plan is None else _plan.lanes


@intrinsic
def _spin(_typing: Any, count: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        vector, word = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)
        kind = ir.FunctionType(vector, [vector] * 3)
        multiply_add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), arguments[1], ir.IntType(32)(0))
        every = builder.shuffle_vector(one, one, lanes)
        before, head, body, done = builder.block, *(builder.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        k = builder.phi(word)
        k.add_incoming(word(0), before)
        sums = [builder.phi(vector) for _ in range(SUMS)]
        for total in sums:
            total.add_incoming(every, before)
        builder.cbranch(builder.icmp_signed("<", k, arguments[0]), body, done)
        builder.position_at_end(body)
        for total in sums:
            total.add_incoming(builder.call(multiply_add, [total, every, every]), body)
        k.add_incoming(builder.add(k, word(1)), body)
        builder.branch(head)
        builder.position_at_end(done)
        added = sums[0]
        for total in sums[1:]:
            added = builder.fadd(added, total)
        return builder.extract_element(added, ir.IntType(32)(0))

    return types.float32(types.int64, types.float32), generate


_run: Any = _spin


@njit(nogil=True)
def spin(count, x):  # type: ignore[no-untyped-def]
    """`count` multiply-adds of each lane of each sum."""
    return _run(count, x)


def peak(seconds: float = 0.2) -> float:
    """Multiply-adds per second of one thread: the best of several short runs."""
    count, half, best = 20_000, np.float32(0.5), 0.0
    spin(count, half)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        spin(count, half)
        best = max(best, SUMS * LANES * count / (time.perf_counter() - start))
    return best
