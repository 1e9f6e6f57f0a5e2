"""A comparison of MAC units on the same products: error, saturation and cost."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError, check_range
from shoal.numerics.formats.types import Scalar
from shoal.numerics.hardware.area import Area, mac_cost
from shoal.numerics.hardware.energy import Operation, energy
from shoal.numerics.hardware.report import MARKS, figure
from shoal.numerics.mac.matmul import matmul
from shoal.numerics.mac.unit import MacUnit, parse_mac
from shoal.numerics.rounding.quantize import quantize
from shoal.results import Column, Figure, Panel, Result, Series, Table, Value, share_text

SLIDES_UNITS = (
    "fp32+fp32", "fp16+fp16", "E6M3:5+E7M7", "E6M2:5+E7M5", "E6M1:5+E7M3", "E5M3:5+E6M7", "E5M2:5+E6M5", "E5M1:5+E6M3",
    "E4M2:5+E5M5", "E5M2:5+Q8.13", "E5M2:5+Q11.13", "E4M2:5+Q8.12", "Q16.16+Q16.16", "Q8.8+Q8.8",
)  # fmt: skip
"""Multipliers and accumulators from the slides' tables."""
SIDE = 64  # rows and columns of the product
LUTS = "LUTs of a system of 64 units"  # label of an axis
COST_NOTE = f"{LUTS}; i: interpolated, x: extrapolated, ± standard error."
MOST_INNER = 2**17
SECONDS, MOST_SECONDS = 0.05, 0.5
"""A unit's rate is measured for at least the first and three calls, but no longer than the second."""


@dataclass(frozen=True)
class Line:
    """One unit on one product; errors are relative to the root mean square of the float64 product."""

    unit: str
    inner: int
    """K, the length of the sums."""
    error: float
    """Root mean square, against the float64 product of the operands before they are cast."""
    largest_error: float
    sum_error: float
    """Root mean square, against the float64 product of the operands after the cast: the error of the sums alone."""
    saturated: float
    """As a fraction of the MACs; a MAC may have more than one event."""
    overflowed: float
    underflowed: float
    gmac_per_second: float
    """Speed of the emulation on this product."""
    system: Area | None
    """LUTs; None if the slides have no figures."""
    spent: Operation | None
    """Energy of a multiply-accumulate in pJ."""

    def json(self) -> dict[str, Any]:
        """Plain values, each cost with its kind."""
        own = {name: value for name, value in vars(self).items() if name not in ("system", "spent")}
        return own | cost_json(self.system, self.spent)


def sweep(
    units: Sequence[str | MacUnit] = SLIDES_UNITS,
    inner: Sequence[int] = (256, 4096),
    scale: float = 1.0,
    seed: int = 0,
    advance: Callable[[float, str], None] = lambda amount, doing: None,
) -> list[Line]:
    """Multiply SIDE × K by K × SIDE normal random numbers through each unit, for each K; the same ones for all units.

    Args:
        units: units or their names.
        inner: lengths K of the sums.
        scale: standard deviation of the operands.
        seed: random seed of the operands and of stochastic units.
        advance: called after each product with 1 and the name of its unit.

    """
    chosen = [parse_mac(unit) if isinstance(unit, str) else unit for unit in units]
    if not chosen or not inner:
        raise UserError("A sweep needs at least one MAC unit, such as E5M2:5+Q8.13, and one inner length.")
    for k in inner:
        check_range("inner", k, 1, MOST_INNER)
    check_range("scale", scale, 1e-30, 1e30)
    check_range("seed", seed, 0, 2**62)
    lines = []
    for unit in chosen:
        for k in inner:
            lines.append(_line(unit, *operands(k, scale, seed), seed))
            advance(1, str(unit))
    return lines


def sweep_result(lines: Sequence[Line], scale: float) -> Result:
    """The sweep as two tables, what their columns mean, and the error over the area."""
    notes = [
        f"Products of {SIDE} × K and K × {SIDE} normal numbers of standard deviation {scale:g}.",
        "Errors are relative to the RMS of the float64 product; 'of sums' compares with the operands after the cast.",
        "Saturated, overflowed, underflowed: fraction of the MACs. GMAC/s: speed of the emulation on this machine.",
        COST_NOTE,
    ]
    if any("," in line.unit.partition("+")[2] for line in lines):
        notes.append("Cost depends on formats only; order, rounding and overflow are not included.")
    rows: list[dict[Column, Value]] = [
        {
            Column("unit"): line.unit,
            Column("K"): line.inner,
            Column("error", format=".2e"): line.error,
            Column("largest", format=".2e"): line.largest_error,
            Column("of sums", format=".2e"): line.sum_error,
            Column("saturated"): share_text(line.saturated),
            Column("overflowed"): share_text(line.overflowed),
            Column("underflowed"): share_text(line.underflowed),
            Column("GMAC/s", format=".3g"): line.gmac_per_second,
        }
        for line in lines
    ]
    table = Table.of("Products through MAC units", rows)
    costs = cost_table({line.unit: (line.system, line.spent) for line in lines})
    data = {"rows": [line.json() for line in lines]}
    return Result("mac sweep", "Products through MAC units", [table, costs], notes, _figures(lines), data)


def cost_table(units: Mapping[str, tuple[Area | None, Operation | None]]) -> Table:
    """The cost of every unit: LUTs of a system, and energy."""
    rows: list[dict[Column, Value]] = [
        {
            Column("unit"): unit,
            Column("system LUTs"): figure(system),
            Column("pJ/MAC"): None if spent is None else f"{spent.total:.3g}{MARKS[spent.kind]}",
        }
        for unit, (system, spent) in units.items()
    ]
    return Table.of("Cost of the units", rows)


def cost_json(system: Area | None, spent: Operation | None) -> dict[str, Any]:
    """A unit's cost as plain values, each with its kind."""
    return {
        "system_luts": system and system.luts,
        "system_luts_kind": system and system.kind,
        "pj_per_mac": spent and spent.total,
        "pj_per_mac_kind": spent and spent.kind,
    }


def numbered(units: Mapping[str, tuple[float, list[float]]]) -> tuple[Series, list[str]]:
    """Of units with their LUTs and values: a number beside each one's values, by LUTs, and the key to the numbers."""
    ordered = sorted(units.items(), key=lambda unit: unit[1][0])
    numbers = [str(number) for number in range(1, len(units) + 1)]
    places, values = [luts for _, (luts, _) in ordered], [values for _, (_, values) in ordered]
    spans = Series("", [max(own) for own in values], "spans", places, low=[min(own) for own in values], texts=numbers)
    return spans, [f"{number}  {unit}" for number, (unit, _) in zip(numbers, ordered, strict=True)]


def _figures(lines: Sequence[Line]) -> list[Figure]:
    """Error over LUTs, the units numbered; nothing where no unit has both."""
    points = [
        (line, line.system.luts) for line in lines if line.system and math.isfinite(line.error) and line.error > 0
    ]
    if not points:
        return []
    series, units = [], dict[str, tuple[float, list[float]]]()
    for line, luts in points:
        units.setdefault(line.unit, (luts, []))[1].append(line.error)
    for inner in sorted({line.inner for line, _ in points}):
        own = [(line, luts) for line, luts in points if line.inner == inner]
        hollow = [line.saturated + line.overflowed > 0 for line, _ in own]
        errors = [line.error for line, _ in own]
        series.append(Series(f"K = {inner:,}", [*errors], at=[luts for _, luts in own], hollow=hollow))
    spans, key = numbered(units)
    panel = Panel(
        "", "relative error of the product, root mean square", [*series, spans], LUTS, points=True,
        rings="saturated or overflowed", log=True,
    )  # fmt: skip
    return [Figure("sweep", "Error of a product over the area of its MAC units", [panel], key=key)]


def operands(inner: int, scale: float, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Both operands of the product with this inner length."""
    rng = np.random.default_rng([seed, inner])
    numbers = rng.standard_normal((2, SIDE, inner)) * scale
    return numbers[0].astype(np.float32), numbers[1].T.astype(np.float32)


def _line(unit: MacUnit, a: NDArray[np.float32], b: NDArray[np.float32], seed: int) -> Line:
    result, stats = matmul(a, b, unit, stats=True, seed=seed)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    formats: tuple[Scalar, ...] = unit.multiplier.formats
    read = [quantize(x, format).astype(np.float64) for x, format in zip((a, b), formats, strict=True)]
    with np.errstate(invalid="ignore", over="ignore"):  # infinite operands or results
        root = _mean_root(wanted)
        errors, of_sums = result - wanted, result - read[0] @ read[1]
    system, spent = cost_of(unit)
    return Line(
        unit=str(unit),
        inner=a.shape[1],
        error=_mean_root(errors) / root,
        largest_error=float(np.abs(errors).max()) / root,
        sum_error=_mean_root(of_sums) / root,
        saturated=stats.saturated / stats.macs,
        overflowed=stats.overflowed / stats.macs,
        underflowed=stats.underflowed / stats.macs,
        gmac_per_second=stats.macs / _seconds(lambda: matmul(a, b, unit, seed=seed)) / 1e9,
        system=system,
        spent=spent,
    )


def cost_of(unit: MacUnit) -> tuple[Area, Operation] | tuple[None, None]:
    """LUTs of a system of such units, and the energy of a multiply-accumulate; None where there are no figures."""
    try:
        return mac_cost(unit).system, energy(unit)
    except UserError:  # no figures for such a unit
        return None, None


def _mean_root(values: NDArray[np.float64]) -> float:
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(np.square(values))))


def _seconds(work: Callable[[], object]) -> float:
    """Median time of a call; the first call, which may compile, is not counted."""
    work()
    times: list[float] = []
    while sum(times) < SECONDS or (len(times) < 3 and sum(times) < MOST_SECONDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
