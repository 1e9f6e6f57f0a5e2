"""The cost of MAC units as text tables and as plain values for JSON."""

from collections.abc import Sequence
from typing import Any

from shoal.errors import UserError
from shoal.numerics.hardware import tables
from shoal.numerics.hardware.area import AnyUnit, Area, Cost, fits, mac_cost
from shoal.numerics.hardware.energy import energy
from shoal.results import Result, Table

MARKS = {"tabulated": "", "interpolated": " i", "extrapolated": " x"}

Lines = list[tuple[str, ...]]


def compare(units: Sequence[AnyUnit], pes: int = tables.SYSTEM_PES, with_fits: bool = False) -> Result:
    """What `shoal mac area E5M2:5+E6M5 E5M2:5+Q8.13` prints; `with_fits` adds the fits behind it to the tables.

    Findings are notes on the marks; the data are the same figures as plain values, each with its kind.
    """
    if isinstance(units, str) or not units:
        raise UserError("Name at least one MAC unit to compare, such as E5M2:5+Q8.13.")
    costs = [mac_cost(unit, pes) for unit in units]
    header = ("LUTs of", "multiplier", "converter", "accumulator", "unit", f"array of {pes}", "system")
    lines: Lines = [(*header, "saved", "DSPs", "pJ/MAC")]
    for cost in costs:
        parts = (cost.multiplier, cost.converter, cost.accumulator, cost.unit, cost.array, cost.system)
        spent = energy(cost.datapath)
        texts = (f"{cost.saving:.1%}", f"{cost.system.dsps:,}", f"{spent.total:.3g}{MARKS[spent.kind]}")
        lines.append((str(cost.datapath), *map(figure, parts), *texts))
    table = Table.of_texts(f"Area of MAC units, and of a system with {pes:,} of them", lines)
    fitted, notes = Table.of_texts("Fits of the slides' tables", fit_lines()), _notes(costs)
    data = {"units": [cost_json(cost) for cost in costs], "notes": notes, "fits": fitted.records()}
    return Result("mac area", "Area of MAC units", [table, fitted] if with_fits else [table], notes, data=data)


def figure(area: Area | None) -> str:
    """LUTs with standard error and the mark of their kind: 187, 54 ±2 i, 37 ±6 x."""
    if area is None:
        return "–"
    error = "" if area.kind == "tabulated" else f" ±{area.error:,.0f}" if area.error is not None else " ±?"
    return f"{area.luts:,.0f}{error}{MARKS[area.kind]}"


def cost_json(cost: Cost) -> dict[str, Any]:
    """A cost as plain, unrounded values."""
    parts = ("multiplier", "converter", "accumulator", "unit", "array", "surroundings", "system")
    areas: dict[str, Area | None] = {part: getattr(cost, part) for part in parts}
    spent = energy(cost.datapath)
    return {
        "unit": str(cost.datapath),
        "pes": cost.pes,
        "saving": cost.saving,
        "areas": {part: None if area is None else dict(vars(area)) for part, area in areas.items()},
        "energy_pj": {"multiply": spent.multiply, "add": spent.add, "total": spent.total, "kind": spent.kind},
    }


def fit_lines() -> Lines:
    """The fits and their residuals: the table in `docs/numerics.md`."""
    lines: Lines = [("part", "LUTs", "rows", "largest miss", "standard deviation")]
    for fit in fits():
        miss = max(fit.residuals.values(), key=abs)
        deviation = "no degrees of freedom left" if fit.deviation is None else f"{fit.deviation:.2g}"
        misses = "–" if fit.deviation is None else f"{miss:+.1f}"
        lines.append((fit.name, fit.formula(), str(len(fit.rows)), misses, deviation))
    return lines


def _notes(costs: list[Cost]) -> list[str]:
    notes = [
        "No mark: a figure from the slides, or a sum of such; i: interpolated, x: extrapolated, ± standard error.",
        f"Saved: LUTs relative to the slides' FP32 system; DSPs: of the whole system of {costs[0].pes} units.",
    ]
    if any(cost.datapath.cfg not in (None, 1) for cost in costs):
        notes.append(
            "LUTs of CFG-2 to 6 multipliers are estimated from 'over 50% area reduction' to CFG-5/6; no table has them."
        )
    if any(cost.converter and cost.converter.kind == "extrapolated" for cost in costs):
        notes.append("Converters are tabulated for Q8.13 only; the same LUTs are assumed for other targets.")
    return notes
