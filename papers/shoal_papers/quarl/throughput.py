"""Figures 8 and 9: one actor of a running system, whose every pull finds a new version.

The paper's learner has a GPU of its own and is faster than the actors' pulls; a learner on the same two cores is not.
So what publishes here only publishes: each version as soon as the actor has taken the last one. The weights are always
the same, which changes nothing about the time that they take.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from shoal.actorq.broadcast import BROADCAST_BITS, numbers_of
from shoal.actorq.collector import PAUSE, ActorCollector
from shoal.actorq.service_times import FIRST
from shoal.actorq.system import LocalSystem
from shoal.bench.actorq import TASKS, one_actor
from shoal.errors import UserError, counted
from shoal.profiling.counters import EnergyMeter
from shoal.results import Column, Panel, Series, Table, Value
from shoal.training.config import TrainConfig
from shoal.training.loop import Training
from shoal_papers.cells import Cells, Options, StudyCell
from shoal_papers.quarl.actor_runs import factor
from shoal_papers.seeds import NOT_RUN
from shoal_papers.study import CellStudy

STARTING = 3.0  # approximate seconds until an actor has played its first steps
STAGES = ("step", "environment", "pull", "deserialize", "load", "other")
BUSY = 3.5  # load average above which other programs must have been running
PRECISIONS = {32: "float32", 16: "float16", 8: "int8"}


def cell_of(task: str, engine: str, precision: str, bits: int, pull_every: int, seconds: float) -> StudyCell:
    """One kind of actor; `bits` are those of the broadcast."""
    name = f"{task} {engine} {precision} {bits} bits pull {pull_every}"
    kind = {"engine": engine, "precision": precision, "bits": bits, "pull_every": pull_every}
    return StudyCell(name, {"task": task, **kind, "seconds": seconds}, seconds + STARTING)


def busy(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence if other programs were busy meanwhile; the system itself keeps about two processors busy."""
    loads = [load for one in results if (load := one.get("load_average") or 0.0) > BUSY]
    if not loads:
        return []
    return [
        f"The machine was busy with other things during {counted(len(loads), 'cell')} (load average up to "
        f"{max(loads):.0f}): their figures mean little; delete them and measure again when it is quiet."
    ]


def measure_actor(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: run the system of one kind of actor."""
    config = one_actor(
        TASKS[settings["task"]],
        actor_engine=settings["engine"],
        actor_precision=settings["precision"],
        broadcast_bits=settings["bits"],
        pull_every=settings["pull_every"],
        error_buffer=1e12,  # nothing is sampled, and inserts do not wait for it
    )
    passed = run_system(config, settings["seconds"])
    if passed.replaced:
        raise UserError(
            "The actor sent no heartbeat for several seconds and was restarted; measure on a quieter machine."
        )
    did = passed.did
    names = {"step": "act", "environment": "environment", "pull": "pull", "deserialize": "deserialize"}
    stages = {stage: did[name] for stage, name in names.items()}
    stages["load"] = did["load"] - did["deserialize"]
    stages["other"] = passed.seconds - sum(stages.values())
    per_1000 = 1000 / did["steps"]
    return {
        "engine": passed.engine,
        "steps_per_second": did["steps"] / passed.seconds,
        "bytes_per_second": did["bytes"] / passed.seconds,
        "bytes_per_pull": did["bytes"] / did["pulls"],
        "pulls_per_1000": did["pulls"] * per_1000,  # those that found a new version
        "seconds_per_1000": {stage: seconds * per_1000 for stage, seconds in stages.items()},
        "joules_per_1000": None if passed.joules is None else passed.joules * per_1000,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


@dataclass(frozen=True)
class Passed:
    """What a system with one actor did within some seconds."""

    seconds: float
    did: dict[str, float]
    """Counts and seconds of the actor, by the names of the board."""
    joules: float | None
    """None without energy counters."""
    engine: str
    replaced: int
    """Processes that were silent for too long and restarted, mostly because the machine is busy."""


def run_system(config: TrainConfig, seconds: float) -> Passed:
    """Run an actor for some seconds after its first steps, from right after one pull to right after another.

    In place of a learner the same weights are published as a new version whenever the actor has taken the last one: so
    every pull finds something new, as with a learner on a device of its own that is faster than the pulls.
    """
    training = Training(config)
    collector = training.collector
    assert isinstance(collector, ActorCollector) and isinstance(collector.system, LocalSystem)
    system, board = collector.system, collector.system.board
    payload = system.play.payload(system.policy, numbers_of(system.policy))

    def run_until(done: Callable[[], bool]) -> dict[str, float]:
        """What the actor has done after the next pull from then on."""
        pulls = None
        while pulls is None or board.counts["pulls"][1] == pulls:
            latest = system.payloads.latest
            if board.counts["number"][1] == latest:
                system.payloads.publish(payload, latest)
            if collector.ready():
                training.step()
            else:
                system.watch(wanted=True)
                time.sleep(PAUSE)
            if pulls is None and done():
                pulls = board.counts["pulls"][1]
        return {name: float(numbers[1]) for name, numbers in {**board.counts, **board.seconds}.items()}

    try:
        system.payloads.publish(payload, 0)
        training.owes_update()  # tells the actor how much to explore
        collector.begin()
        before = run_until(lambda: board.counts["steps"][1] >= FIRST)
        energy, start = EnergyMeter(), time.perf_counter()
        after = run_until(lambda: time.perf_counter() >= start + seconds)
        passed, joules = time.perf_counter() - start, energy.joules()
        did = {name: after[name] - before[name] for name in after}
        return Passed(passed, did, joules, system.play.engine, system.replaced)
    finally:
        collector.close()
        training.env.close()


Record = Mapping[str, Any]  # a cell, run or not, with what was measured: see `measure_actor`


class ThroughputStudy(CellStudy):
    """A study of such actors, one at a time: each takes two processors."""

    workers = 1
    work = staticmethod(measure_actor)

    def computed(self, done: Cells, quick: bool, options: Options) -> dict[str, Any]:
        """All cells, also those that were not run."""
        cells = self.cells(quick, options)
        results = done.run(cells, self.work, self.workers)
        done.failed += [*busy(results.values()), *done.machines()]
        kind = ("task", "engine", "precision", "bits", "pull_every")
        return {
            "rows": [
                {"cell": cell.name, **{name: cell.settings[name] for name in kind}, "measured": results.get(cell.name)}
                for cell in cells
            ]
        }


def network_of(task: str) -> str:
    """A task with the hidden layers of its policy."""
    return f"{task} {'×'.join(map(str, TASKS[task]['hidden']))}"


def has_energy(records: Sequence[Record]) -> bool:
    """Whether any cell has it."""
    return any(value_of(record, "joules_per_1000") is not None for record in records)


def value_of(record: Record, name: str, scale: float = 1.0) -> Value:
    """A number that was measured; None: it was not."""
    value = record["measured"] and record["measured"][name]
    return None if value is None else scale * value


def of_kind(records: Sequence[Record], **kind: Any) -> Record | None:
    """What was measured of the first cell with these settings; None if it was not run."""
    fitting = (record for record in records if kind.items() <= record.items())
    return next((record["measured"] for record in fitting), None)


# ---- Figure 9: an actor's time ---------------------------------------------------------------------------------------

LARGE, SMALL = "humanoid", "gym-cartpole"
ENGINES: dict[str, tuple[tuple[str, int], ...]] = {
    LARGE: (("torch", 32), ("onnx", 32), ("onnx", 16), ("onnx", 8), ("native", 8)),
    SMALL: (("torch", 32), ("numba", 32), ("onnx", 32), ("onnx", 16), ("onnx", 8), ("native", 8)),
}
QUICK_ENGINES: dict[str, tuple[tuple[str, int], ...]] = {
    LARGE: (("onnx", 32), ("onnx", 16), ("onnx", 8), ("native", 8)),
    SMALL: (("numba", 32), ("native", 8)),
}
HEAVY, LIGHT = 30, 1000  # steps between pulls, communication-heavy and computation-heavy
BREAKDOWN_CLAIM = (
    "Paper (Figure 9, no numbers): step is the largest part when pulls are rare, and int8 shortens it much; with "
    "frequent pulls it shortens pull and deserialize, too; load is dearer than in 32 bits, dearer in 16 bits than in 8."
)


class ActorqBreakdown(ThroughputStudy, name="actorq-breakdown"):
    """Where the time of one actor goes with 32, 16 and 8 bits, per 1000 of its steps.

    Stages are the paper's: step (inference), pull (until the version's bytes are there), deserialize (bytes into
    numbers), load (numbers into the engine); the environment beside them. int8 actors read the broadcast codes as they
    are: they have nothing to deserialize, and the native engine reads them in place.
    """

    title = "An actor's time (Figure 9)"

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """The paper's network with frequent and with rare pulls, a small one with frequent pulls."""
        engines, seconds = (QUICK_ENGINES, 2.0) if quick else (ENGINES, 4.0)
        places = [(LARGE, HEAVY), (SMALL, HEAVY)] if quick else [(LARGE, HEAVY), (LARGE, LIGHT), (SMALL, HEAVY)]
        return [
            cell_of(task, engine, PRECISIONS[bits], bits, pull_every, seconds)
            for task, pull_every in places
            for engine, bits in engines[task]
        ]

    def tables(self, view: Sequence[Record]) -> list[Table]:
        energy = has_energy(view)
        return [Table.of("One actor per 1000 environment steps", [stage_row(record, energy) for record in view])]

    def findings(self, view: Sequence[Record]) -> list[str]:
        return [BREAKDOWN_CLAIM, *statements(view)]

    def panels(self, view: Sequence[Record]) -> list[Panel]:
        panels = []
        for task, pull_every in dict.fromkeys((record["task"], record["pull_every"]) for record in view):
            done = [
                (f"{record['engine']}\n{record['bits']}", record["measured"]["seconds_per_1000"])
                for record in view
                if record["measured"] and (record["task"], record["pull_every"]) == (task, pull_every)
            ]
            if not done:
                continue
            stacks = [Series(stage, [1e3 * stages[stage] for _, stages in done], "stack") for stage in STAGES]
            above = [f"{1e3 * sum(stages.values()):,.0f}" for _, stages in done]
            title, ticks = f"{network_of(task)}\na pull every {pull_every} steps", [tick for tick, _ in done]
            panels.append(Panel(title, "ms per 1000 steps", stacks, "engine, bits", ticks, above))
        return panels


def stage_row(record: Record, energy: bool) -> dict[Column, Value]:
    """A kind of actor."""
    stages: Mapping[str, float] = record["measured"]["seconds_per_1000"] if record["measured"] else {}
    values: dict[Column, Value] = {
        Column("network"): network_of(record["task"]),
        Column("pull every"): record["pull_every"],
        Column("engine"): record["engine"],
        Column("bits"): record["bits"],
        **{Column(stage, "s"): stages.get(stage) for stage in STAGES},
        Column("all", "s"): sum(stages.values()) if stages else None,
        Column("pulls"): value_of(record, "pulls_per_1000"),
    }
    if not stages:
        values[Column(STAGES[0], "s")] = NOT_RUN
    return values | ({Column("energy per 1000 steps", "J"): value_of(record, "joules_per_1000")} if energy else {})


def statements(rows: Sequence[Record]) -> list[str]:
    """The paper's statements, held against ONNX Runtime in 32, 16 and 8 bits; then what the native engine changes."""
    said = []
    for pull_every in dict.fromkeys(row["pull_every"] for row in rows if row["task"] == LARGE):
        actors = {
            (engine, bits): of_kind(rows, task=LARGE, engine=engine, bits=bits, pull_every=pull_every)
            for engine, bits in ENGINES[LARGE]
        }
        full, half, eight = (actors["onnx", bits] for bits in (32, 16, 8))
        if full and half and eight:
            said += [f"{network_of(LARGE)}, a pull every {pull_every} steps, ONNX Runtime in 32, 16 and 8 bits:"]
            said += _held(full, half, eight, pull_every)
        if eight and (native := actors["native", 8]):
            said.append(
                "- native int8 actors read the codes in place: there is nothing to deserialize, and load takes "
                f"{_stage(native, 'load'):.4f} s instead of {_stage(eight, 'load'):.4f} s in ONNX Runtime's int8."
            )
    return said


def _held(full: Record, half: Record, eight: Record, pull_every: int) -> list[str]:
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


def _stage(one: Record, stage: str) -> float:
    return float(one["seconds_per_1000"][stage])


# ---- Figure 8: computation and communication -------------------------------------------------------------------------

TASK = "humanoid"
KINDS = (("torch", "float32"), ("onnx", "float32"), ("onnx", "float16"), ("native", "int8"))
"""Engine and q; PyTorch is the paper's engine."""
PULLS = (30, 300, 1000)
QUICK_BITS = (32, 8, 4)
PAPER_GAIN = 0.30
NO_CHANGE = 0.05  # changes of the speed below this count as none, and so do those whose interval includes none
COMMUNICATION_CLAIM = (
    "Paper: quantizing communication gives up to 30 % with a pull every 30 steps, and about nothing where computation "
    "dominates (every 300 or 1000 steps; its caption and its text differ)."
)
MBIT = 1000  # of the network that is reckoned with


class ActorqCommunication(ThroughputStudy, name="actorq-communication"):
    """Bits of the actors' arithmetic (q) by bits of the broadcast (q_c), with frequent and with rare pulls.

    int8 actors take the 8-bit codes that they compute with, so their other pairs do not exist and are shown as "–".
    """

    title = "Bits of computation and of communication (Figure 8)"

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """Every pair that exists, the most frequent pulls first."""
        kinds, seconds = (KINDS[::3], 2.0) if quick else (KINDS, 6.0)
        pulls, widths = (PULLS[:2], QUICK_BITS) if quick else (PULLS, BROADCAST_BITS)
        return [
            cell_of(TASK, engine, precision, bits, pull_every, seconds)
            for pull_every, (engine, precision), bits in product(pulls, kinds, widths)
            if precision != "int8" or bits == 8
        ]

    def tables(self, view: Sequence[Record]) -> list[Table]:
        title = f"Environment steps per second of one actor, {network_of(TASK)}; columns: bits of the broadcast"
        tables = [
            grid(title, view, lambda record: value_of(record, "steps_per_second")),
            grid("Broadcast received, MB per second", view, lambda record: value_of(record, "bytes_per_second", 1e-6)),
        ]
        if has_energy(view):
            title = "Energy per 1000 steps, J"
            tables.append(grid(title, view, lambda record: value_of(record, "joules_per_1000")))
        return tables

    def findings(self, view: Sequence[Record]) -> list[str]:
        return [COMMUNICATION_CLAIM, *claims(view), *over_network(view)]

    def panels(self, view: Sequence[Record]) -> list[Panel]:
        widths = list(dict.fromkeys(record["bits"] for record in view))
        panels = []
        for pull_every in dict.fromkeys(record["pull_every"] for record in view):
            some = [record for record in view if record["pull_every"] == pull_every]
            series = []
            for engine, precision in dict.fromkeys((record["engine"], record["precision"]) for record in some):
                ran = [of_kind(some, engine=engine, precision=precision, bits=bits) for bits in widths]
                speeds = [actor["steps_per_second"] if actor else None for actor in ran]
                series.append(Series(f"{precision} in {engine}", speeds, "bars"))
            title, ticks = f"a pull every {pull_every} steps", list(map(str, widths))
            panels.append(Panel(title, "environment steps/s", series, "broadcast bits", ticks))
        return panels


def grid(title: str, records: Sequence[Record], value: Callable[[Record], Value]) -> Table:
    """A row per pull frequency and kind of actor, a column per width of the broadcast."""
    widths = dict.fromkeys(record["bits"] for record in records)
    rows: dict[tuple[Any, ...], dict[int, Value]] = {}
    for record in records:
        row = rows.setdefault((record["pull_every"], record["precision"], record["engine"]), {})
        row[record["bits"]] = value(record) if record["measured"] else NOT_RUN
    columns = [*map(Column, ("pull every", "q", "engine")), *(Column(f"{bits} bits") for bits in widths)]
    return Table(title, columns, [[*about, *(row.get(bits) for bits in widths)] for about, row in rows.items()])


def claims(rows: Sequence[Record]) -> list[str]:
    """What fewer bits of communication give, the actors' arithmetic unchanged, and what int8 gives as a whole."""
    said = []
    for pull_every in dict.fromkeys(row["pull_every"] for row in rows):
        gains = gains_of([row for row in rows if row["pull_every"] == pull_every])
        if gains:
            parts = (f"{bits} bits {mean:.2f} ({low:.2f} to {high:.2f})" for bits, (mean, low, high) in gains.items())
            how = f"A pull every {pull_every} steps, speed over that with 32 bits, mean over kinds of actors"
            said.append(f"{how}: {', '.join(parts)}; {verdict(pull_every, gains)}.")
        full = of_kind(rows, engine="torch", bits=32, pull_every=pull_every)
        eight = of_kind(rows, precision="int8", pull_every=pull_every)
        if full and eight:
            ratio = eight["steps_per_second"] / full["steps_per_second"]
            said.append(
                f"A pull every {pull_every} steps: int8 in both is {ratio:.2f} times PyTorch's float32 in both."
            )
    return said


def gains_of(rows: Sequence[Record]) -> dict[int, tuple[float, float, float]]:
    """Speed over that with a 32-bit broadcast to the same actors, by bits: geometric mean over kinds of actors.

    With its 95 % interval: single runs of some seconds differ by chance, so one kind alone says little.
    """
    ratios: dict[int, list[float]] = {}
    for row in rows:
        full = of_kind(rows, engine=row["engine"], precision=row["precision"], bits=32)
        if row["measured"] and full and row["bits"] < 32:
            ratios.setdefault(row["bits"], []).append(row["measured"]["steps_per_second"] / full["steps_per_second"])
    return {bits: mean for bits, some in ratios.items() if (mean := factor(some)) is not None}


def verdict(pull_every: int, gains: Mapping[int, tuple[float, float, float]]) -> str:
    """Whether the paper's claim for this pull frequency holds here."""
    if pull_every == PULLS[0]:
        if max(mean for mean, _, _ in gains.values()) >= 1 + PAPER_GAIN:
            return "the paper's 30 % hold"
        gained = any(low > 1 and mean >= 1 + NO_CHANGE for mean, low, _ in gains.values())
        return "a gain, but less than the paper's 30 %" if gained else "the paper's gain does not hold here"
    nothing = all(low <= 1 <= high or abs(mean - 1) < NO_CHANGE for mean, low, high in gains.values())
    return "the paper's “about nothing” holds" if nothing else "the paper's “about nothing” does not hold here"


def over_network(rows: Sequence[Record]) -> list[str]:
    """What a network would change, by arithmetic: the bytes of a pull at the network's rate on top of the time here."""
    pull_every = min(row["pull_every"] for row in rows)
    said = []
    for bits, precision in ((32, "float32"), (8, "float32"), (8, "int8")):
        if one := of_kind(rows, bits=bits, precision=precision, pull_every=pull_every):
            milliseconds = 1e3 * (8 * one["bytes_per_pull"] / (1e6 * MBIT))
            speed = 1 / (1 / one["steps_per_second"] + milliseconds / 1e3 / pull_every)
            said.append(f"{milliseconds:.0f} ms and leave {speed:,.0f} steps/s ({precision}, {bits} bits)")
    if not said:
        return []
    return [
        "In shared memory a pull is one copy, so its bytes cost little. Over a network of "
        f"{MBIT / 1000:g} Gbit/s for one actor alone (arithmetic, not measured), with a pull every {pull_every} steps, "
        f"a pull would take {'; '.join(said)}."
    ]
