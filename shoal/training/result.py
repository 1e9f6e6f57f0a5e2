"""The result of a run, and the lines of its log: the same numbers, at the end and along the way."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.envs.base import EnvSpec
from shoal.training.evaluation import PLAYERS, Evaluation
from shoal.training.returns import Episode, columns, means

if TYPE_CHECKING:
    from shoal.training.loop import Training

ByPlayer = dict[str, dict[str, float | None]]  # by name, of the trained team, the random one, or training


@dataclass(frozen=True)
class TrainResult:
    """The result of a run. Returns are per agent and episode; see docs/returns.md."""

    run: str
    finished: bool
    episodes: int
    env_steps: int
    updates: int
    seconds: float
    steps_per_second: float
    return_mean: float | None
    """Training return (noisy policies), mean over the last 1,000 episodes."""
    return_random: float | None = None
    return_random_ci95: float | None = None
    return_deterministic: float | None = None
    return_deterministic_ci95: float | None = None
    return_noisy: float | None = None
    return_noisy_ci95: float | None = None
    return_prey: float | None = None
    """With learning prey: its training return, mean over the last 1,000 episodes."""
    agents: ByPlayer = dataclasses.field(default_factory=dict)
    """Returns of each agent, by name: the mean in training (last 1,000 episodes) as "training", of the evaluations as
    "deterministic", "noisy" and "random", and the half-widths of their intervals as "random_ci95", …"""
    groups: ByPlayer = dataclasses.field(default_factory=dict)
    """Returns per agent of each group (predator, prey), by name; likewise."""
    figures: ByPlayer = dataclasses.field(default_factory=dict)
    """What the world reports of an episode (landmarks_covered), by name; likewise."""
    controllers: ByPlayer = dataclasses.field(default_factory=dict)
    """The world's hand-written controllers, by name: their "return" and its "ci95", and the "share" of the way from the
    random team to them that the trained one has gone (docs/returns.md)."""
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of each phase."""
    stopped: str | None = None
    """Why a run ended before its last episode, e.g. `stop_at_return`; None: it did not."""
    signal: int | None = None
    """The signal that stopped an unfinished run."""

    @property
    def counters(self) -> dict[str, int]:
        """How much was done, by the names that a checkpoint has for it."""
        return {"episodes": self.episodes, "samples": self.env_steps, "updates": self.updates}

    def with_evaluations(self, played: dict[str, Evaluation]) -> "TrainResult":
        """The result with evaluations by player: return_random, return_random_ci95, …"""
        fields: dict[str, Any] = {f"return_{player}": played[player].mean for player in PLAYERS}
        fields |= {f"return_{player}_ci95": played[player].ci95 for player in PLAYERS}
        fields["controllers"] = beside_controllers(played)
        for field, evaluations in by_player(played).items():
            training: ByPlayer = getattr(self, field)
            fields[field] = {name: training[name] | values for name, values in evaluations.items()}
        return dataclasses.replace(self, **fields)

    def to_json(self) -> dict[str, Any]:
        """What `shoal train --json` prints: everything at the top level, as return_random/group/prey, …"""
        values = dataclasses.asdict(self)
        named = flat({field: values.pop(field) for field in COLUMNS}, "training")
        return values | named | flat_controllers(values.pop("controllers"))


COLUMNS = ("agents", "groups", "figures")  # fields of a result and of an evaluation that hold numbers by name


def by_player(played: Mapping[str, Evaluation]) -> dict[str, ByPlayer]:
    """Evaluations as fields of a result: means as "random", …, half-widths of their intervals as "random_ci95", …"""
    fields: dict[str, ByPlayer] = {field: {} for field in COLUMNS}
    for player, evaluation in played.items():
        for field, by_name in fields.items():
            for name, (mean, ci95) in getattr(evaluation, field).items():
                by_name.setdefault(name, {}).update({player: mean, f"{player}_ci95": ci95})
    return fields


def beside_controllers(played: Mapping[str, Evaluation]) -> ByPlayer:
    """Each controller's return, and the share of the way from the random team to it that the first player has gone."""
    trained = next(iter(played.values()))
    return {
        name: {"return": one.mean, "ci95": one.ci95, "share": trained.share(played["random"], one)}
        for name, one in played.items()
        if name not in PLAYERS
    }


def flat_controllers(controllers: ByPlayer) -> dict[str, float | None]:
    """The same under the names of --json."""
    forms = {"return": "return_{}", "ci95": "return_{}_ci95", "share": "share_{}"}
    return {forms[key].format(name): value for name, own in controllers.items() for key, value in own.items()}


def flat(fields: Mapping[str, ByPlayer], plain: str) -> dict[str, float | None]:
    """Numbers under the names that --json has, such as return_random_ci95/group/prey; those of `plain` need no word."""
    endings = {plain: "", f"{plain}_ci95": "_ci95"}
    forms = {"agents": "return{}/agent/{}", "groups": "return{}/group/{}", "figures": "{1}{0}"}
    return {
        forms[field].format(endings.get(kind, f"_{kind}"), name): value
        for field, figures in fields.items()
        for name, values in figures.items()
        for kind, value in values.items()
    }


def training_means(spec: EnvSpec, episodes: Collection[Episode]) -> dict[str, ByPlayer]:
    """Means of training episodes as fields of a result."""
    return {
        field: {name: {"training": value} for name, value in means(named).items()}
        for field, named in columns(spec, episodes).items()
    }


def result_so_far(training: "Training", path: Path, signal: int | None) -> TrainResult:
    """The results of a run so far; `signal` is the one that stopped it, if any."""
    phases = training.clock.by_phase()
    seconds = sum(phases.values())  # of the same moment
    named: dict[str, Any] = training_means(training.env.spec, training.last)
    return TrainResult(
        run=str(path),
        finished=signal is None,
        episodes=training.episodes,
        env_steps=training.samples,
        updates=training.updates,
        seconds=seconds,
        steps_per_second=training.samples / seconds,
        return_mean=_mean(episode.team for episode in training.last),
        return_prey=_mean(episode.prey for episode in training.last if episode.prey is not None),
        **named,
        phases=phases,
        stopped=training.stopped,
        signal=signal,
    )


def log_line(training: "Training", evaluation: Evaluation | None = None) -> dict[str, Any]:
    """A line of metrics.jsonl: returns of the episodes since the last line, an evaluation, losses, time per phase."""
    phases = training.clock.by_phase()
    seconds = sum(phases.values())
    spec, episodes, learner = training.env.spec, training.fresh, training.learner
    line: dict[str, Any] = {
        "episode": training.episodes,
        "env_steps": training.samples,
        "updates": training.updates,
        "return_mean": _mean(episode.team for episode in episodes),
    }
    if spec.team:
        line["return_prey"] = _mean(episode.prey for episode in episodes if episode.prey is not None)
    line |= flat(training_means(spec, episodes), "training")
    if evaluation is not None:  # under the names of `shoal evaluate --json`
        line |= {"evaluate/return_mean": evaluation.mean, "evaluate/return_ci95": evaluation.ci95}
        if evaluation.prey_mean is not None:
            line["evaluate/return_prey"] = evaluation.prey_mean
        line |= {f"evaluate/{name}": value for name, value in flat(by_player({"plain": evaluation}), "plain").items()}
    config, diagnosis = training.config, _diagnosis(training)  # before the losses are reset
    annealed = config.learning_rate_schedule != "constant"
    return {
        **line,
        "seconds": seconds,
        "steps_per_second": training.samples / seconds,
        **{f"loss/{name}": None for name in training.team.losses},  # none before the warm-up
        **{f"loss/{name}": loss for name, loss in learner.mean_losses().items()},
        **diagnosis,
        **({"learning_rate": config.learning_rate * training.team.learning_rate_factor} if annealed else {}),
        **learner.precision.metrics(),
        **training.collector.metrics(),
        **{f"time/{phase}": passed for phase, passed in phases.items()},
    }


def _diagnosis(training: "Training") -> dict[str, float]:
    """The diagnosis, if one is due."""
    from shoal.replay import Ring  # here, because they import numba
    from shoal.training.diagnosis import diagnose, is_due

    learner, ring = training.learner, training.ring
    if not is_due(learner.updates, learner.loss_count) or not isinstance(ring, Ring):
        return {}
    return diagnose(training.team, ring, training.config.seed, learner.updates)


def _mean(values: Iterable[float]) -> float | None:
    """The mean; None of nothing."""
    values = list(values)
    return float(np.mean(values)) if values else None
