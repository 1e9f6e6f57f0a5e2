"""Claims of the slides judged seed by seed, and the tables and panels that the studies of MAC units share.

A side loses against another if the 95 % interval (Student's t) of the differences by seed is below zero and their mean
is at least `MATTERS`; it keeps up if the interval ends within `MATTERS`. Everything else is inconclusive.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.results import Column, Panel, Result, Series, Table, Value, share_text
from shoal.training.returns import confidence95
from shoal_papers.mac.runs import (
    CASTS,
    PLANS,
    PRODUCTS,
    SEEDS,
    Found,
    Kind,
    Outcome,
    Trainings,
    share,
)
from shoal_papers.study import panel_result

MATTERS = 0.03
"""Smallest difference of accuracy that matters: eleven of the 359 test images of digits."""
HOLDS, FAILS, UNKNOWN, NOT_RUN = "holds", "does not hold", "inconclusive with these data", "not run"
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
        return with_interval(self.gaps, sign=True)


@dataclass(frozen=True)
class Claim:
    """A sentence of the slides, with the comparisons that it implies."""

    label: str
    """(a) to (g); empty for a question, which has no verdict of its own."""
    words: str
    """What the slides say, or what was asked, with their numbers."""
    parts: tuple[Part, ...]

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
        told = []
        for verdict in (HOLDS, FAILS, UNKNOWN, NOT_RUN):
            parts = [part for part in self.parts if part.verdict == verdict]
            texts = [f"{part.text} ({part.difference} points)" if part.gaps else part.text for part in parts]
            told += [f"{verdict.capitalize()}: {'; '.join(texts)}."] if parts else []
        head = f"({self.label}) {self.words}: {self.verdict.upper()}." if self.label else self.words
        return " ".join([head, *told])


def loses(text: str, gaps: Sequence[float], matters: float = MATTERS) -> Part:
    """The claim that one side is worse than the other."""
    return Part(text, tuple(gaps), _verdict(gaps, matters, loss=True))


def keeps(text: str, gaps: Sequence[float], matters: float = MATTERS) -> Part:
    """The claim that one side is as good as the other."""
    return Part(text, tuple(gaps), _verdict(gaps, matters, loss=False))


def _verdict(gaps: Sequence[float], matters: float, loss: bool) -> str:
    if not gaps:
        return NOT_RUN
    if len(gaps) < SEEDS:
        return UNKNOWN
    middle, half = float(np.mean(gaps)), confidence95(np.array(gaps))
    if middle + half < 0 and middle <= -matters:
        return HOLDS if loss else FAILS
    if middle - half >= -matters:
        return FAILS if loss else HOLDS
    return UNKNOWN


def with_interval(values: Sequence[float], sign: bool = False) -> str:
    """Mean ± half-width in points (per cent of the test images); not run without any."""
    if not values:
        return NOT_RUN
    half = confidence95(np.array(values)) if len(values) > 1 else math.nan
    text = f"{100 * float(np.mean(values)):{'+' if sign else ''}.1f}"
    return text if math.isnan(half) else f"{text} ± {100 * half:.1f}"


def claim_study(
    name: str,
    title: str,
    found: Found,
    tables: Sequence[Table],
    claims: Sequence[Claim],
    panels: list[Panel],
    notes: Sequence[str] = (),
) -> Result:
    """The result of a study: its tables and that of the claims, how they are judged, and what is missing."""
    said = [JUDGED, *notes, *(claim.sentence() for claim in claims), *found.get("machines", []), *found["failed"]]
    return panel_result(name, title, [*tables, claim_table(claims)], said, panels, {**found})


def kind_table(title: str, found: Trainings, kinds: Sequence[Kind], plan: str = "resnet8") -> Table:
    """One row per kind, with its difference from float32 of the same plan."""
    rows = [
        {
            Column("scheme"): kind.name,
            Column("loss scale"): kind.loss_scale,
            **training_columns(found, kind, baseline(kind.plan)),
        }
        for kind in dict.fromkeys(kinds)
        if kind.plan == plan
    ]
    return Table.of(f"{title}, {setting(plan)}, means over seeds", rows)


def setting(plan: str) -> str:
    """What was trained, for titles."""
    own = PLANS[plan]
    return f"{own.model} on {own.data}"


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


# ---- tables and panels ----------------------------------------------------------------------------------------------


def training_columns(found: Trainings, kind: Kind, base: Kind | None = None) -> dict[Column, Value]:
    """Columns of a kind's trainings; with its difference from `base`, if there is one."""
    outcomes = found.of(kind)
    events = (("saturated", PRODUCTS), ("underflowed", PRODUCTS))
    own: dict[Column, Value] = {
        Column("seeds"): len(outcomes),
        Column("accuracy", "%"): with_interval(found.accuracies(kind)),
    }
    if base is not None:
        own[Column("against float32", "points")] = (
            "–" if kind == base else with_interval(found.differences(kind, base), sign=True)
        )
    own |= {Column(f"{event} MACs"): in_words(share(outcomes, event, roles)) for event, roles in events}
    own[Column("casts to zero")] = in_words(share(outcomes, "underflowed", CASTS))
    own[Column("loss scale at the end")] = scales(outcomes)
    own[Column("skipped", "steps")] = mean_of([outcome["skipped"] for outcome in outcomes])
    own[Column("diverged", "seeds")] = sum(bool(outcome["diverged"]) for outcome in outcomes) if outcomes else None
    return own


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


def mean_of(values: Sequence[float]) -> float | None:
    """The mean, if there are any."""
    return float(np.mean(values)) if values else None


def accuracy_series(label: str, found: Trainings, kinds: Sequence[Kind | None]) -> Series:
    """Bars of mean accuracies with their intervals, in per cent; None leaves a gap."""
    held = [found.accuracies(kind) if kind is not None else [] for kind in kinds]
    values = [100 * float(np.mean(own)) if own else None for own in held]
    halves = [100 * confidence95(np.array(own)) if len(own) > 1 else None for own in held]
    return Series(label, values, "bars", halves=halves)


def accuracy_panel(
    title: str, found: Trainings, ticks: Sequence[str], bars: Mapping[str, Sequence[Kind | None]], x: str, base: Kind
) -> Panel:
    """Bars by tick, with the accuracy of float32 as a dashed line."""
    level = mean_of(found.accuracies(base))
    series = [accuracy_series(label, found, kinds) for label, kinds in bars.items()]
    return Panel(
        title, "accuracy, %", series, x, list(ticks), level=None if level is None else 100 * level,
        level_label="float32",
    )  # fmt: skip


def baseline(plan: str = "resnet8") -> Kind:
    """Float32 of the same plan."""
    return Kind("float32", "none", plan)
