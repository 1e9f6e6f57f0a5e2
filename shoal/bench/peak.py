"""The processor's peak: multiply-adds per second of a loop that never leaves the registers."""

import time
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from shoal.compiled import njit
from shoal.native.tile import host_plan
from shoal.system.tiles import I32, I64, call, loop, splat

SUMS = 12
"""Sums at a time: more than the instruction's latency times the number of units."""
_plan = host_plan()
LANES = 4 if _plan is None else _plan.lanes


@intrinsic
def _spin(_typing: Any, count: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        name, every = f"llvm.fmuladd.v{LANES}f32", splat(builder, arguments[1], LANES)

        def multiply_add(_: Any, sums: list[Any]) -> list[Any]:
            return [call(builder, name, every.type, total, every, every) for total in sums]

        sums = loop(builder, I64(0), arguments[0], 1, [every] * SUMS, multiply_add)
        added = sums[0]
        for total in sums[1:]:
            added = builder.fadd(added, total)
        return builder.extract_element(added, I32(0))

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
