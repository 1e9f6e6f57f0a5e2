"""The records of a profile: what was measured in each cell, and what follows from several cells together.

They are plain values, which `profile.json` holds unchanged.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Literal

from shoal.profiling.rounds import Timing
from shoal.training.clock import UPDATE_ALL_TRAINERS

Record = dict[str, Any]
CELL = ("env", "algorithm", "implementation", "sampler")  # what a record is about, with the number of agents
Event = Literal["l1", "l2", "l3", "dtlb", "walks"]
EVENTS: tuple[Event, ...] = ("l1", "l2", "l3", "dtlb", "walks")
"""Misses that the cache model counts (`shoal_papers.caches.model.Misses`)."""


def time_record(timing: Timing) -> Record:
    """Time of a round of one cell: medians, their sums, and shares of the whole as the papers take them."""
    phases, totals = timing.phases(), timing.totals()
    update, whole = sum(phases[name] for name in UPDATE_ALL_TRAINERS), sum(phases.values())
    low, _, high = statistics.quantiles(totals if len(totals) > 1 else 2 * totals, n=4, method="inclusive")
    return {
        **asdict(timing.cell),
        "ring": timing.ring,
        "rounds": len(timing.rounds),
        "cut_short": timing.cut_short,
        "others": timing.others,  # share of the processors that other programs used
        "round_ms": 1e3 * whole,
        "round_ms_low": 1e3 * low,
        "round_ms_high": 1e3 * high,
        "update_ms": 1e3 * update,
        "update_share": update / (whole - phases["environment"]),
        "update_share_with_environment": update / whole,
        "phases_ms": {name: 1e3 * seconds for name, seconds in phases.items()},
        "parts_ms": {name: 1e3 * seconds for name, seconds in timing.seconds().items() if ":" in name},
        "shares_of_update": {name: phases[name] / update for name in UPDATE_ALL_TRAINERS},
        "counts": timing.counts,
        "round_joules": timing.round_joules(),
    }


def growth_records(times: Iterable[Record]) -> list[Record]:
    """For each pair of cells of which one has twice the agents: how many times as long each phase takes."""
    by_cell = {(*(record[name] for name in CELL), record["agents"]): record for record in times}
    grown = []
    for (*cell, agents), record in by_cell.items():
        if (double := by_cell.get((*cell, 2 * agents))) is None:
            continue
        phases, doubled = record["phases_ms"], double["phases_ms"]
        grown.append(
            {
                **dict(zip(CELL, cell, strict=True)),
                "agents": f"{agents} to {2 * agents}",
                "cut_short": record["cut_short"] or double["cut_short"],
                "round": double["round_ms"] / record["round_ms"],
                "update all trainers": double["update_ms"] / record["update_ms"],
                **{name: doubled[name] / phases[name] for name in ("action selection", *UPDATE_ALL_TRAINERS)},
            }
        )
    return grown


def saving_records(times: Sequence[Record]) -> list[Record]:
    """For each cell with neighbour sampling: how much less time it takes than uniform sampling."""

    names = ("env", "agents", "algorithm", "implementation", "sampler")
    uniform = {tuple(map(record.get, names[:-1])): record for record in times if record["sampler"] == "uniform"}
    saved = []
    for record in times:
        base = uniform.get(tuple(map(record.get, names[:-1])))
        if record["sampler"] == "uniform" or base is None:
            continue
        sampling, before = record["phases_ms"]["mini-batch sampling"], base["phases_ms"]["mini-batch sampling"]
        whole, whole_before = (
            sum(one["phases_ms"].values()) - one["phases_ms"]["environment"] for one in (record, base)
        )
        saved.append(
            {
                **{name: record[name] for name in names},
                "cut_short": record["cut_short"] or base["cut_short"],
                "sampling_ms": sampling,
                "uniform_sampling_ms": before,
                "sampling_reduction": 1 - sampling / before,
                "total_reduction": 1 - whole / whole_before,
                "total_reduction_with_environment": 1 - record["round_ms"] / base["round_ms"],
                # what the whole would gain if nothing but the sampling phase had changed: free of the rest's noise
                "total_reduction_by_sampling": (before - sampling) / whole_before,
            }
        )
    return saved


def add_growth(misses: list[Record]) -> None:
    """Add to each record of misses how many times those of half the agents it has, where these were measured, too."""
    by_cell = {(*_sampled(record), record["agents"]): record for record in misses}
    for record in misses:
        fewer = by_cell.get((*_sampled(record), record["agents"] / 2))
        record["growth"] = fewer and ratios(fewer, record)


def ratios(fewer: Record, more: Record) -> dict[str, float | None]:
    """How many times as many misses; None where there were none before."""
    return {event: more[event] / fewer[event] if fewer[event] else None for event in EVENTS}


def _sampled(record: Record) -> tuple[Any, ...]:
    return record["env"], record["implementation"], record["sampler"]
