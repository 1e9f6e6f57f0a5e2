"""Simulated runs over numbers of actors and precisions, as a table, sentences and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from shoal.actorq.simulation import ServiceTimes, Settings, simulate
from shoal.errors import counted
from shoal.results import Column, Figure, Panel, Result, Series, Table, Value
from shoal.waiting import Advance

HUMANOID = {
    "float32": ServiceTimes(
        learner_ms=3.0, step_ms=2.66, insert_ms=0.0132, pull_ms=2.63, load_ms=2.71, quantize_ms=31.8,
        pull_bytes=34_299_992, transition_bytes=643,
    ),
    "int8": ServiceTimes(
        learner_ms=3.0, step_ms=0.662, insert_ms=0.0141, pull_ms=0.798, load_ms=0.0911, quantize_ms=18.4,
        pull_bytes=8_668_544, transition_bytes=643,
    ),
}  # fmt: skip
"""dm:humanoid/stand with the paper's policy of 3×2048, actors in PyTorch (float32) and native int8, beside the paper's
GPU learner, for which 3 ms per update are assumed. The actors' times were measured on two quiet cores (AMD Zen 4) by
`shoal study actorq-model`; they are the cells "paper Humanoid Stand" in papers/cells/actorq-model."""
STOPS = 0.95  # more actors have stopped helping at the first number that reaches this share of the highest rate
Record = dict[str, Any]  # a simulated run: precision, actors, the numbers of its `Outcome`, speed_up over float32


def sweep(
    times: Mapping[str, ServiceTimes], settings: Settings, actors: Sequence[int], advance: Advance | None = None
) -> list[Record]:
    """One row per number of actors and precision; `times` has the service times of each precision."""
    for count in actors:
        replace(settings, actors=count).check()  # before the work, not in the middle of it
    rows: list[Record] = []
    for count in actors:
        base = None
        for precision, service in times.items():
            outcome = asdict(simulate(replace(settings, times=service, actors=count)))
            del outcome["seconds"]
            rate = outcome["env_steps_per_second"]
            base = rate if precision == "float32" else base
            rows.append({"precision": precision, "actors": count, **outcome, "speed_up": base and rate / base})
            if advance is not None:
                advance(count, f"{counted(count, 'actor')}, {precision}")
    return rows


def enough(rows: Sequence[Record], precision: str) -> tuple[int, float] | None:
    """The fewest actors that reach nearly the highest rate, and that rate; None: more would still help.

    The rate of the largest number counts as the highest only if there it is not the actors that limit.
    """
    matches = [row for row in rows if row["precision"] == precision]
    if not matches or matches[-1]["bottleneck"] == "actors":
        return None
    best = max(row["env_steps_per_second"] for row in matches)
    return next((row["actors"], best) for row in matches if row["env_steps_per_second"] >= STOPS * best)


def findings(rows: Sequence[Record]) -> list[str]:
    """Where more actors stop helping, and the speed-up of int8."""
    sentences = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        last = [row for row in rows if row["precision"] == precision][-1]
        reached = enough(rows, precision)
        if reached is None:
            sentences.append(
                f"{precision}: with {counted(last['actors'], 'actor')} it is still the actors’ side that limits."
            )
        else:
            side, rate = last["bottleneck"], Column("").text(reached[1])
            sentences.append(
                f"{precision}: more actors hardly help beyond {reached[0]:,}; the {side} limits at {rate} steps/s."
            )
    gains = [(row["speed_up"], row["actors"]) for row in rows if row["precision"] == "int8" and row["speed_up"]]
    if gains:
        most, least = max(gains), min(gains)
        other = f", {least[0]:.2f} with {least[1]:,}" if least < most else ""
        many = counted(most[1], "actor")
        sentences.append(f"int8 over float32: {most[0]:.2f} times the env steps/s with {many}{other}.")
    return sentences


def sweep_result(rows: list[Record], times: Mapping[str, ServiceTimes], settings: Settings, source: str) -> Result:
    """The rows as a table, with the service times they come from, sentences and a picture."""
    title = "Simulated runs"
    table = Table.of(title, list(map(_shown, rows)))
    units = {name: name.rpartition("_") for name in ServiceTimes.__annotations__}
    named = {name: Column(what, unit) for name, (what, _, unit) in units.items() if what}
    each = {name: asdict(service) for name, service in times.items()}
    services = Table.of("Service times", [{"precision": name, **service} for name, service in each.items()], named)
    actors = list(dict.fromkeys(row["actors"] for row in rows))
    sentences = [f"Service times: {source}.", *findings(rows)]
    figure = Figure("simulation", title, panels(rows, actors))
    plain = {key: value for key, value in asdict(settings).items() if key not in ("times", "actors")}
    data = {"rows": rows, "times": each, "settings": plain}
    return Result("simulation", title, [services, table], sentences, [figure], data)


def _shown(row: Record) -> dict[Column, Value]:
    """A row for people."""
    return {
        Column("actors"): row["actors"],
        Column("precision"): row["precision"],
        Column("env", "steps/s"): row["env_steps_per_second"],
        Column("over float32", format=".2f"): row["speed_up"],
        Column("updates/s"): row["updates_per_second"],
        Column("learner waits", format=".0%"): row["learner_stall"],
        Column("actors wait", format=".0%"): row["actor_stall"],
        Column("actors pull", format=".0%"): row["pull_share"],
        Column("lag", "updates"): row["lag_mean"],
        Column("lag p95", "updates"): row["lag_p95"],
        Column("down", "Mbit/s"): 8e-6 * row["down_bytes_per_second"],
        Column("up", "Mbit/s"): 8e-6 * row["up_bytes_per_second"],
        Column("limits"): row["bottleneck"],
    }


def panels(rows: Sequence[Record], actors: Sequence[int]) -> list[Panel]:
    """Rate, lag and bytes per second over the number of actors."""
    ticks = [f"{count:,}" for count in actors]
    named = (
        ("Throughput", "env steps/s", "env_steps_per_second", 1.0),
        ("Lag of the policy that played, mean", "updates", "lag_mean", 1.0),
        ("Versions sent to actors", "Mbit/s", "down_bytes_per_second", 8e-6),
    )
    by_precision = {row["precision"]: [same for same in rows if same["precision"] == row["precision"]] for row in rows}

    def series(key: str, scale: float) -> list[Series]:
        return [Series(name, [scale * row[key] or None for row in same]) for name, same in by_precision.items()]

    return [Panel(title, unit, series(key, scale), "actors", ticks, log=True) for title, unit, key, scale in named]
