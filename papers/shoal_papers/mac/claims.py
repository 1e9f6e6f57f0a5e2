"""Claims of the slides judged seed by seed, and what the studies of MAC units share: their base, tables and panels.

A side loses against another if the 95 % interval (Student's t) of the differences by seed is below zero and their mean
is at least `MATTERS`; it keeps up if the interval ends within `MATTERS`. Everything else is inconclusive.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.results import Column, Panel, Series, Table, Value, share_text
from shoal.training.returns import confidence95
from shoal_papers.cells import Cells, Options, StudyCell
from shoal_papers.mac import runs
from shoal_papers.mac.runs import CASTS, PRODUCTS, SEEDS, TASKS, Kind, Outcome, baseline, share
from shoal_papers.seeds import NOT_RUN, half_width, mean_or_none, with_interval
from shoal_papers.study import CellStudy, Data

MATTERS = 0.03  # smallest difference of accuracy that matters: eleven of the 359 test images of digits
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "inconclusive with these data"
JUDGED = (
    f"Accuracies are those of the last epoch on the test images; ± is the 95 % interval (Student's t) over seeds. "
    f"Claims are judged by differences of the same seed, with at least {SEEDS} seeds: a loss is one whose interval is "
    f"below zero and whose mean is at least {100 * MATTERS:g} points; accuracy is kept if the interval ends within "
    f"{100 * MATTERS:g} points. The data are smaller than the slides': trends are compared, not percentages."
)


@dataclass(frozen=True)
class Part:
    """One comparison that a claim implies, and how it came out."""

    text: str
    gaps: tuple[float, ...]
    """Differences of accuracy by seed, the side in question minus the other."""
    verdict: str

    @property
    def difference(self) -> str:
        """In points, with its interval."""
        return in_points(self.gaps, sign=True)


@dataclass(frozen=True)
class Claim:
    """A sentence of the slides, with the comparisons that it implies."""

    label: str
    """(a) to (g); empty for a question, which has no verdict of its own."""
    words: str
    """What the slides say, or what was asked, with their numbers."""
    parts: Sequence[Part]

    @property
    def verdict(self) -> str:
        """It holds if all parts hold, and does not if one does not."""
        verdicts = {part.verdict for part in self.parts}
        for decisive in (FAILS, NOT_RUN, UNKNOWN):
            if decisive in verdicts:
                return UNKNOWN if decisive == NOT_RUN and verdicts != {NOT_RUN} else decisive
        return HOLDS if verdicts else NOT_RUN

    def sentence(self) -> str:
        """The claim, the verdict, and the parts by their verdicts."""
        said = []
        for verdict in (HOLDS, FAILS, UNKNOWN, NOT_RUN):
            parts = [part for part in self.parts if part.verdict == verdict]
            texts = [f"{part.text} ({part.difference} points)" if part.gaps else part.text for part in parts]
            said += [f"{verdict.capitalize()}: {'; '.join(texts)}."] if parts else []
        head = f"({self.label}) {self.words}: {self.verdict.upper()}." if self.label else self.words
        return " ".join([head, *said])


def loses(text: str, gaps: Sequence[float]) -> Part:
    """The claim that one side is worse than the other."""
    return Part(text, tuple(gaps), _verdict(gaps, loss=True))


def keeps(text: str, gaps: Sequence[float]) -> Part:
    """The claim that one side is as good as the other."""
    return Part(text, tuple(gaps), _verdict(gaps, loss=False))


def _verdict(gaps: Sequence[float], loss: bool) -> str:
    if not gaps:
        return NOT_RUN
    if len(gaps) < SEEDS:
        return UNKNOWN
    middle, half = float(np.mean(gaps)), confidence95(np.array(gaps))
    if middle + half < 0 and middle <= -MATTERS:
        return HOLDS if loss else FAILS
    if middle - half >= -MATTERS:
        return FAILS if loss else HOLDS
    return UNKNOWN


def in_points(values: Sequence[float], sign: bool = False) -> str:
    """Mean ± half-width in points (per cent of the test images); not run without any."""
    return with_interval(values, 100, sign)


class Trainings:
    """The outcomes of a study by kind and seed."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._outcomes: dict[Kind, dict[int, Outcome]] = {}
        for row in rows:
            kind = Kind(row["scheme"], row["loss_scale"], row["plan"])
            self._outcomes.setdefault(kind, {})[row["outcome"]["seed"]] = row["outcome"]

    def of(self, kind: Kind) -> list[Outcome]:
        """By seed; none if it was not run."""
        return [outcome for _, outcome in sorted(self._outcomes.get(kind, {}).items())]

    def accuracies(self, kind: Kind) -> list[float]:
        """By seed."""
        return [outcome["accuracy"] for outcome in self.of(kind)]

    def differences(self, kind: Kind, other: Kind) -> list[float]:
        """Accuracy of the first minus that of the second, for each seed that both have."""
        of_other = {outcome["seed"]: outcome["accuracy"] for outcome in self.of(other)}
        return [one["accuracy"] - of_other[one["seed"]] for one in self.of(kind) if one["seed"] in of_other]

    def loses(self, text: str, kind: Kind, other: Kind) -> Part:
        """The claim that the first is worse than the second."""
        return loses(text, self.differences(kind, other))

    def keeps(self, text: str, kind: Kind, other: Kind) -> Part:
        """The claim that the first is as good as the second."""
        return keeps(text, self.differences(kind, other))


class MacStudy(CellStudy):
    """A study of kinds of trainings, which are cells of a folder that all these studies share."""

    folder = "mac"
    names_machines = True
    table_title = ""

    def kinds(self, quick: bool) -> list[Kind]:
        """The kinds of trainings, the slow ones last."""
        raise NotImplementedError

    def claims(self, view: Any) -> list[Claim]:
        """The claims, judged."""
        raise NotImplementedError

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        return runs.cells(self.kinds(quick), quick)

    def computed(self, done: Cells, quick: bool, options: Options) -> dict[str, Any]:
        return {"rows": runs.trained(done, self.kinds(quick), quick)}

    def view(self, data: Data) -> Any:
        return Trainings(data["rows"])

    def kind_tables(self, view: Any) -> list[Table]:
        """Those above the claims."""
        return [kind_table(self.table_title, view, self.kinds(quick=False))]

    def tables(self, view: Any) -> list[Table]:
        """The kinds, and the claims one comparison per row."""
        return [*self.kind_tables(view), claim_table(self.claims(view))]

    def findings(self, view: Any) -> Iterable[str]:
        return [JUDGED, *(claim.sentence() for claim in self.claims(view))]


# ---- tables and panels ----------------------------------------------------------------------------------------------


def kind_table(title: str, trainings: Trainings, kinds: Sequence[Kind], task: str = "resnet8") -> Table:
    """One row per kind, with its difference from float32 of the same task."""
    rows = [
        {
            Column("scheme"): kind.name,
            Column("loss scale"): kind.loss_scale,
            **training_columns(trainings, kind, baseline(kind.task)),
        }
        for kind in dict.fromkeys(kinds)
        if kind.task == task
    ]
    return Table.of(f"{title}, {setting(task)}, means over seeds", rows)


def setting(task: str) -> str:
    """What was trained, for titles."""
    return f"{TASKS[task].model} on {TASKS[task].data}"


def claim_table(claims: Sequence[Claim]) -> Table:
    """One row per comparison."""
    return Table.of(
        "Claims",
        [
            {
                Column("claim"): claim.label or "–",
                Column("comparison"): part.text,
                Column("difference", "points"): part.difference,
                Column("seeds"): len(part.gaps),
                Column("verdict"): part.verdict,
            }
            for claim in claims
            for part in claim.parts
        ],
    )


def training_columns(trainings: Trainings, kind: Kind, base: Kind) -> dict[Column, Value]:
    """Columns of a kind's trainings, with its difference from `base`."""
    outcomes = trainings.of(kind)
    differs = "–" if kind == base else in_points(trainings.differences(kind, base), sign=True)
    return {
        Column("seeds"): len(outcomes),
        Column("accuracy", "%"): in_points(trainings.accuracies(kind)),
        Column("against float32", "points"): differs,
        Column("saturated MACs"): in_words(share(outcomes, "saturated", PRODUCTS)),
        Column("underflowed MACs"): in_words(share(outcomes, "underflowed", PRODUCTS)),
        Column("casts to zero"): in_words(share(outcomes, "underflowed", CASTS)),
        Column("loss scale at the end"): scales(outcomes),
        Column("skipped", "steps"): mean_or_none([float(outcome["skipped"]) for outcome in outcomes]),
        Column("diverged", "seeds"): sum(bool(outcome["diverged"]) for outcome in outcomes) if outcomes else None,
    }


def in_words(value: float | None) -> str | None:
    """A share as a percentage; None stays None."""
    return None if value is None else share_text(value)


def scales(outcomes: Sequence[Outcome]) -> str | None:
    """The loss scales of all seeds, as powers of two."""
    values = sorted({value for outcome in outcomes if (value := outcome["scale"])})
    if not values:
        return None
    texts = [f"2^{math.log2(value):.0f}" for value in values]
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def accuracy_series(label: str, trainings: Trainings, kinds: Iterable[Kind]) -> Series:
    """Bars of mean accuracies with their intervals, in per cent."""
    by_kind = [trainings.accuracies(kind) for kind in kinds]
    means, halves = (
        [None if (share := of(values)) is None else 100 * share for values in by_kind]
        for of in (mean_or_none, half_width)
    )
    return Series(label, means, "bars", halves=halves)


def accuracy_panel(
    title: str, trainings: Trainings, ticks: Sequence[str], bars: Mapping[str, Iterable[Kind]], x: str, base: Kind
) -> Panel:
    """Bars by tick, with the accuracy of float32 as a dashed line."""
    series = [accuracy_series(label, trainings, kinds) for label, kinds in bars.items()]
    (level,) = accuracy_series("float32", trainings, [base]).values
    return Panel(title, "accuracy, %", series, x, list(ticks), level=level, level_label="float32")
