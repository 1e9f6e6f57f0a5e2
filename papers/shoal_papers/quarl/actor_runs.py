"""Runs with actors as cells of a study: one training up to a number of env steps, its curve, and verdicts over seeds.

The score is the return of training episodes as the actors play them: with their precision, their lag and their
exploration. Seconds are those of the run's own clock (`seconds` in metrics.jsonl), counted from the first transition
that arrives, so that starting processes, importing and compiling are left out for all kinds of actors alike. At the
end the learner's policy is evaluated in float32 without exploration, and so is a random one.
"""

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError
from shoal.results import Panel
from shoal.runs.observer import Observer
from shoal.training.config import TrainConfig
from shoal.training.returns import confidence95
from shoal_papers.cells import StudyCell
from shoal_papers.seeds import mean, mean_or_none, spread
from shoal_papers.study import CellStudy, Data

if TYPE_CHECKING:
    from shoal.training.loop import Training

WINDOW = 10  # log lines of the running mean, as in the paper
POINTS = 100  # points of a stored curve
SEEDS = 3  # seeds of every kind of run; claims are judged with no fewer
SCORE = (
    "Scores are returns of training episodes as the actors play them, in their own precision and with exploration, as "
    f"a running mean of {WINDOW} log lines; seconds are those of the run's clock (metrics.jsonl) from the first "
    "transition on."
)
QUIET = {"tensorboard": False, "checkpoint_every": 0, "evaluate_episodes": 0, "threads": 1, "episodes": 10**9}
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]  # positions (P,), and the returns of all seeds there (S, P)
Run = Mapping[str, Any]  # what is kept of a run: see `train_run`


# ---- one run --------------------------------------------------------------------------------------------------------


class Enough(Exception):
    """The run has lasted as long as it should."""


class Limit(Observer):
    """Ends a run after a number of env steps, or of seconds since its first transition."""

    def __init__(self, steps: float = math.inf, seconds: float = math.inf) -> None:
        self.steps, self.seconds = steps, seconds
        self.training: Training | None = None
        self.started = self.passed = 0.0
        """Seconds on the run's clock when the first transition arrived, and since then."""
        self.metrics: dict[str, Any] = {}
        """What the collector would have logged at the end."""

    def advance(self, training: "Training") -> None:
        """Look at the steps and at the clock."""
        if not training.samples:
            return
        if self.training is None:
            self.training, self.started = training, training.clock.total()
        self.passed = training.clock.total() - self.started
        if training.samples >= self.steps or self.passed >= self.seconds:
            self.metrics = dict(training.collector.metrics())
            raise Enough


def limited_run(train_settings: Mapping[str, Any], limit: Limit) -> tuple[TrainConfig, list[dict[str, Any]]]:
    """Train until the limit; returns the configuration and the lines of metrics.jsonl."""
    from shoal.api import train

    settings = {**train_settings, **QUIET}
    with tempfile.TemporaryDirectory() as run:
        config = TrainConfig(**settings, out=run).checked()
        try:
            train(config, observer=limit, pictures=False)
        except Enough:
            return config, [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    raise KeyboardInterrupt  # a signal ended it


def train_run(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: train for `steps` env steps with the settings `train`, then play `evaluate` episodes."""
    limit = Limit(settings["steps"])
    config, lines = limited_run(settings["train"], limit)
    if not lines:
        raise UserError(f"No episode ended within {settings['steps']:,} env steps.")
    training, last = limit.training, lines[-1]
    assert training is not None
    trained, random = final_returns(training, config, settings["evaluate"])
    return {
        "seed": config.seed,
        **curve(lines, limit.started, settings["steps"]),  # env_steps, seconds and returns
        "updates": last["updates"],
        "trained": trained,  # return of the final policy in float32, without exploration
        "random": random,
        "actors": {name.removeprefix("actors/"): last[name] for name in last if name.startswith("actors/")},
    }


def final_returns(training: "Training", config: TrainConfig, episodes: int) -> tuple[float, float]:
    """Mean returns of the learner's policy without exploration and of a random one, from the same initial states."""
    from shoal.training.evaluation import build_env, play, random_act, team_act

    means = []
    for trained in (True, False):
        env = build_env(config, episodes, config.seed + 1, stagger=False)
        act = team_act(training.team, explore=False) if trained else random_act(env.spec, config.seed + 1)
        means.append(play(env, act, episodes).mean)
        env.close()
    return means[0], means[1]


def curve(lines: Sequence[Mapping[str, Any]], started: float, steps: int) -> dict[str, list[float]]:
    """The running mean of the return, and the seconds, at equal distances in env steps."""
    played = np.array([line["env_steps"] for line in lines], float)
    seconds = np.array([line["seconds"] for line in lines]) - started
    means = running_mean(np.array([line["return_mean"] for line in lines], float))
    at = np.linspace(0.0, min(steps, played[-1]), POINTS + 1)[1:]
    passed = np.interp(at, np.append(0.0, played), np.append(0.0, seconds))
    return {name: _rounded(values) for name, values in
            (("env_steps", at), ("seconds", passed), ("returns", np.interp(at, played, means)))}  # fmt: skip


def running_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each value and those before it, `WINDOW` in all, fewer at the beginning."""
    sums = np.append(0.0, np.cumsum(values))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - WINDOW, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _rounded(values: NDArray[np.float64]) -> list[float]:
    """Six significant digits: cells are small files."""
    return [float(f"{value:.6g}") for value in values]


# ---- several seeds --------------------------------------------------------------------------------------------------


class Runs(list[Run]):
    """Runs of several seeds that have everything else in common."""

    def over(self, axis: str) -> Curve:
        """The seeds' returns over `env_steps` or `seconds`; one that ended before others keeps its last value."""
        at = np.linspace(0.0, max(run[axis][-1] for run in self), POINTS + 1)[1:]
        return at, np.array([np.interp(at, run[axis], run["returns"]) for run in self])

    @property
    def best(self) -> float:
        """The largest value of the mean curve over env steps."""
        return float(self.over("env_steps")[1].mean(0).max())

    @property
    def random(self) -> float:
        """Return of a random policy, mean over seeds."""
        return mean([run["random"] for run in self])

    @property
    def threshold(self) -> float:
        """r_random + 0.95 (r_max - r_random), of the smoothed mean curve.

        A fraction of the best score itself is out of reach where scores are negative.
        """
        return self.random + 0.95 * (self.best - self.random)

    def time_to(self, level: float) -> float | None:
        """Seconds until the mean curve reaches a level; None: it does not."""
        at, returns = self.over("seconds")
        reached = np.flatnonzero(returns.mean(0) >= level)
        return float(at[reached[0]]) if len(reached) else None

    @property
    def steps_per_second(self) -> float | None:
        """Env steps per second, mean over seeds."""
        return mean_or_none([_pace(run) for run in self])

    @property
    def updates_per_second(self) -> float | None:
        """Updates of the learner per second, mean over seeds."""
        return mean_or_none([run["updates"] / run["seconds"][-1] for run in self])

    def waiting(self, side: str) -> float | None:
        """The share of the time in which the `learner` or the `actor` waited for the other, in per cent."""
        name = f"{side}_wait_seconds"
        known = [run for run in self if isinstance(run["actors"].get(name), float | int)]
        return mean_or_none([100 * run["actors"][name] / run["seconds"][-1] for run in known])

    def metric(self, name: str) -> float | None:
        """The mean over seeds of a metric of the actors; None: it was not measured."""
        return mean_or_none([value for run in self if isinstance(value := run["actors"].get(name), float | int)])

    @property
    def bottleneck(self) -> str:
        """Which side the other waited for; both, if seeds differ; nothing without actors."""
        return " and ".join(sorted({str(run["actors"]["bottleneck"]) for run in self if run["actors"]}))


class Groups(dict[tuple[Any, ...], Runs]):
    """Runs of all seeds by what they have in common; what was not run has none."""

    def __missing__(self, key: tuple[Any, ...]) -> Runs:
        return Runs()


class RunStudy(CellStudy):
    """A study of such runs, one after the other: a run has a learner and an actor, and each takes a core."""

    workers = 1
    work = staticmethod(train_run)
    about: tuple[str, ...]
    """Settings that runs of several seeds have in common."""

    def record(self, cell: StudyCell, result: dict[str, Any]) -> dict[str, Any]:
        return {name: cell.settings[name] for name in self.about} | {"run": result}

    def view(self, data: Data) -> Any:
        groups = Groups()
        for row in data["rows"]:
            groups.setdefault(tuple(row[name] for name in self.about), Runs()).append(row["run"])
        return groups


def pairs(runs: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Runs of two kinds with the same seed."""
    by_seed = {run["seed"]: run for run in others}
    return [(run, by_seed[run["seed"]]) for run in runs if run["seed"] in by_seed]


def late_return(run: Run) -> float:
    """The mean training return of the last tenth of a run."""
    return mean(run["returns"][-POINTS // 10 :])


# ---- claims ---------------------------------------------------------------------------------------------------------

CLOSE = 0.1
"""A score counts as kept if the interval of its loss ends within this share of the best score over a random one."""


def loss_verdict(gaps: Sequence[float], span: float) -> str:
    """Whether a score is kept, from its differences to another by seed; `span`: best score minus a random one."""
    if len(gaps) < SEEDS:
        return f"inconclusive with {len(gaps)} of {SEEDS} seeds"
    gap, half = mean(gaps), confidence95(np.array(gaps))
    if gap + half < 0:
        return "does not hold"
    return "holds" if gap - half >= -CLOSE * span else "inconclusive, the interval is too wide"


def factor(ratios: Sequence[float]) -> tuple[float, float, float] | None:
    """The geometric mean of ratios by seed and its 95 % interval; None with fewer than two."""
    if len(ratios) < 2:
        return None
    logs = np.log(ratios)
    middle, half = float(logs.mean()), confidence95(logs)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def speed_verdict(ratios: Sequence[float]) -> str:
    """Whether ratios by seed are above one."""
    interval = factor(ratios)
    if interval is None or len(ratios) < SEEDS:
        return f"inconclusive with {len(ratios)} of {SEEDS} seeds"
    middle, low, high = interval
    verdict = "holds" if low > 1 else "does not hold" if high < 1 else "inconclusive"
    return f"{middle:.2f} times ({low:.2f} to {high:.2f}): {verdict}"


def faster(both: Sequence[tuple[Run, Run]]) -> list[float]:
    """How much sooner the first of each pair plays the same env steps than the second."""
    return [_pace(one) / _pace(two) for one, two in both]


def _pace(run: Run) -> float:
    return run["env_steps"][-1] / run["seconds"][-1]


# ---- pictures -------------------------------------------------------------------------------------------------------


def curves_panel(title: str, groups: Mapping[str, Runs], axis: str, level: float | None = None) -> Panel:
    """Mean curves of several kinds of run over env steps or seconds."""
    series = [spread(label, *runs.over(axis)) for label, runs in groups.items() if runs]
    return Panel(title, "return", series, axis.replace("_", " "), level=level)


# ---- tasks ----------------------------------------------------------------------------------------------------------

PACES = ("learner-bound", "actor-bound")


@dataclass(frozen=True)
class Pace:
    """How fast the learner learns from what the actor plays, and for how long."""

    samples_per_insert: float
    steps: int
    """Env steps."""
    seconds: float
    """Approximate seconds of a cell."""


@dataclass(frozen=True)
class Trained:
    """How a task is trained here."""

    settings: dict[str, Any]
    paces: dict[str, Pace]
    note: str = ""
    """What differs from the paper's task."""
    share: float = 1.0
    """Length of the episodes over that of the paper's, where scores grow with it."""


def paces(learner: Pace, actor: Pace) -> dict[str, Pace]:
    """Both, by name."""
    return dict(zip(PACES, (learner, actor), strict=True))


ONE: dict[str, Any] = {"actors": 1, "copies": 1, "hidden": (256, 256), "capacity": 200_000, "log_every": 1}
COMMON = {**ONE, "batch": 64, "learning_rate": 1e-3, "warmup": 1_000}
DQN = {**COMMON, "algorithm": "dqn", "epsilon_decay": 10_000}
D4PG = {**COMMON, "algorithm": "d4pg", "v_min": 0.0, "v_max": 100.0}
LONG_EPISODES = {"env_options": '{"max_episode_steps": 1000}', "n_step": 20, "target_period": 50, "pull_every": 50}

TRAINED = {
    "Cartpole (Gym)": Trained(
        {**DQN, "env": "gym:CartPole-v1", "episode_length": 200},
        paces(Pace(16, 24_000, 18), Pace(2, 80_000, 20)),
        "episodes of 200 steps, as the paper's score implies",
    ),
    "Acrobot (Gym)": Trained({**DQN, "env": "gym:Acrobot-v1"}, paces(Pace(16, 30_000, 22), Pace(4, 100_000, 28))),
    "MountainCar (Gym)": Trained(
        {**DQN, **LONG_EPISODES, "env": "gym:MountainCar-v0", "epsilon_decay": 5_000},
        paces(Pace(16, 25_000, 20), Pace(4, 110_000, 27)),
        "episodes of up to 1000 steps, pulls every 50: within 200 it was not learnt with any setting that was tried",
    ),
    "Cartpole Balance": Trained(
        {**D4PG, "env": "dm:cartpole/balance"}, paces(Pace(16, 32_000, 38), Pace(4, 75_000, 47))
    ),
    "Reacher Hard": Trained(
        {**D4PG, "env": "dm:reacher/easy", "episode_length": 250, "exploration_noise": 0.3},
        paces(Pace(16, 50_000, 58), Pace(4, 160_000, 60)),
        "reacher easy, a larger target, in episodes of 250 steps: scores are at most 250",
        0.25,
    ),
}
"""Settings that learn within a minute on two cores."""
