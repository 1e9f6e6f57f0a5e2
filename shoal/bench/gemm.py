"""`shoal bench gemm`: matrix products through MAC units beside float32 ones of the same shape, in the same run.

Two threads for both. A row's goal is what the project set itself; `of_goal` of 1 or more has reached it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.bench.timing import interleaved, torch_threads
from shoal.numerics import emulate, matmul, parse_mac

THREADS = 2
FLOAT, FIXED = "E5M2:5+E6M5", "E5M2:5+Q8.13"
GOALS = {FLOAT: 5.0, FIXED: 5.0, f"{FLOAT}, rounding=stochastic": 1.5}
"""GMAC/s of one large product."""
CONVOLUTION_GOAL, BATCHED_GOAL = 1 / 1.3, 0.7
"""Parts of the large product's rate."""
FIRST_CALL_GOAL = 10.0
"""Seconds, with nothing compiled before."""


class Row(TypedDict):
    """One product through one MAC unit."""

    product: str
    unit: str
    measure: str
    reached: float
    goal: float
    of_goal: float
    float32: float | None
    ratio: float | None
    threads: int


def run(parts: tuple[str, ...] = ("products", "first call"), seconds: float = 20.0, size: int = 1024) -> list[Row]:
    """A row for each product (size × size × size, a convolution, a batch of small ones), and one for the first call."""
    rows: list[Row] = []
    if "products" in parts:
        with torch_threads(THREADS):
            rows += _products(seconds, size)
    if "first call" in parts:
        rows.append(_first_call())
    return rows


def _products(seconds: float, size: int) -> list[Row]:
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=draw) for _ in range(2))
    few = max(1, size * 48 // 1024)  # 48 × 1024×64×64 at full size
    small = torch.randn(few, size, 64, generator=draw), torch.randn(few, 64, 64, generator=draw)
    image = torch.randn(max(1, size // 64), 64, 32, 32, generator=draw)
    weight = torch.randn(128, 64, 3, 3, generator=draw)
    unit = parse_mac(FLOAT)

    def convolve() -> Tensor:
        with torch.no_grad(), emulate(unit, stats=False):
            return F.conv2d(image, weight, padding=1)

    large = f"{size} × {size} × {size}"
    batched, convolved = f"{few} × {size}×64×64", f"conv2d {len(image)}×64×32×32, 128×3×3"
    work: list[tuple[str, str, Callable[[], object], int]] = [
        (large, name, partial(matmul, a, b, parse_mac(name), seed=0, threads=THREADS), size**3) for name in GOALS
    ]
    work.append((convolved, FLOAT, convolve, image.numel() * 128 * 9))
    work.append((batched, FLOAT, partial(matmul, *small, unit, threads=THREADS), few * size * 64 * 64))
    native: list[Callable[[], object]] = [
        partial(torch.mm, a, b),
        partial(F.conv2d, image, weight, padding=1),
        partial(torch.bmm, *small),
    ]
    with torch.no_grad():
        times = interleaved([*(call for _, _, call, _ in work), *native], seconds, least=3)
    rates = [macs / time / 1e9 for (*_, macs), time in zip(work, times, strict=False)]
    float32 = dict(zip((large, convolved, batched), times[len(work) :], strict=True))
    goals = [*GOALS.values(), CONVOLUTION_GOAL * rates[0], BATCHED_GOAL * rates[0]]
    return [
        _row(product, name, "GMAC/s", rate, goal, rate / goal, macs / float32[product] / 1e9)
        for (product, name, _, macs), rate, goal in zip(work, rates, goals, strict=True)
    ]


def _first_call() -> Row:
    """Seconds of the first product of a process that finds nothing compiled, the imports not counted."""
    code = (
        "import time, torch\n"
        "from shoal.numerics import matmul\n"
        "import shoal.numerics.mac.matmul\n"
        "a = torch.ones(64, 64)\n"
        "start = time.perf_counter()\n"
        f"matmul(a * 0.3, a * 0.7, {FLOAT!r})\n"
        "print(time.perf_counter() - start)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        ran = subprocess.run(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    took = float(ran.stdout)
    return _row("first call, nothing compiled", FLOAT, "s", took, FIRST_CALL_GOAL, FIRST_CALL_GOAL / took, None)


def _row(
    product: str, unit: str, measure: str, reached: float, goal: float, of_goal: float, float32: float | None
) -> Row:
    return {
        "product": product,
        "unit": unit,
        "measure": measure,
        "reached": reached,
        "goal": goal,
        "of_goal": of_goal,
        "float32": float32,
        "ratio": None if float32 is None else reached / float32,
        "threads": THREADS,
    }
