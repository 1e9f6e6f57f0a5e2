"""Figure 9: where the time of one actor goes with 32, 16 and 8 bits, per 1000 of its steps.

Stages are the paper's: step (inference), pull (until the version's bytes are there), deserialize (bytes into numbers),
load (numbers into the engine); the environment beside them. int8 actors read the broadcast codes as they are: they have
nothing to deserialize, and the native engine reads them in place.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.results import Column, Panel, Result, Series, Table, Value
from shoal.waiting import Advance
from shoal_papers.cells import StudyCell, total_seconds
from shoal_papers.quarl.throughput import (
    NOT_RUN,
    PRECISIONS,
    STAGES,
    CellRow,
    Found,
    Measured,
    cell_of,
    energy,
    energy_column,
    network_of,
    of_kind,
    run_cells,
)
from shoal_papers.study import Options, panel_result

LARGE, SMALL = "humanoid", "gym-cartpole"
ENGINES: dict[str, tuple[tuple[str, int], ...]] = {
    LARGE: (("torch", 32), ("onnx", 32), ("onnx", 16), ("onnx", 8), ("native", 8)),
    SMALL: (("torch", 32), ("numba", 32), ("onnx", 32), ("onnx", 16), ("onnx", 8), ("native", 8)),
}
QUICK_ENGINES: dict[str, tuple[tuple[str, int], ...]] = {
    LARGE: (("onnx", 32), ("onnx", 16), ("onnx", 8), ("native", 8)),
    SMALL: (("numba", 32), ("native", 8)),
}
HEAVY, LIGHT = 30, 1000
"""Steps between pulls, communication-heavy and computation-heavy."""
PAPER = (
    "Paper (Figure 9, no numbers): step is the largest part when pulls are rare, and int8 shortens it much; with "
    "frequent pulls it shortens pull and deserialize, too; load is dearer than in 32 bits, dearer in 16 bits than in 8."
)


def cells(quick: bool) -> list[StudyCell]:
    """The paper's network with frequent and with rare pulls, a small one with frequent pulls."""
    engines, seconds = (QUICK_ENGINES, 2.0) if quick else (ENGINES, 4.0)
    places = [(LARGE, HEAVY), (SMALL, HEAVY)] if quick else [(LARGE, HEAVY), (LARGE, LIGHT), (SMALL, HEAVY)]
    return [
        cell_of(task, engine, PRECISIONS[bits], bits, pull_every, seconds)
        for task, pull_every in places
        for engine, bits in engines[task]
    ]


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(quick))


def measured(quick: bool, advance: Advance, options: Options) -> Mapping[str, Any]:
    """Run every kind of actor for a few seconds."""
    return run_cells("actorq-breakdown", quick, options, advance, cells(quick))


def study(found: Found) -> Result:
    """Seconds of every stage."""
    rows = found["rows"]
    extra = energy_column(rows)
    names = [*(Column(stage, "s") for stage in STAGES), Column("all", "s"), Column("pulls"), *extra]
    about = [Column(name) for name in ("network", "pull every", "engine", "bits")]
    title = "One actor per 1000 environment steps"
    table = Table(title, [*about, *names], [[*_about(row), *_cells(row, bool(extra))] for row in rows])
    findings = [PAPER, *statements(rows), *found["failed"]]
    return panel_result(
        "actorq-breakdown", "An actor's time (Figure 9)", [table], findings, panels(rows), {**found}
    )  # fmt: skip


def _about(row: CellRow) -> list[Value]:
    return [network_of(row["task"]), row["pull_every"], row["engine"], row["bits"]]


def _cells(row: CellRow, with_energy: bool) -> list[Value]:
    last = [energy(row)] if with_energy else []
    if (one := row["measured"]) is None:
        return [NOT_RUN, *[None] * (len(STAGES) + 1), *last]
    stages = one["seconds_per_1000"]
    return [*(stages[stage] for stage in STAGES), sum(stages.values()), one["pulls_per_1000"], *last]


def statements(rows: Sequence[CellRow]) -> list[str]:
    """The paper's statements, held against ONNX Runtime in 32, 16 and 8 bits; then what the native engine changes."""
    said = []
    for pull_every in dict.fromkeys(row["pull_every"] for row in rows if row["task"] == LARGE):
        found = {
            (engine, bits): of_kind(rows, task=LARGE, engine=engine, bits=bits, pull_every=pull_every)
            for engine, bits in ENGINES[LARGE]
        }
        full, half, eight = (found["onnx", bits] for bits in (32, 16, 8))
        if full and half and eight:
            said += [f"{network_of(LARGE)}, a pull every {pull_every} steps, ONNX Runtime in 32, 16 and 8 bits:"]
            said += _held(full, half, eight, pull_every)
        if eight and (native := found["native", 8]):
            said.append(
                "- native int8 actors read the codes in place: there is nothing to deserialize, and load takes "
                f"{_stage(native, 'load'):.4f} s instead of {_stage(eight, 'load'):.4f} s in ONNX Runtime's int8."
            )
    return said


def _held(full: Measured, half: Measured, eight: Measured, pull_every: int) -> list[str]:
    """Sentences on each of the paper's statements."""

    def series(stage: str) -> str:
        return " / ".join(f"{_stage(one, stage):.3f}" for one in (full, half, eight))

    def verdict(holds: bool) -> str:
        return "holds" if holds else "does not hold"

    largest = max((stage for stage in STAGES if stage != "environment"), key=lambda stage: _stage(full, stage))
    loads = [_stage(one, "load") for one in (full, half, eight)]
    said = [
        f"- int8 shortens {stage}: {verdict(_stage(eight, stage) < _stage(full, stage))}, {series(stage)} s."
        for stage in ("step", "pull")
    ]
    if pull_every == LIGHT:
        said.insert(0, f"- step is the largest part: {verdict(largest == 'step')}, in 32 bits it is {largest}.")
    dearer = verdict(min(loads[1:]) > loads[0])
    return [
        *said,
        "- int8 shortens deserialize: has no counterpart here, where 32-bit numbers and 8-bit codes are used as they "
        f"arrive and only 16 bits are widened, {series('deserialize')} s.",
        f"- load is dearer in 16 and 8 bits than in 32: {dearer}, {series('load')} s; dearer in 16 bits than in 8: "
        f"{verdict(loads[1] > loads[2])}.",
    ]


def _stage(one: Measured, stage: str) -> float:
    return one["seconds_per_1000"][stage]


def panels(rows: Sequence[CellRow]) -> list[Panel]:
    """A stacked bar per kind of actor; one panel per network and pull frequency."""
    found = []
    for task, pull_every in dict.fromkeys((row["task"], row["pull_every"]) for row in rows):
        done = [
            (f"{row['engine']}\n{row['bits']}", row["measured"]["seconds_per_1000"])
            for row in rows
            if row["measured"] and (row["task"], row["pull_every"]) == (task, pull_every)
        ]
        if not done:
            continue
        stacks = [Series(stage, [1e3 * stages[stage] for _, stages in done], "stack") for stage in STAGES]
        above = [f"{1e3 * sum(stages.values()):,.0f}" for _, stages in done]
        ticks = [tick for tick, _ in done]
        title = f"{network_of(task)}\na pull every {pull_every} steps"
        found.append(Panel(title, "ms per 1000 steps", stacks, "engine, bits", ticks, above))
    return found
