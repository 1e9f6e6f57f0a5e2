"""The cost of MAC units as tables for a person and as plain values for JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import UserError
from shoal.numerics.hardware import tables
from shoal.numerics.hardware.area import Area, Cost, fits, mac_cost
from shoal.numerics.hardware.design import Design
from shoal.numerics.hardware.energy import energy
from shoal.numerics.mac.unit import MacUnit
from shoal.results import Result, Table

MARKS = {"tabulated": "", "interpolated": " i", "extrapolated": " x"}

Lines = list[tuple[str, ...]]


@dataclass(frozen=True)
class Comparison:
    """Units beside each other."""

    lines: Lines
    """The header, then a line for each unit."""
    notes: list[str]
    """What the marks mean, in sentences."""
    json: list[dict[str, Any]]
    """The same figures, and how each is known, for machines."""


def compare(designs: Sequence[str | MacUnit | Design], pes: int = tables.SYSTEM_PES) -> Comparison:
    """What `shoal mac area E5M2:5+E6M5 E5M2:5+Q8.13` prints."""
    if isinstance(designs, str) or not designs:
        raise UserError("Name at least one MAC unit to compare, such as E5M2:5+Q8.13.")
    costs = [mac_cost(design, pes) for design in designs]
    header = ("LUTs of", "multiplier", "converter", "accumulator", "unit", f"array of {pes}", "system")
    lines: Lines = [(*header, "saved", "DSPs", "pJ/MAC")]
    for cost in costs:
        parts = (cost.multiplier, cost.converter, cost.accumulator, cost.unit, cost.array, cost.system)
        spent = energy(cost.design)
        figures = (f"{cost.saving:.1%}", f"{cost.system.dsps:,}", f"{spent.total:.3g}{MARKS[spent.kind]}")
        lines.append((str(cost.design), *map(figure, parts), *figures))
    return Comparison(lines, _notes(costs), [cost_json(cost) for cost in costs])


def area_result(names: Sequence[str], pes: int, with_fits: bool = False) -> Result:
    """The comparison, and the fits behind it; the latter among the tables only if asked for."""
    found = compare(names, pes)
    units = Table.of_texts(f"Area of MAC units, and of a system of {pes:,}", found.lines)
    fitted = Table.of_texts("Fits of the slides' tables", fit_lines())
    data = {"units": found.json, "notes": found.notes, "fits": fitted.records()}
    return Result("mac area", "Area of MAC units", [units, fitted] if with_fits else [units], found.notes, data=data)


def figure(area: Area | None) -> str:
    """LUTs with their standard error and the mark of their kind: 187, 54 ±2 i, 37 ±6 x."""
    if area is None:
        return "–"
    error = "" if area.kind == "tabulated" else f" ±{area.error:,.0f}" if area.error is not None else " ±?"
    return f"{area.luts:,.0f}{error}{MARKS[area.kind]}"


def cost_json(cost: Cost) -> dict[str, Any]:
    """A cost as plain values; figures are not rounded."""
    parts = ("multiplier", "converter", "accumulator", "unit", "array", "surroundings", "system")
    areas: dict[str, Area | None] = {part: getattr(cost, part) for part in parts}
    spent = energy(cost.design)
    return {
        "unit": str(cost.design),
        "pes": cost.pes,
        "saving": cost.saving,
        "areas": {part: None if area is None else dict(vars(area)) for part, area in areas.items()},
        "energy_pj": {"multiply": spent.multiply, "add": spent.add, "total": spent.total, "kind": spent.kind},
    }


def fit_lines() -> Lines:
    """The fits with what they miss: the table in `docs/numerics.md`."""
    lines: Lines = [("part", "LUTs", "rows", "largest miss", "standard deviation")]
    for fit in fits():
        miss = max(fit.residuals.values(), key=abs)
        deviation = "nothing left to judge by" if fit.deviation is None else f"{fit.deviation:.2g}"
        misses = "–" if fit.deviation is None else f"{miss:+.1f}"
        lines.append((fit.name, fit.formula(), str(len(fit.rows)), misses, deviation))
    return lines


def _notes(costs: list[Cost]) -> list[str]:
    notes = [
        "No mark: the slides' own figure, or a sum of such; i: interpolated, x: extrapolated, ± standard error.",
        f"Saved: LUTs against the FP32 system of the slides; DSPs: of the whole system of {costs[0].pes} units.",
    ]
    if any(cost.design.cfg not in (None, 1) for cost in costs):
        notes.append("LUTs of a CFG-2 to 6 multiplier rest on 'over 50% area reduction' to CFG-5/6; no table has them.")
    if any(cost.converter and cost.converter.kind == "extrapolated" for cost in costs):
        notes.append("Converters are tabulated to Q8.13 only; to other targets the same LUTs are assumed.")
    return notes
