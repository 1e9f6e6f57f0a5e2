"""Tables 3 and 4, Figures 5 and 6: how much sooner runs with quantized actors reach 95 % of the best float32 score.

Every task is trained at two paces: with 16 samples per insert as in the paper, where a learner on a CPU binds, and with
few, where the actor does. Two float32 actors tell engine and precision apart: PyTorch, as in the paper, and ONNX
Runtime. Tasks that two cores cannot train in minutes come from the simulation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from shoal.results import Column, Figure, Panel, Table, Value
from shoal_papers.cells import Cells, Options, StudyCell
from shoal_papers.quarl import actorq_paper
from shoal_papers.quarl.actor_runs import (
    PACES,
    SCORE,
    SEEDS,
    TRAINED,
    Runs,
    RunStudy,
    curves_panel,
    faster,
    late_return,
    loss_verdict,
    pairs,
    speed_verdict,
)
from shoal_papers.quarl.actorq_model import ActorqModel
from shoal_papers.quarl.actorq_paper import PAPER, paper_row
from shoal_papers.seeds import NOT_RUN, mean, with_interval
from shoal_papers.study import Data

TORCH, ONNX, HALF, INT8 = "float32, PyTorch", "float32, ONNX Runtime", "float16", "int8"
KINDS: dict[str, dict[str, Any]] = {
    TORCH: {"actor_engine": "torch"},
    ONNX: {"actor_engine": "onnx"},
    HALF: {"actor_precision": "float16"},
    INT8: {"actor_precision": "int8"},
}
"""Kinds of actors; the first is the paper's. float16 and int8 play in the fastest engine that has them."""
QUICK = {"Cartpole (Gym)": ((TORCH, INT8), ("actor-bound",), 12_000)}
EVALUATED = 5  # episodes of the final evaluation
LEARNT = 0.5
"""A task counts as learnt where the best float32 score covers this share of the way from random to the paper's."""


@dataclass(frozen=True)
class Times:
    """A task at one pace: the runs of each kind of actors, and the level that they are timed to."""

    runs: dict[str, Runs]
    reward: float
    """The paper's score, for episodes of our length."""

    @property
    def seeds(self) -> int:
        """Seeds of the kind that has fewest, of those that were run at all."""
        return min((len(runs) for runs in self.runs.values() if runs), default=0)

    @property
    def random(self) -> float:
        """Return of a random policy."""
        return self.runs[TORCH].random

    @property
    def learnt(self) -> bool:
        """Whether float32 actors in PyTorch led to anything like the paper's score."""
        best = self.runs[TORCH].best
        return best - self.random >= LEARNT * (self.reward - self.random)

    @property
    def level(self) -> float | None:
        """95 % of the best score of float32 actors in PyTorch; None where there is none."""
        return self.runs[TORCH].threshold if self.runs[TORCH] and self.learnt else None

    def seconds(self, kind: str) -> float | str:
        """Seconds to that level on the mean curve, or why there are none."""
        if not self.runs[kind] or not self.runs[TORCH]:
            return NOT_RUN
        if self.level is None:
            return "not learnt"
        seconds = self.runs[kind].time_to(self.level)
        return "not reached" if seconds is None else seconds

    def ratio(self, kind: str, base: str = TORCH) -> float | None:
        """How much sooner a kind of actors gets there than another."""
        own, other = self.seconds(kind), self.seconds(base)
        return other / own if isinstance(own, float) and isinstance(other, float) else None

    def ratios(self, kind: str, base: str = TORCH) -> list[float]:
        """The same by seed, each from its own curve; seeds that do not get there are left out."""
        if self.level is None:
            return []
        both = pairs(self.runs[kind], self.runs[base])
        times = [(Runs([own]).time_to(self.level), Runs([other]).time_to(self.level)) for own, other in both]
        return [other / own for own, other in times if own and other]


LEVEL = (
    "The level is r_random + 0.95 (r_max - r_random), where r_max is the best value of the mean curve of float32 "
    "actors in PyTorch at the same pace: 95 % of a negative score would be above it."
)


AllTimes = Mapping[tuple[str, str], Times]  # by task and pace, of the tasks that are trained here


class ActorqSpeed(RunStudy, name="actorq-speed"):
    """The paper's tables with our times beside theirs, and whether its claims hold."""

    title = "Time to 95 % of the best float32 score with quantized actors (Tables 3 and 4, Figures 5 and 6)"
    about = ("task", "pace", "kind")

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """One run per task, pace, kind of actors and seed; seed 0 of everything first."""
        if quick:
            return [
                _cell(task, pace, kind, 0, steps)
                for task, (kinds, paces, steps) in QUICK.items()
                for pace, kind in product(paces, kinds)
            ]
        return [
            _cell(task, pace, kind, seed, TRAINED[task].paces[pace].steps)
            for seed, task, pace, kind in product(range(SEEDS), TRAINED, PACES, KINDS)
        ]

    def length(self, quick: bool, options: Options) -> float:
        return super().length(quick, options) + sum(cell.seconds for cell in service_cells(quick))

    def computed(self, done: Cells, quick: bool, options: Options) -> dict[str, Any]:
        """Run all cells; then, for the other tasks, cells that actorq-model has as well."""
        data = super().computed(done, quick, options)
        model = Cells(ActorqModel.name, quick, options, done.advance)
        service = model.run(service_cells(quick), ActorqModel.work, workers=1, optional=True)
        done.failed += model.failed
        done.interrupted |= model.interrupted
        others = [paper_row(task, service) for task in PAPER if task not in TRAINED]
        return {**data, "simulated": {row["task"]: row["speed_up"] for row in others if row is not None}}

    def view(self, data: Data) -> tuple[AllTimes, Mapping[str, float]]:
        """Times; and, of tasks that are not trained here, the simulated speed-up of int8 on the paper's machine."""
        groups = super().view(data)
        times = {
            (task, pace): Times({kind: groups[task, pace, kind] for kind in KINDS}, PAPER[task].reward * trained.share)
            for task, trained in TRAINED.items()
            for pace in PACES
        }
        return times, data.get("simulated", {})

    def tables(self, view: tuple[AllTimes, Mapping[str, float]]) -> list[Table]:
        times, simulated = view
        tables = [
            Table.of("Seconds to 95 % of the best float32 score (Table 4)", list(time_rows(times))),
            Table.of("Speed-up over float32 actors in PyTorch", list(speed_rows(times, simulated))),
            Table.of("Tasks as they are trained here", list(task_rows())),
        ]
        runs = list(run_rows(times))
        return [*tables, Table.of("The runs, means over seeds", runs)] if runs else tables

    def findings(self, view: tuple[AllTimes, Mapping[str, float]]) -> list[str]:
        return [paper_sentence(), SCORE, LEVEL, *claims(view[0])]

    def figures(self, view: tuple[AllTimes, Mapping[str, float]]) -> list[Figure]:
        drawn = "Training return over {}: mean over seeds, band from the worst to the best; dashed: the 95 % level"
        return [
            Figure("actorq-speed", drawn.format("seconds (Figure 5)"), panels(view[0], "seconds")),
            Figure("actorq-speed-steps", drawn.format("env steps (Figure 6)"), panels(view[0], "env_steps")),
        ]


def _cell(task: str, pace: str, kind: str, seed: int, steps: int) -> StudyCell:
    trained, chosen = TRAINED[task], TRAINED[task].paces[pace]
    settings = {"pull_every": PAPER[task].pull_every, **trained.settings, **KINDS[kind], "seed": seed}
    settings["samples_per_insert"] = chosen.samples_per_insert
    return StudyCell(
        f"{task} {pace} {kind} seed {seed}",
        {"task": task, "pace": pace, "kind": kind, "train": settings, "steps": steps, "evaluate": EVALUATED},
        chosen.seconds * steps / chosen.steps,
    )


def service_cells(quick: bool) -> list[StudyCell]:
    """Service times of the tasks that are not trained here, for the simulation."""
    return [] if quick else actorq_paper.cells(quick, tasks=[task for task in PAPER if task not in TRAINED])


def paper_sentence() -> str:
    """The paper's claims, recomputed from its table."""
    ratios = {"int8": [row.int8 for row in PAPER.values()], "float16": [row.float16 for row in PAPER.values()]}
    said = " and ".join(f"{name} {_range(of_name)}" for name, of_name in ratios.items())
    return f"Paper: {said} over float32, with the same convergence over steps; 3 × 2048 units, a GPU learner, 4 actors."


def _range(ratios: Sequence[float]) -> str:
    middle = math.exp(mean([math.log(ratio) for ratio in ratios]))
    return f"{min(ratios):.2f} to {max(ratios):.2f} times (geometric mean {middle:.2f})"


def time_rows(all_times: AllTimes) -> Iterable[dict[Column, Value]]:
    """Both paces of tasks that are trained here, one row of the others."""
    for task, paper in PAPER.items():
        for pace in PACES if task in TRAINED else ("",):
            times = all_times.get((task, pace))
            ran = times is not None and bool(times.runs[TORCH])
            yield {
                Column("task"): task,
                Column("algorithm"): paper.algorithm.upper(),
                Column("pace"): pace or None,
                Column("seeds"): times.seeds if times else 0,
                Column("random", format=".1f"): times.random if times and ran else None,
                Column("best float32", format=".1f"): times.runs[TORCH].best if times and ran else None,
                Column("paper's", format=".1f"): paper.reward,
                Column("level", format=".1f"): times.level if times else None,
                **{Column(kind, "s", ".1f"): times.seconds(kind) if times else NOT_RUN for kind in KINDS},
                Column("paper float32 / float16 / int8", "s"): " / ".join(f"{s:.0f}" for s in paper.seconds),
            }


def speed_rows(all_times: AllTimes, simulation: Mapping[str, float]) -> Iterable[dict[Column, Value]]:
    """Ratios of those times; simulated where a task is not trained here."""
    for task, paper in PAPER.items():
        for pace in PACES if task in TRAINED else ("",):
            times = all_times.get((task, pace))
            simulated = simulation.get(task) if times is None else None
            yield {
                Column("task"): task,
                Column("pace"): pace or None,
                Column("source"): _source(times, simulated),
                Column(ONNX, format=".2f"): times.ratio(ONNX) if times else None,
                Column(HALF, format=".2f"): times.ratio(HALF) if times else None,
                Column(INT8, format=".2f"): times.ratio(INT8) if times else simulated,
                Column("int8 over ONNX float32", format=".2f"): times.ratio(INT8, ONNX) if times else None,
                Column("paper float16", format=".2f"): paper.float16,
                Column("paper int8", format=".2f"): paper.int8,
            }


def _source(times: Times | None, simulated: float | None) -> str:
    if times is None:
        return NOT_RUN if simulated is None else "simulated"
    if not times.seeds:
        return NOT_RUN
    return "trained here" if times.level is not None else "trained here, not learnt"


def task_rows() -> Iterable[dict[Column, Value]]:
    """What is trained, and what differs from the paper."""
    for task, trained in TRAINED.items():
        paces = trained.paces.values()
        yield {
            Column("task"): task,
            Column("environment"): trained.settings["env"],
            Column("hidden layers"): " × ".join(map(str, trained.settings["hidden"])),
            Column("paper's"): "2048 × 2048 × 2048",
            Column("samples per insert"): " and ".join(f"{pace.samples_per_insert:g}" for pace in paces),
            Column("env steps"): " and ".join(f"{pace.steps:,}" for pace in paces),
            Column("paper's learner steps"): PAPER[task].steps,
            Column("differs from the paper"): trained.note or None,
        }


def run_rows(all_times: AllTimes) -> Iterable[dict[Column, Value]]:
    """What a speed-up has to be read with: both sides' rates and waiting times, the achieved ratio and lag."""
    for (task, pace), times in all_times.items():
        for kind, runs in times.runs.items():
            if runs:
                yield {
                    Column("task"): task,
                    Column("pace"): pace,
                    Column("actors"): kind,
                    Column("seeds"): len(runs),
                    **run_columns(runs),
                }


def run_columns(runs: Runs) -> dict[Column, Value]:
    """The columns that describe runs with actors, whatever they are compared by."""
    return {
        Column("env steps", format=",.0f"): mean([run["env_steps"][-1] for run in runs]),
        Column("updates", format=",.0f"): mean([run["updates"] for run in runs]),
        Column("env steps/s", format=",.0f"): runs.steps_per_second,
        Column("updates/s", format=",.0f"): runs.updates_per_second,
        Column("learner waits", "%", ".0f"): runs.waiting("learner"),
        Column("actors wait", "%", ".0f"): runs.waiting("actor"),
        Column("bottleneck"): runs.bottleneck or None,
        Column("samples per insert", format=".2f"): runs.metric("samples_per_insert"),
        Column("lag", "updates", ".0f"): runs.metric("lag_mean"),
        Column("load", "ms", ".2f"): runs.metric("load_ms"),
        Column("final return, float32"): with_interval([run["trained"] for run in runs]),
    }


def claims(all_times: AllTimes) -> Iterable[str]:
    """Claim by claim, for every task that was trained here."""
    for (task, pace), times in all_times.items():
        runs = times.runs
        if not runs[TORCH]:
            continue
        where = f"{task}, {pace}"
        if times.level is None:
            yield f"{where}: not learnt, {runs[TORCH].best:.1f} at best, a random policy {times.random:.1f}."
            continue
        named = {"learner-bound": "learner", "actor-bound": "actors"}[pace]
        if others := [kind for kind, own in runs.items() if own and own.bottleneck != named]:
            yield f"{where}: the bottleneck was not only the {named}, but also the other side with {'; '.join(others)}."
        span = runs[TORCH].best - times.random
        for kind in (INT8, HALF):
            if both := pairs(runs[kind], runs[TORCH]):
                gaps = [late_return(own) - late_return(other) for own, other in both]
                said = f"return at the end {with_interval(gaps)} over float32: {loss_verdict(gaps, span)}"
                yield f"{where}: {kind} converges as float32 does ({said})."
                yield f"{where}: {kind} is sooner than float32 in PyTorch: {speed_verdict(times.ratios(kind))}."
                yield f"{where}: {kind} plays the same env steps sooner: {speed_verdict(faster(both))}."
        if runs[INT8] and runs[ONNX]:
            ratios = times.ratios(INT8, ONNX)
            yield f"{where}: int8 is sooner than float32 in ONNX Runtime: {speed_verdict(ratios)}."
    yield from overall(all_times)


def overall(all_times: AllTimes) -> Iterable[str]:
    """Geometric means over the tasks that were learnt."""
    for pace in PACES:
        for kind, base in ((INT8, TORCH), (INT8, ONNX), (HALF, TORCH)):
            ratios = [times.ratio(kind, base) for (_, at), times in all_times.items() if at == pace]
            if known := [ratio for ratio in ratios if ratio is not None]:
                tasks = f"{len(known)} of {len(TRAINED)} tasks"
                yield f"{pace.capitalize()}: {kind} over {base} {_range(known)}, {tasks} trained here."


def panels(all_times: AllTimes, axis: str) -> list[Panel]:
    """One panel per task and pace that was run."""
    return [
        curves_panel(f"{task}, {pace}", times.runs, axis, times.level)
        for (task, pace), times in all_times.items()
        if times.seeds
    ]
