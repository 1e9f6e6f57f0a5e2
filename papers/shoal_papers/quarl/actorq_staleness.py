"""Figure 7: what infrequent pulls cost. The same run with actors that pull the policy every 30, 300 and 1000 steps.

The paper's is Humanoid Stand, which pulls every 100 steps because it converged much more slowly at 1000; here it is a
task that two cores learn in minutes. The lag is measured: the learner's updates between the version that a transition
was played with and the learner's version when it arrived.
"""

from collections.abc import Iterable
from typing import Any, NotRequired, TypedDict

from shoal.results import Column, Figure, Result, Table, Value
from shoal.waiting import Advance
from shoal_papers.cells import Cells, StudyCell, total_seconds
from shoal_papers.quarl.actor_runs import (
    SCORE,
    SEEDS,
    Grouped,
    Run,
    best_mean,
    curves_panel,
    figure_of,
    grouped,
    late_return,
    loss_verdict,
    mean,
    over,
    pairs,
    random_return,
    steps_per_second,
    threshold,
    with_interval,
    work,
)
from shoal_papers.quarl.actorq_tasks import TRAINED
from shoal_papers.study import Options

PULLS = (30, 300, 1000)
QUICK_PULLS = (30, 1000)
TASKS = ("Cartpole Balance", "Cartpole (Gym)")
"""D4PG, and DQN."""
QUICK_STEPS = 12_000
EVALUATED = 10
PAPER_CLAIM = (
    "Paper: actors pull every 1000 steps; only Humanoid pulls every 100, because it converged much more slowly with "
    "1000. Its study of communication pulls every 30 steps, and every 300 (its caption) or 1000 (its text)."
)


def cells(quick: bool) -> list[StudyCell]:
    """One run per task, pull period and seed; seed 0 of everything first."""
    found = []
    for seed in range(1 if quick else SEEDS):
        for task in TASKS[1:] if quick else TASKS:
            how, pace = TRAINED[task], TRAINED[task].paces["learner-bound"]
            steps = QUICK_STEPS if quick else pace.steps
            for pull in QUICK_PULLS if quick else PULLS:
                train = {
                    **how.settings,
                    "samples_per_insert": pace.samples_per_insert,
                    "pull_every": pull,
                    "seed": seed,
                }
                settings = {"task": task, "pull": pull, "train": train, "steps": steps, "evaluate": EVALUATED}
                seconds = pace.seconds * steps / pace.steps
                found.append(StudyCell(f"{task} pull {pull} seed {seed}", settings, seconds))
    return found


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(quick))


def measured(quick: bool, advance: Advance, options: Options) -> dict[str, Any]:
    """Run all cells, one after the other: a run has a learner and an actor, and each takes a core."""
    todo = cells(quick)
    done = Cells("actorq-staleness", quick, options, advance)
    results = done.run(todo, work, workers=1)
    rows = [
        {"task": cell.settings["task"], "pull": cell.settings["pull"], "run": results[cell.name]}
        for cell in todo
        if cell.name in results
    ]
    return {"rows": rows, "failed": done.failed, "interrupted": done.interrupted}


class Row(TypedDict):
    """One run."""

    task: str
    pull: int
    run: Run


class Found(TypedDict):
    """The data of the study."""

    rows: list[Row]
    failed: list[str]
    interrupted: NotRequired[bool]


def study(found: Found) -> Result:
    """Returns over steps for each pull period, with the lag that was measured."""
    groups = grouped(found["rows"], "task", "pull")
    table = Table.of("Pull periods, means over seeds", list(table_rows(groups)))
    findings = [PAPER_CLAIM, SCORE, *claims(groups), *found["failed"]]
    title = "Returns with infrequent pulls of the policy (Figure 7)"
    drawn = "Training return over env steps: mean over seeds, band from the worst to the best"
    panels = [
        curves_panel(task, {f"every {pull} steps": groups.get((task, pull), []) for pull in PULLS}, "env_steps")
        for task in TASKS
        if any((task, pull) in groups for pull in PULLS)
    ]
    return Result("actorq-staleness", title, [table], findings, [Figure("actorq-staleness", drawn, panels)], {**found})


def table_rows(groups: Grouped) -> Iterable[dict[Column, Value]]:
    """One row per task and pull period."""
    for task in TASKS:
        level = threshold(groups[task, PULLS[0]]) if (task, PULLS[0]) in groups else None
        for pull in PULLS:
            runs = groups.get((task, pull), [])
            yield {
                Column("task"): task,
                Column("pull every", "steps"): pull,
                Column("seeds"): len(runs),
                Column("lag", "updates", ".0f"): figure_of(runs, "lag_mean"),
                Column("lag p95", "updates", ".0f"): figure_of(runs, "lag_p95"),
                Column("steps to 95 % of every-30's best", format=",.0f"): steps_to(level, runs),
                Column("return at the end"): with_interval([late_return(run) for run in runs]),
                Column("final return, float32"): with_interval([run["trained"] for run in runs]),
                Column("env steps/s", format=",.0f"): steps_per_second(runs) if runs else None,
            }


def steps_to(level: float | None, runs: list[Run]) -> float | str | None:
    """Env steps until the mean curve reaches the level."""
    if not runs or level is None:
        return None
    at, returns = over(runs, "env_steps")
    reached = (returns.mean(0) >= level).nonzero()[0]
    return float(at[reached[0]]) if len(reached) else "not reached"


def claims(groups: Grouped) -> Iterable[str]:
    """Whether the longer periods keep the score of the shortest one, over the whole run and at its end."""
    for task in TASKS:
        base = groups.get((task, PULLS[0]), [])
        for pull in PULLS[1:]:
            both = pairs(groups.get((task, pull), []), base)
            if not both:
                continue
            span = best_mean(base) - random_return(base)
            late = [late_return(own) - late_return(other) for own, other in both]
            whole = [mean(own["returns"]) - mean(other["returns"]) for own, other in both]
            yield (
                f"{task}: pulls every {pull} steps are as good as every {PULLS[0]}: over the whole run "
                f"{with_interval(whole)}, {loss_verdict(whole, span)}; at the end {with_interval(late)}, "
                f"{loss_verdict(late, span)}."
            )
