"""Figure 2: low-precision weights nearly reach the full-precision reward, and sometimes exceed it at a "sweet spot".

The models are those of `ptq-table`, trained once for both; the formula is the paper's, with one scale per layer. The
same with corrections: of biases, and of the rounding as well.
"""

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal.policies.quantize import WidthRecord, WidthSweep, sweep
from shoal.quantization.export import correction_words
from shoal.quantization.quantizer import Quantizer, Width
from shoal.results import Panel, Series, Table, Value
from shoal_papers.cells import Options, StudyCell
from shoal_papers.quarl import baselines, ptq_table

BITS = (16, 8, 7, 6, 5, 4, 3, 2)


def measure_model(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: one model with its weights at every width."""
    algorithm, env = settings["algorithm"], settings["env"]
    policy = baselines.trained_model(algorithm, env, settings["seed"], settings["steps"], folder)
    widths = tuple(Width(f"{bits} bits", Quantizer(bits, "paper")) for bits in settings["bits"])
    corrections = tuple(ptq_table.CORRECTIONS[name] for name in settings["corrections"])
    swept = sweep(policy, WidthSweep(widths, ("weights",), episodes=settings["episodes"], corrections=corrections))
    return {"algorithm": algorithm, "env": env, "lines": swept.to_dict()["rows"]}


Model = Mapping[str, Any]  # a model with its weights at every width: what `measure_model` returns, and the cell's name


class WeightBits(baselines.ModelStudy, name="weight-bits"):
    """The return of every model over the bits of its weights."""

    title = "Low-precision weights (Figure 2)"
    work = staticmethod(measure_model)

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        bits = list(BITS[::2] if quick else BITS)
        return [
            StudyCell(cell.name, {**cell.settings, "bits": bits}, cell.seconds)
            for cell in ptq_table.PtqTable().cells(quick, options)
            if not quick or cell.settings["algorithm"] != "dqn"
        ]

    def tables(self, view: list[Model]) -> list[Table]:
        rows = [
            {
                "model": model["cell"],
                "corrected": how,
                **{line.precision.removesuffix(" bits"): line.return_mean for line in lines_of(model, how)},
            }
            for model in view
            for how in hows_of(model)
        ]
        return [
            Table.of("Return of an episode over bits of the weights", rows),
            Table.of("Over all models, below 16 bits", list(summary_rows(view))),
        ]

    def findings(self, view: list[Model]) -> Iterable[str]:
        sweet = sum(bool(sweet_spots(model)) for model in view)
        return [
            "Paper: low-precision weights nearly reach the full reward, and some models exceed it at a sweet spot.",
            *map(sentence, view),
            f"{sweet} of {len(view)} models have a width whose return exceeds float32's by more than both intervals.",
            *mean_errors(view),
        ]

    def panels(self, view: list[Model]) -> list[Panel]:
        return list(map(panel_of, view))


def hows_of(row: Model) -> list[str]:
    """What was corrected, in words; nothing first."""
    return list(dict.fromkeys(_how(WidthRecord(**line)) for line in row["lines"]))


def lines_of(row: Model, how: str = "–") -> list[WidthRecord]:
    """Full precision first, then those that were corrected so; corrections start below 16 bits."""
    lines = [WidthRecord(**line) for line in row["lines"]]
    return [line for line in lines if _how(line) == how or (line.bits >= 16 and _how(line) == "–")]


def _how(line: WidthRecord) -> str:
    return correction_words(line.corrected, line.rounding)


def losses_of(rows: list[Model]) -> dict[str, dict[str, list[float]]]:
    """Relative errors of all models, by what was corrected and by width below 16 bits; positive is worse."""
    losses: dict[str, dict[str, list[float]]] = {}
    for how in dict.fromkeys(how for row in rows for how in hows_of(row)):
        for row in rows:
            for line in lines_of(row, how):
                if line.bits < 16 and line.relative_error is not None:
                    losses.setdefault(how, {}).setdefault(line.precision, []).append(line.relative_error)
    return losses


def summary_rows(rows: list[Model]) -> Iterable[dict[str, Value]]:
    """A row per correction and statistic; a column per width."""
    for how, by_width in losses_of(rows).items():
        by_name = {width: ptq_table.statistics_of(losses) for width, losses in by_width.items()}
        for name in ptq_table.statistics_of(()):
            values = {width: of_width[name] for width, of_width in by_name.items()}
            yield {"corrected": how, "statistic": name, **values}


def mean_errors(rows: list[Model]) -> list[str]:
    """|relative error| at every width below 16 bits over all models, one sentence per correction."""
    said = []
    for how, by_width in losses_of(rows).items():
        errors = {width: statistics.mean(map(abs, losses)) for width, losses in by_width.items()}
        means = ", ".join(f"{mean:.1%} at {width}" for width, mean in errors.items())
        label = "Rounded to nearest" if how == "–" else f"With {how} corrected"
        said.append(f"{label}: mean |relative error| {means} (the paper: 2 to 5 % at 8 bits).")
    return said


def panel_of(row: Model) -> Panel:
    """The return of a model over bits."""
    plain = lines_of(row)
    series = []
    for how in hows_of(row):
        lines = lines_of(row, how)
        label = "weights" if how == "–" else f"{how} corrected"
        series.append(Series(label, [line.return_mean for line in lines], halves=[line.return_ci95 for line in lines]))
    ticks = [str(line.bits) for line in plain]
    return Panel(row["cell"], "return of an episode", series, "bits", ticks, level=plain[0].return_mean)


def sentence(row: Model) -> str:
    """The fewest bits near the full-precision return, without a gap above them."""
    lines, fewest = lines_of(row), "float32"
    full = lines[0].return_mean
    for line in lines[1:]:
        if line.return_mean < full - ptq_table.NEAR * abs(full):
            break
        fewest = line.precision
    spots = sweet_spots(row)
    above = f"; above it at {', '.join(spots)}" if spots else ""
    return f"{row['cell']}: {full:.1f} in float32, within 5 % down to {fewest}{above}."


def sweet_spots(row: Model) -> list[str]:
    """Widths whose return exceeds the full-precision one by more than both intervals together."""
    full, *narrow = lines_of(row)
    return [
        line.precision
        for line in narrow
        if line.return_mean - full.return_mean > (line.return_ci95 or 0) + (full.return_ci95 or 0)
    ]
