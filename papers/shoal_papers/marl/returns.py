"""Our teams beside published returns, and beside BenchMARL's at the same CPU time.

A cell trains one team on one thread for a number of CPU seconds, and evaluates it without exploration along the way;
what evaluations take does not count. CPU seconds, because they differ less than wall seconds on a machine with other
work; building the run and compiling are left out on both sides. BenchMARL lives in a Python environment of its own,
which the environment variable SHOAL_BENCHMARL names (`papers/benchmarl.txt` says how to make it).
"""

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError, counted
from shoal.results import Column, Panel, Series, Table, Value
from shoal.training.config import TrainConfig
from shoal_papers.cells import Cells, Options, StudyCell
from shoal_papers.marl.published import MPE2, OPENAI, PUBLISHED, SPREAD, TAG, Published, to_mpe2
from shoal_papers.quarl.actor_runs import Enough, Limit, limited_run
from shoal_papers.seeds import NOT_RUN, mean, mean_or_none, spread, with_interval
from shoal_papers.study import CellStudy, Data

if TYPE_CHECKING:
    from shoal.training.loop import Training

PYTHON = "SHOAL_BENCHMARL"
RUNNER = Path(__file__).with_name("benchmarl_run.py")
WORLDS: dict[str, dict[str, Any]] = {
    MPE2: {"env": "cooperative-navigation", "rules": "mpe2"},
    OPENAI: {"env": "cooperative-navigation", "rules": "openai"},
    TAG: {"env": "predator-prey", "rules": "openai", "prey": "learned"},
}
"""By rules, and simple_tag, which has the same rewards in both."""
TITLES = {MPE2: "Navigation, mpe2 rules", OPENAI: "Navigation, OpenAI rules", TAG: "Predator-prey, learning prey"}
PRESETS = ("papers", "tuned")
OURS, THEIRS = "Shoal, {}", "BenchMARL, {}"
LENGTHS = {(MPE2, 3): 60.0, (OPENAI, 3): 60.0, (TAG, 3): 60.0, (MPE2, 12): 120.0, (MPE2, 6): 120.0}
"""CPU seconds by world and number of agents."""
QUICK = {(OPENAI, 3): 12.0}
COMPARED = ((MPE2, 3), (MPE2, 12))
"""Where BenchMARL is trained, too: PettingZoo 1.24.3 has mpe2's rules."""
SEEDS = (1, 2, 3)
POINTS = 12
EVALUATED, EVALUATED_AT_END = 200, 1_000
THEIR_EVALUATED, THEIR_EVALUATED_AT_END = 25, 200  # their world takes a hundred times as long
OFF_POLICY = {
    "off_policy_collected_frames_per_batch": 250, "off_policy_n_optimizer_steps": 40,
    "off_policy_train_batch_size": 256, "off_policy_init_random_frames": 1_000, "gamma": 0.95, "polyak_tau": 0.01,
}  # fmt: skip
ON_POLICY = {
    "on_policy_collected_frames_per_batch": 2_500, "on_policy_n_minibatch_iters": 10, "on_policy_minibatch_size": 500,
    "gamma": 0.95,
}  # fmt: skip
BENCHMARL: dict[str, dict[str, Any]] = {
    "MADDPG": {"experiment": {**OFF_POLICY, "lr": 0.0005}, "activation": "ReLU"},
    "MASAC": {"experiment": {**OFF_POLICY, "lr": 0.001}, "activation": "ReLU"},
    "MAPPO": {"experiment": {**ON_POLICY, "lr": 0.001}, "activation": "Tanh"},
}
"""Its networks are shared between agents, as by default. Its other defaults collect 6,000 frames, a third of a minute
here, between updates with a learning rate of 0.00005: these settings are the better ones of a few trials of 50 CPU
seconds each, not the result of a search."""
ANNEALED = {3: 13_000, 12: 6_000}  # frames over which MADDPG's exploration decreases: most of a run

Run = Mapping[str, Any]  # what is kept of a cell: the curve, and the return of a random team
Groups = Mapping[tuple[str, int, str], Sequence[Run]]  # by world, agents and kind


# ---- cells ----------------------------------------------------------------------------------------------------------


def settings_of(preset: str, world: Mapping[str, Any], agents: int) -> dict[str, Any]:
    """What a preset changes, so that a cell is measured again when the preset has changed."""
    own, papers = (vars(TrainConfig(**{**world, "agents": agents, "preset": name})) for name in (preset, "papers"))
    return {name: value for name, value in own.items() if value != papers[name]}


def our_cell(world: str, agents: int, preset: str, seed: int, seconds: float) -> StudyCell:
    """A team of ours."""
    train = {**WORLDS[world], "agents": agents, "seed": seed}
    evaluate = {"evaluate": EVALUATED, "evaluate_at_end": EVALUATED_AT_END}
    settings = {"train": train | settings_of(preset, WORLDS[world], agents), "marks": marks(seconds), **evaluate}
    return _cell(world, agents, OURS.format(preset), seed, seconds, settings)


def their_cell(world: str, agents: int, algorithm: str, seed: int, seconds: float) -> StudyCell:
    """A team of BenchMARL's."""
    own = BENCHMARL[algorithm]
    settings = {
        **own, "algorithm": algorithm.lower(), "seed": seed, "hidden": [128, 128],
        "experiment": {**own["experiment"], "exploration_anneal_frames": ANNEALED[agents]},
        "marks": marks(seconds), "evaluate": THEIR_EVALUATED, "evaluate_at_end": THEIR_EVALUATED_AT_END,
    }  # fmt: skip
    return _cell(world, agents, THEIRS.format(algorithm), seed, seconds, settings)


def marks(seconds: float) -> list[float]:
    """CPU seconds of the evaluations: most of them early, where most is learned."""
    return [seconds * (k / POINTS) ** 2 for k in range(1, POINTS + 1)]


def _cell(world: str, agents: int, kind: str, seed: int, seconds: float, settings: dict[str, Any]) -> StudyCell:
    about = {"world": world, "agents": agents, "kind": kind}
    name = f"{world} {agents} agents {kind.replace(',', '')} seed {seed}"
    return StudyCell(name, {**about, **settings}, 1.2 * seconds)


def measure(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: a team of ours, or of BenchMARL's."""
    return train_ours(settings) if "train" in settings else train_theirs(settings)


class Curve(Limit):
    """Evaluates the team at marks in CPU seconds, and ends the run at the last one."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        self.marks = list(settings["marks"])
        self.rows: list[dict[str, float]] = []
        self.begun, self.paused = np.zeros(2), np.zeros(2)

    def advance(self, training: "Training") -> None:
        """Look at the clock."""
        now = clocks()
        if self.training is None:  # everything is compiled
            self.training, self.begun = training, now
        cpu, wall = now - self.begun - self.paused
        if cpu < self.marks[0]:
            return
        self.marks = [mark for mark in self.marks if mark > cpu]
        episodes = self.settings["evaluate" if self.marks else "evaluate_at_end"]
        spent = {"env_steps": training.samples, "updates": training.updates, "cpu": cpu, "wall": wall}
        self.rows.append(spent | evaluate(training, episodes))
        self.paused += clocks() - now
        if not self.marks:
            raise Enough


def clocks() -> NDArray[np.float64]:
    """CPU seconds of this process, and wall seconds."""
    return np.array([time.process_time(), time.perf_counter()])


def evaluate(training: "Training", episodes: int, trained: bool = True) -> dict[str, float]:
    """Return per agent of the most likely actions or of random ones, its 95 % interval, and landmarks covered."""
    from shoal.training.evaluation import build_env, play, random_act, team_act

    env = build_env(training.config, episodes, seed=10_000, stagger=False)
    played = play(env, team_act(training.team, explore=False) if trained else random_act(env.spec, 10_000), episodes)
    env.close()
    covered = played.figures.get("landmarks_covered")
    return {"return": played.mean, "ci95": played.ci95} | ({"covered": covered.mean} if covered else {})


def train_ours(settings: dict[str, Any]) -> dict[str, Any]:
    """The curve of a training in this process."""
    curve = Curve(settings)
    limited_run(settings["train"], curve)
    assert curve.training is not None
    random = evaluate(curve.training, settings["evaluate_at_end"], trained=False)
    return {"curve": curve.rows, "random": random["return"]}


def train_theirs(settings: dict[str, Any]) -> dict[str, Any]:
    """The curve of a training by BenchMARL's interpreter; `-I`, because ours has a PYTHONPATH for its children."""
    command = [os.environ[PYTHON], "-I", str(RUNNER), json.dumps(settings)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    except OSError as error:
        raise UserError(f"`{PYTHON}` '{command[0]}' cannot be run: {error.strerror}.") from None
    if done.returncode or not done.stdout.strip():
        why = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise UserError(f"BenchMARL ended with code {done.returncode}: {why:.300}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


# ---- the result -----------------------------------------------------------------------------------------------------


class Returns(CellStudy, name="returns"):
    """Published returns beside ours, and returns over CPU seconds beside BenchMARL's."""

    title = "Returns of our teams beside published ones and BenchMARL's"
    caption = "Return per agent without exploration over CPU seconds: mean over seeds, band from worst to best"
    workers = 1
    names_machines = True
    work = staticmethod(measure)

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """Seed 1 of everything first."""
        if quick:
            return [our_cell(*where, preset, 1, seconds) for where, seconds in QUICK.items() for preset in PRESETS]
        cells = []
        for seed in SEEDS:
            for where, seconds in LENGTHS.items():
                cells.append(our_cell(*where, "tuned", seed, seconds))
                if where in COMPARED:
                    cells += [their_cell(*where, algorithm, seed, seconds) for algorithm in BENCHMARL]
                cells.append(our_cell(*where, "papers", seed, seconds))
        return cells

    def computed(self, done: Cells, quick: bool, options: Options) -> dict[str, Any]:
        """Without BenchMARL's interpreter, its finished cells are shown."""
        cells = self.cells(quick, options)
        theirs = [] if os.environ.get(PYTHON) else [cell for cell in cells if "train" not in cell.settings]
        ours = [cell for cell in cells if cell not in theirs]
        results = done.run(theirs, self.work, optional=True, missing=f"set {PYTHON}, see docs/returns.md")
        return {"rows": self.records(cells, results | done.run(ours, self.work, self.workers))}

    def record(self, cell: StudyCell, result: dict[str, Any]) -> dict[str, Any]:
        return {name: cell.settings[name] for name in ("world", "agents", "kind")} | {"run": result}

    def view(self, data: Data) -> Groups:
        groups: dict[tuple[str, int, str], list[Run]] = {}
        for row in data["rows"]:
            groups.setdefault((row["world"], row["agents"], row["kind"]), []).append(row["run"])
        return groups

    def tables(self, view: Groups) -> list[Table]:
        spread_title = "simple_spread: return per agent, as published and converted"
        tag_title = "simple_tag, 3 predators and a learning prey: return per predator"
        return [
            Table.of(spread_title, [*map(published_row, of_world(SPREAD)), *our_rows(view, SPREAD)]),
            Table.of(tag_title, [*map(published_row, of_world(TAG)), *our_rows(view, TAG)]),
            Table.of("At the same CPU time, without exploration, means over seeds", list(time_rows(view))),
        ]

    def findings(self, view: Groups) -> list[str]:
        return [LIMITS, *beside_published(view), *beside_benchmarl(view), *conversion(view)]

    def panels(self, view: Groups) -> list[Panel]:
        return [panel(view, *where) for where in dict.fromkeys((world, agents) for world, agents, _ in view)]


LIMITS = (
    "Conversions leave out the order of integration, and sources differ in what they report: noisy or greedy policies, "
    "the end or the best evaluation, discrete or continuous actions. Differences of a few points mean nothing. MAPPO's "
    "paper and JaxMARL have pictures of these worlds, BenchMARL has results of others: we found no numbers."
)


def of_world(world: str) -> list[Published]:
    """The published returns of simple_spread or simple_tag."""
    return [row for row in PUBLISHED if row.world == world]


def published_row(row: Published) -> dict[Column, Value]:
    """A published return, and what it would be under either rules."""
    interval = "" if row.interval is None else f" ± {row.interval:g}"
    return {
        Column("source"): row.source,
        Column("algorithm"): row.algorithm,
        Column("agents"): row.agents,
        Column("rules"): row.rules,
        Column("env steps"): row.steps,
        Column("policy"): row.played,
        Column("as published"): f"{'≈ ' if row.read_off else ''}{row.value:g}{interval}{' summed' * row.summed}",
        Column("OpenAI rules", format=".1f"): row.openai,
        Column("mpe2 rules", format=".1f"): row.mpe2,
        Column("read in"): row.where + (f"; {row.note}" if row.note else ""),
    }


def our_rows(groups: Groups, world: str) -> Iterable[dict[Column, Value]]:
    """Our teams in the table of published returns; both rules are measured, not converted."""
    seen = dict.fromkeys((agents, kind) for own, agents, kind in groups if (own == TAG) == (world == TAG))
    for agents, kind in sorted((agents, kind) for agents, kind in seen if kind.startswith("Shoal")):
        rules = (TAG, TAG) if world == TAG else (OPENAI, MPE2)
        openai, mpe2 = (final(groups, own, agents, kind) for own in rules)
        runs = [run for own in rules for run in groups.get((own, agents, kind), [])]
        yield {
            Column("source"): "Shoal, here",
            Column("algorithm"): f"MADDPG, {kind.rpartition(' ')[2]}",
            Column("agents"): agents,
            Column("rules"): "both, measured",
            Column("env steps"): f"{mean([last(run)['env_steps'] for run in runs]) / 1e6:.2g}M",
            Column("policy"): f"most likely actions, {counted(max(len(openai), len(mpe2)), 'seed')}",
            Column("as published"): "–",
            Column("OpenAI rules", format=".1f"): mean_or_none(openai),
            Column("mpe2 rules", format=".1f"): mean_or_none(mpe2),
            Column("read in"): f"{mean([last(run)['cpu'] for run in runs]):.0f} CPU seconds",
        }


def last(run: Run) -> Mapping[str, float]:
    """The evaluation at the end."""
    row: Mapping[str, float] = run["curve"][-1]
    return row


def final(groups: Groups, world: str, agents: int, kind: str) -> list[float]:
    """Returns at the end, by seed."""
    return [last(run)["return"] for run in groups.get((world, agents, kind), [])]


def length(groups: Groups, world: str, agents: int) -> float:
    """CPU seconds of the runs in a world."""
    runs = [run for (own, n, _), runs in groups.items() if (own, n) == (world, agents) for run in runs]
    return float(min(last(run)["cpu"] for run in runs))


def over(runs: Sequence[Run], at: Sequence[float]) -> NDArray[np.float64]:
    """Returns of all seeds (S, P) at these CPU seconds; before the first evaluation, that of a random team."""
    curves = [run["curve"] for run in runs]
    times = [[0.0] + [row["cpu"] for row in curve] for curve in curves]
    values = [[run["random"]] + [row["return"] for row in run["curve"]] for run in runs]
    return np.array([np.interp(at, *pair) for pair in zip(times, values, strict=True)])


def time_rows(groups: Groups) -> Iterable[dict[Column, Value]]:
    """One row per world, number of agents and kind; what is not measured is said."""
    kinds = [OURS.format(preset) for preset in PRESETS] + [THEIRS.format(name) for name in BENCHMARL]
    for world, agents in dict.fromkeys((world, agents) for world, agents, _ in groups):
        seconds = length(groups, world, agents)
        for kind in kinds if (world, agents) in COMPARED else kinds[: len(PRESETS)]:
            runs = groups.get((world, agents, kind), [])
            ends = [last(run) for run in runs]
            covered = [end["covered"] for end in ends if "covered" in end]
            early = mean([float(value) for value in over(runs, [seconds / 4])[:, 0]]) if runs else None
            unmeasured = NOT_RUN if kind in kinds[: len(PRESETS)] else f"not measured: needs {PYTHON}"
            yield {
                Column("world"): TITLES[world],
                Column("agents"): agents,
                Column("team"): kind,
                Column("seeds"): len(runs),
                Column("random", format=".1f"): mean_or_none([run["random"] for run in runs]),
                Column("after a quarter", format=".1f"): early,
                Column("at the end"): with_interval([end["return"] for end in ends]) if runs else unmeasured,
                Column("landmarks covered", format=".2f"): mean_or_none(covered),
                Column("CPU time", "s", ".0f"): mean_or_none([end["cpu"] for end in ends]),
                Column("wall time", "s", ".0f"): mean_or_none([end["wall"] for end in ends]),
                Column("env steps", format=",.0f"): mean_or_none([end["env_steps"] for end in ends]),
                Column("updates", format=",.0f"): mean_or_none([end["updates"] for end in ends]),
            }


def beside_published(groups: Groups) -> Iterable[str]:
    """Our tuned team beside the best published returns under OpenAI's rules, and with a learning prey."""
    tuned = OURS.format("tuned")
    if runs := groups.get((OPENAI, 3, tuned)):
        best = max((row for row in of_world(SPREAD) if row.rules == OPENAI), key=lambda row: row.openai)
        yield (
            f"simple_spread, OpenAI rules, 3 agents: {with_interval(final(groups, OPENAI, 3, tuned))} after "
            f"{last(runs[0])['cpu']:.0f} CPU seconds and {last(runs[0])['env_steps']:,.0f} env steps (tuned, "
            f"{counted(len(runs), 'seed')}); the best published return found is {best.openai:.1f}, {best.source}'s "
            f"{best.algorithm} after {best.steps} steps."
        )
    if runs := groups.get((TAG, 3, tuned)):
        peak = mean([max(row["return"] for row in run["curve"]) for run in runs])
        points = [row.value for row in of_world(TAG)]
        yield (
            f"simple_tag with a learning prey: {with_interval(final(groups, TAG, 3, tuned))} per predator at the end "
            f"(tuned), {peak:.1f} at the highest point; published curves have theirs at {min(points):g} to "
            f"{max(points):g}, with noise. How well predators do depends on the prey, which learns, too: these are no "
            "rankings."
        )


def beside_benchmarl(groups: Groups) -> Iterable[str]:
    """Our tuned team beside the best of BenchMARL's, and when ours is as good as that."""
    for world, agents in COMPARED:
        ours = groups.get((world, agents, OURS.format("tuned")))
        theirs = {name: final(groups, world, agents, THEIRS.format(name)) for name in BENCHMARL}
        means = {name: mean(returns) for name, returns in theirs.items() if returns}
        if not ours or not means:
            continue
        best = max(means, key=lambda name: means[name])
        other = groups[world, agents, THEIRS.format(best)]
        at = np.linspace(0.0, LENGTHS[world, agents], 1_001)
        reached = np.flatnonzero(over(ours, at.tolist()).mean(0) >= means[best])
        when = f"ours has that return after {at[reached[0]]:.1f} s" if len(reached) else "ours does not reach that"
        covered, steps = ([mean([last(run)[name] for run in runs]) for runs in (ours, other)]
                          for name in ("covered", "env_steps"))  # fmt: skip
        yield (
            f"{TITLES[world]}, {agents} agents, {LENGTHS[world, agents]:.0f} CPU seconds on one thread: tuned "
            f"{with_interval(final(groups, world, agents, OURS.format('tuned')))}, BenchMARL's best "
            f"{with_interval(theirs[best])} ({best}); {when}. Landmarks covered: {covered[0]:.2f} and "
            f"{covered[1]:.2f}; env steps: {steps[0]:,.0f} and {steps[1]:,.0f}."
        )


def conversion(groups: Groups) -> Iterable[str]:
    """What the conversion is off by, where both rules are measured."""
    for preset in PRESETS:
        kind = OURS.format(preset)
        openai, mpe2 = (groups.get((rules, 3, kind)) for rules in (OPENAI, MPE2))
        if openai and mpe2:
            ends = [mean(final(groups, rules, 3, kind)) for rules in (OPENAI, MPE2)]
            random = [mean([run["random"] for run in runs]) for runs in (openai, mpe2)]
            texts = [
                f"{before:.1f} under OpenAI's rules would be {to_mpe2(before, 3):.1f}, {after:.1f} is measured"
                for before, after in (ends, random)
            ]
            yield f"Converting to mpe2's rules, tested on our teams ({preset}): {texts[0]}; random teams: {texts[1]}."


def panel(groups: Groups, world: str, agents: int) -> Panel:
    """Returns over CPU seconds of all teams in a world, and the best published one under the same rules."""
    at = marks(length(groups, world, agents))
    series: list[Series] = [
        spread(kind, at, over(runs, at)) for (own, n, kind), runs in groups.items() if (own, n) == (world, agents)
    ]
    rows = of_world(TAG) if world == TAG else [row for row in of_world(SPREAD) if row.rules == world]
    same = [row.per_agent for row in rows if row.agents == agents]
    level = max(same) if same else None
    label = "best published under these rules" if same else ""
    return Panel(
        f"{TITLES[world]}, {agents} agents", "return per agent", series, "CPU seconds", level=level, level_label=label
    )
