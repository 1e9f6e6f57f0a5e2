"""`shoal bench quantize`: nanoseconds to round a value, compared with copying as many bytes, two threads.

`of_goal` of 1 or more means the goal is reached. Without `out` both sides allocate new memory first. Where QPyTorch
(`qtorch`) is installed, which needs a C++ compiler, its quantizer of the same format is measured beside ours.
"""

from collections.abc import Callable
from functools import partial

import torch

from shoal.bench import Record
from shoal.bench.timing import interleaved
from shoal.numerics import quantize
from shoal.results import Column

THREADS = 2
FORMATS = ("E5M2", "E5M2:5", "Q8.13")
GOALS = {"nearest-even": 1.0, "stochastic": 2.5}  # ns per element, into preallocated memory
COLUMNS = {
    "ns_per_element": Column("per element", "ns"),
    "goal": Column("goal", "ns"),
    "copy_ns_per_element": Column("copy per element", "ns"),
    "qpytorch_ns_per_element": Column("QPyTorch", "ns"),
}
PARTS = tuple(GOALS)


def run(rounding: str, seconds: float = 8.0, elements: int = 2**24) -> list[Record]:
    """One record per format, with and without `out`."""
    x = torch.randn(elements, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(x)
    rows: list[Record] = []
    cases = [(format, given) for format in FORMATS for given in (True, False)]
    sides: list[Callable[[], object]] = [
        partial(quantize, x, format, rounding, seed=0, out=out if given else None, threads=THREADS)
        for format, given in cases
    ]
    peers = _qpytorch(x, rounding)
    *times, copied, cloned = interleaved([*sides, *peers.values(), partial(out.copy_, x), x.clone], seconds)
    peer_times = dict(zip(peers, times[len(sides) :], strict=True))
    for (format, given), time in zip(cases, times[: len(sides)], strict=True):
        reached, copy = 1e9 * time / elements, copied if given else cloned
        peer = None if given else peer_times.get(format)  # it always allocates
        rows.append(
            {
                "rounding": rounding,
                "format": format,
                "out": "given" if given else "new",
                "ns_per_element": reached,
                "goal": GOALS[rounding],
                "of_goal": GOALS[rounding] / reached,
                "copy_ns_per_element": 1e9 * copy / elements,
                "ratio": time / copy,
                "qpytorch_ns_per_element": None if peer is None else 1e9 * peer / elements,
                "threads": THREADS,
            }
        )
    return rows


def _qpytorch(x: torch.Tensor, rounding: str) -> dict[str, Callable[[], object]]:
    """QPyTorch's quantizers by format, if it is installed; its nearest rounds ties away, CFG-5 it does not have."""
    try:
        from qtorch.quant import fixed_point_quantize, float_quantize
    except Exception:  # not installed, or it cannot compile its extension here
        return {}
    way = rounding.removesuffix("-even")
    return {
        "E5M2": partial(float_quantize, x, 5, 2, rounding=way),
        "Q8.13": partial(fixed_point_quantize, x, 21, 13, rounding=way),
    }
