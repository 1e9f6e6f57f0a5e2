"""Figure 7: what infrequent pulls cost. The same run with actors that pull the policy every 30, 300 and 1000 steps.

The paper's is Humanoid Stand, which pulls every 100 steps because it converged much more slowly at 1000; here it is a
task that two cores learn in minutes. The lag is measured: the learner's updates between the version that a transition
was played with and the learner's version when it arrived.
"""

from collections.abc import Iterable
from itertools import product

from shoal.results import Column, Panel, Table, Value
from shoal_papers.cells import Options, StudyCell
from shoal_papers.quarl.actor_runs import (
    SCORE,
    SEEDS,
    TRAINED,
    Groups,
    Runs,
    RunStudy,
    curves_panel,
    late_return,
    loss_verdict,
    pairs,
)
from shoal_papers.seeds import mean, with_interval

PULLS = (30, 300, 1000)
QUICK_PULLS = (30, 1000)
TASKS = ("Cartpole Balance", "Cartpole (Gym)")  # D4PG, and DQN
QUICK_STEPS = 12_000
EVALUATED = 10
PAPER_CLAIM = (
    "Paper: actors pull every 1000 steps; only Humanoid pulls every 100, because it converged much more slowly with "
    "1000. Its study of communication pulls every 30 steps, and every 300 (its caption) or 1000 (its text)."
)


class ActorqStaleness(RunStudy, name="actorq-staleness"):
    """Returns over steps for each pull period, with the lag that was measured."""

    title = "Returns with infrequent pulls of the policy (Figure 7)"
    caption = "Training return over env steps: mean over seeds, band from the worst to the best"
    about = ("task", "pull")

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """One run per task, pull period and seed; seed 0 of everything first."""
        seeds, tasks, pulls = (1, TASKS[1:], QUICK_PULLS) if quick else (SEEDS, TASKS, PULLS)
        return [_cell(task, pull, seed, quick) for seed, task, pull in product(range(seeds), tasks, pulls)]

    def tables(self, view: Groups) -> list[Table]:
        return [Table.of("Pull periods, means over seeds", list(table_rows(view)))]

    def findings(self, view: Groups) -> list[str]:
        return [PAPER_CLAIM, SCORE, *claims(view)]

    def panels(self, view: Groups) -> list[Panel]:
        return [
            curves_panel(task, {f"every {pull} steps": view[task, pull] for pull in PULLS}, "env_steps")
            for task in TASKS
            if any((task, pull) in view for pull in PULLS)
        ]


def _cell(task: str, pull: int, seed: int, quick: bool) -> StudyCell:
    trained, pace = TRAINED[task], TRAINED[task].paces["learner-bound"]
    steps = QUICK_STEPS if quick else pace.steps
    train = {**trained.settings, "samples_per_insert": pace.samples_per_insert, "pull_every": pull, "seed": seed}
    settings = {"task": task, "pull": pull, "train": train, "steps": steps, "evaluate": EVALUATED}
    return StudyCell(f"{task} pull {pull} seed {seed}", settings, pace.seconds * steps / pace.steps)


def table_rows(groups: Groups) -> Iterable[dict[Column, Value]]:
    """One row per task and pull period."""
    for task in TASKS:
        level = groups[task, PULLS[0]].threshold if groups[task, PULLS[0]] else None
        for pull in PULLS:
            runs = groups[task, pull]
            yield {
                Column("task"): task,
                Column("pull every", "steps"): pull,
                Column("seeds"): len(runs),
                Column("lag", "updates", ".0f"): runs.metric("lag_mean"),
                Column("lag p95", "updates", ".0f"): runs.metric("lag_p95"),
                Column("steps to 95 % of every-30's best", format=",.0f"): steps_to(level, runs),
                Column("return at the end"): with_interval([late_return(run) for run in runs]),
                Column("final return, float32"): with_interval([run["trained"] for run in runs]),
                Column("env steps/s", format=",.0f"): runs.steps_per_second,
            }


def steps_to(level: float | None, runs: Runs) -> float | str | None:
    """Env steps until the mean curve reaches the level."""
    if not runs or level is None:
        return None
    at, returns = runs.over("env_steps")
    reached = (returns.mean(0) >= level).nonzero()[0]
    return float(at[reached[0]]) if len(reached) else "not reached"


def claims(groups: Groups) -> Iterable[str]:
    """Whether the longer periods keep the score of the shortest one, over the whole run and at its end."""
    for task in TASKS:
        base = groups[task, PULLS[0]]
        for pull in PULLS[1:]:
            both = pairs(groups[task, pull], base)
            if not both:
                continue
            span = base.best - base.random
            late = [late_return(own) - late_return(other) for own, other in both]
            whole = [mean(own["returns"]) - mean(other["returns"]) for own, other in both]
            yield (
                f"{task}: pulls every {pull} steps are as good as every {PULLS[0]}: over the whole run "
                f"{with_interval(whole)}, {loss_verdict(whole, span)}; at the end {with_interval(late)}, "
                f"{loss_verdict(late, span)}."
            )
