"""Figure 2: weights alone in few bits come near the full reward, and sometimes exceed it at a "sweet spot".

The models are those of `ptq-table`, trained once for both; the formula is the paper's, one scale a layer.
"""

from pathlib import Path
from typing import Any, TypedDict

from shoal.errors import UserError
from shoal.policies.widths import Row, Sweep, Width, sweep
from shoal.quantization.affine import Scheme
from shoal.results import Panel, Result, Series, Table
from shoal.studies import baselines, ptq_table, recipes
from shoal.studies.cells import Cell, Cells, total_seconds
from shoal.studies.study import Advance, Options, panel_result

BITS = (16, 8, 7, 6, 5, 4, 3, 2)
NEAR = 0.95
"""A return is near the full one if it keeps this part of |full|."""


def cells(quick: bool, options: Options) -> list[Cell]:
    """A cell for each model."""
    return [
        Cell(cell.name, {**cell.settings, "bits": list(BITS[::2] if quick else BITS)}, cell.seconds)
        for cell in ptq_table.cells(quick, options)
        if not quick or cell.settings["algorithm"] != "dqn"
    ]


def length(quick: bool, options: Options) -> float:
    """Seconds, about."""
    return total_seconds(cells(quick, options))


def measured(quick: bool, advance: Advance, options: Options) -> dict[str, Any]:
    """Train every model, and play it with its weights in every width."""
    if sentence := baselines.missing_packages():
        raise UserError(sentence)
    done = Cells("weight-bits", quick, options, advance)
    rows = [{"cell": name, **result} for name, result in done.run(cells(quick, options), work).items()]
    if not rows:
        raise UserError(f"Nothing could be measured: {' '.join(done.failed)}")
    if not quick:
        done.failed += recipes.left_out()
    return {"rows": rows, "failed": done.failed}


def work(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One model with its weights in every width."""
    algorithm, env = settings["algorithm"], settings["env"]
    policy = baselines.trained_model(algorithm, env, settings["seed"], settings["steps"], folder)
    widths = tuple(Width(f"{bits} bits", Scheme(bits, "paper")) for bits in settings["bits"])
    found = sweep(policy, Sweep(widths, ("weights",), episodes=settings["episodes"]))
    return {"algorithm": algorithm, "env": env, "lines": found.to_dict()["rows"]}


class ModelRow(TypedDict):
    """A model with its weights in every width."""

    cell: str
    algorithm: str
    env: str
    lines: list[dict[str, Any]]
    """A `Row` each, in plain values."""


class Found(TypedDict):
    """The data of the study."""

    rows: list[ModelRow]
    failed: list[str]


def study(found: Found) -> Result:
    """The return of every model over the bits of its weights."""
    rows = found["rows"]
    findings = [
        "Paper: weights alone in few bits come near the full reward, and some models exceed it at a sweet spot.",
        *map(sentence, rows),
    ]
    sweet = sum(bool(sweet_spots(row)) for row in rows)
    findings.append(
        f"{sweet} of {len(rows)} models have a width whose return is above the full one's by more than both intervals."
    )
    cells = [
        {"model": row["cell"], **{line.precision.removesuffix(" bits"): line.return_mean for line in lines_of(row)}}
        for row in rows
    ]
    table = Table.of("Return of an episode over bits of the weights", cells)
    return panel_result(
        "weight-bits", "Weights alone in few bits (Figure 2)", [table], [*findings, *found["failed"]],
        list(map(panel_of, rows)), found,
    )  # fmt: skip


def lines_of(row: ModelRow) -> list[Row]:
    """Full precision first."""
    return [Row(**line) for line in row["lines"]]


def panel_of(row: ModelRow) -> Panel:
    """The return of a model over bits."""
    lines = lines_of(row)
    series = Series("weights", [line.return_mean for line in lines], halves=[line.return_ci95 for line in lines])
    ticks = [str(line.bits) for line in lines]
    return Panel(row["cell"], "return of an episode", [series], "bits", ticks, level=lines[0].return_mean)


def sentence(row: ModelRow) -> str:
    """The fewest bits that come near the full return, without a gap above them."""
    lines, fewest = lines_of(row), "float32"
    full = lines[0].return_mean
    for line in lines[1:]:
        if line.return_mean < full - (1 - NEAR) * abs(full):
            break
        fewest = line.precision
    spots = sweet_spots(row)
    above = f"; above it at {', '.join(spots)}" if spots else ""
    return f"{row['cell']}: {full:.1f} in float32, within 5 % down to {fewest}{above}."


def sweet_spots(row: ModelRow) -> list[str]:
    """Widths whose return is above the full one's by more than both intervals together."""
    full, *narrow = lines_of(row)
    return [
        line.precision
        for line in narrow
        if line.return_mean - full.return_mean > (line.return_ci95 or 0) + (full.return_ci95 or 0)
    ]
