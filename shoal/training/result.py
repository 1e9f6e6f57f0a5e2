"""The result of a run."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shoal.errors import UserError
from shoal.runs import disk
from shoal.system.files import finite
from shoal.training.play import Evaluation
from shoal.training.returns import Columns, means
from shoal.training.run_folder import RESULT

Figures = dict[str, dict[str, float | None]]


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
    agents: Figures = dataclasses.field(default_factory=dict)
    """Returns of each agent, by name: the mean in training (last 1,000 episodes) as "training", of the evaluations as
    "deterministic", "noisy" and "random", and the half-widths of their intervals as "random_ci95", …"""
    groups: Figures = dataclasses.field(default_factory=dict)
    """Returns per agent of each group (predator, prey), by name; likewise."""
    figures: Figures = dataclasses.field(default_factory=dict)
    """What the world reports of an episode (landmarks_covered), by name; likewise."""
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of each phase."""
    stopped: str | None = None
    """Why a run ended before its last episode, e.g. --stop-at-return; None: it did not."""
    signal: int | None = None
    """The signal that stopped an unfinished run."""

    def with_evaluations(self, played: dict[str, Evaluation]) -> "TrainResult":
        """The result with evaluations by player: return_random, return_random_ci95, …"""
        fields: dict[str, Any] = {f"return_{player}": evaluation.mean for player, evaluation in played.items()}
        fields |= {f"return_{player}_ci95": evaluation.ci95 for player, evaluation in played.items()}
        for field, found in by_player(played).items():
            known: Figures = getattr(self, field)
            fields[field] = {name: known[name] | values for name, values in found.items()}
        return dataclasses.replace(self, **fields)

    def to_json(self) -> dict[str, Any]:
        """What `shoal train --json` prints: everything at the top level, as return_random/group/prey, …"""
        values = dataclasses.asdict(self)
        return values | flat({field: values.pop(field) for field in COLUMNS}, "training")


COLUMNS = ("agents", "groups", "figures")
"""Fields of a result and of an evaluation that hold figures by name."""


def training_means(columns: Columns) -> dict[str, Any]:
    """Means in training, as fields of a result."""
    return {
        field: {name: {"training": value} for name, value in means(getattr(columns, field)).items()}
        for field in COLUMNS
    }


def by_player(played: Mapping[str, Evaluation]) -> dict[str, Figures]:
    """Evaluations as fields of a result: means as "random", …, half-widths of their intervals as "random_ci95", …"""
    fields: dict[str, Figures] = {field: {} for field in COLUMNS}
    for player, evaluation in played.items():
        for field, found in fields.items():
            for name, (mean, ci95) in getattr(evaluation, field).items():
                found.setdefault(name, {}).update({player: mean, f"{player}_ci95": ci95})
    return fields


def flat(fields: Mapping[str, Figures], plain: str) -> dict[str, float | None]:
    """Figures under the names that --json has, such as return_random_ci95/group/prey; those of `plain` need no word."""
    endings = {plain: "", f"{plain}_ci95": "_ci95"}
    forms = {"agents": "return{}/agent/{}", "groups": "return{}/group/{}", "figures": "{1}{0}"}
    return {
        forms[field].format(endings.get(kind, f"_{kind}"), name): value
        for field, figures in fields.items()
        for name, values in figures.items()
        for kind, value in values.items()
    }


Result = TypeVar("Result")


def result_json(result: Any) -> str:
    """The text of result.json for a dataclass; non-finite numbers become null."""
    return json.dumps(disk.sealed(finite(dataclasses.asdict(result))), indent=2) + "\n"


def read_result(run: Path) -> TrainResult | None:
    """The result of a team's run; None while it is not finished."""
    return read_result_as(run, TrainResult)


def read_result_as(run: Path, kind: type[Result]) -> Result | None:
    """Read result.json into this dataclass; None while the run is not finished. The run may have been moved since."""
    path = run / RESULT
    try:
        if not path.exists():
            return None
        return kind(**{**disk.unsealed(json.loads(disk.read(path))), "run": str(run)})
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    except (disk.Damaged, ValueError, RecursionError, TypeError) as error:  # TypeError: a field is missing or unknown
        raise UserError(f"'{path}' is damaged ({error}); remove it, and --resume will recreate it.") from None
