"""`shoal bench gemm`: matrix products on emulated MAC units compared with float32 ones of the same shape.

Both sides use two threads. A row's goal is the project's target; `of_goal` of 1 or more means it is reached.
"""

import tempfile
import timeit
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.bench import Record
from shoal.bench.timing import interleaved, torch_threads
from shoal.numerics import emulate, matmul, parse_mac, quantize
from shoal.results import Column
from shoal.system.calls import call_in_child

THREADS = 2
FLOAT, FIXED = "E5M2:5+E6M5", "E5M2:5+Q8.13"
GOALS = {FLOAT: 5.0, FIXED: 5.0, f"{FLOAT}, rounding=stochastic": 1.5}  # GMAC/s of one large product
ORDERS = (
    f"{FLOAT}, order=chunked(7)",
    f"{FLOAT}, order=pairwise",
    f"{FLOAT}, order=kahan",
    f"{FLOAT}, order=exact",
    f"{FLOAT}, fused=False",
    "E5M3+fp32, output=E6M8, order=pairwise",
    "E4M3(bias=4)*E5M2+E6M9, output=E7M9, order=chunked(64)",
    "Q3.6*Q9.10+Q15.16, rounded=False",
    "Q8.8+Q8.8",
    "E5M2:5+Q16.16",
)
"""Other orders and wide fixed-point sums."""
ORDER_GOAL, TRAINING_GOAL = 0.5, 4.0  # GMAC/s of these, and of the products of a training step
TRAINING = ((50176, 144, 16), (3136, 576, 64), (144, 50176, 16), (576, 3136, 64), (4096, 144, 16), (256, 576, 64))
"""Rows, products per sum and columns: ResNet-20 forward and its weights' gradients, then ResNet-8 on 8×8 images."""
CONVOLUTION_GOAL, BATCHED_GOAL = 1 / 1.3, 0.8  # fractions of the large product's rate
FIRST_CALL_GOAL = 10.0  # seconds, with an empty compilation cache
COLUMNS: dict[str, Column] = {}
PARTS = ("products", "shapes", "first call")


def run(part: str, seconds: float = 20.0, size: int = 1024) -> list[Record]:
    """Products (size × size × size, a convolution, a batch of small ones), shapes of a training step and orders of
    summation, or the first call."""
    if part == "first call":  # of a process with an empty compilation cache, without imports
        with tempfile.TemporaryDirectory() as folder:
            took: float = call_in_child(first_product, threads=None, environment={"SHOAL_CACHE": folder})
        return [_row("first call, nothing compiled", FLOAT, "s", took, FIRST_CALL_GOAL, FIRST_CALL_GOAL / took, None)]
    with torch_threads(THREADS):
        return (_products if part == "products" else _shapes)(seconds, size)


def _products(seconds: float, size: int) -> list[Record]:
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


def _shapes(seconds: float, size: int) -> list[Record]:
    """Products of a training step, whose operands have been rounded before, with statistics; and other orders."""
    draw = torch.Generator().manual_seed(0)
    side = max(1, size // 4)
    asked = [(FLOAT, TRAINING_GOAL, tuple(max(1, n * size // 1024) for n in shape)) for shape in TRAINING]
    asked += [(name, ORDER_GOAL, (side, size // 2 or 1, side)) for name in ORDERS]
    operands = []
    for name, _, (rows, depth, columns) in asked:
        formats = parse_mac(name).multiplier.formats
        pair = torch.randn(rows, depth, generator=draw), torch.randn(depth, columns, generator=draw)
        operands.append((quantize(pair[0], formats[0]), quantize(pair[1], formats[1])))
    work: list[Callable[[], object]] = [
        partial(matmul, a, b, parse_mac(name), stats=True, threads=THREADS, cast="done")
        for (name, _, _), (a, b) in zip(asked, operands, strict=True)
    ]
    native: list[Callable[[], object]] = [partial(torch.mm, a.float(), b.float()) for a, b in operands]
    with torch.no_grad():
        times = interleaved([*work, *native], seconds, least=3)
    rows_made = []
    for (name, goal, (rows, depth, columns)), ours, theirs in zip(asked, times, times[len(work) :], strict=False):
        macs = rows * depth * columns / 1e9
        shape = f"{rows} × {depth} × {columns}"
        rows_made.append(_row(shape, name, "GMAC/s", macs / ours, goal, macs / ours / goal, macs / theirs))
    return rows_made


def first_product() -> float:
    """Seconds of the first product of this process."""
    a = torch.ones(64, 64)
    return timeit.timeit(lambda: matmul(a * 0.3, a * 0.7, FLOAT), number=1)


def _row(
    product: str, unit: str, measure: str, reached: float, goal: float, of_goal: float, float32: float | None
) -> Record:
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
