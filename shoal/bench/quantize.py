"""`shoal bench quantize`: nanoseconds to round a number, beside a copy of as many bytes in the same run, two threads.

`of_goal` of 1 or more has reached the goal. Without `out` both sides take new memory from the system first.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypedDict

import torch

from shoal.bench.timing import interleaved
from shoal.numerics import quantize
from shoal.results import Column

THREADS = 2
FORMATS = ("E5M2", "E5M2:5", "Q8.13")
GOALS = {"nearest-even": 1.0, "stochastic": 2.5}
"""ns an element, into memory that is there."""


class Row(TypedDict):
    """One rounding to one format."""

    rounding: str
    format: str
    out: str
    ns_per_element: Annotated[float, Column("per element", "ns")]
    goal: Annotated[float, Column("goal", "ns")]
    of_goal: float
    copy_ns_per_element: Annotated[float, Column("copy per element", "ns")]
    ratio: float
    threads: int


def run(
    parts: tuple[str, ...] = ("nearest-even", "stochastic"), seconds: float = 8.0, elements: int = 2**24
) -> list[Row]:
    """A row for each rounding, format, and with and without `out`."""
    x = torch.randn(elements, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(x)
    rows: list[Row] = []
    for rounding in parts:
        sides: list[Callable[[], object]] = [
            partial(quantize, x, format, rounding, seed=0, out=target, threads=THREADS)
            for format in FORMATS
            for target in (out, None)
        ]
        *times, copied, cloned = interleaved([*sides, partial(out.copy_, x), x.clone], seconds)
        cases = [(format, given) for format in FORMATS for given in (True, False)]
        for (format, given), time in zip(cases, times, strict=True):
            reached, copy = 1e9 * time / elements, copied if given else cloned
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
                    "threads": THREADS,
                }
            )
    return rows
