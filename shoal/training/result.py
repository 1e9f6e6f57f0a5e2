"""The result of a run."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shoal.errors import UserError
from shoal.training import disk
from shoal.training.play import Evaluation
from shoal.training.returns import Estimate
from shoal.training.run_folder import RESULT, finite

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
    figures: Figures = dataclasses.field(default_factory=dict)
    """What the world reports of an episode, by name: the mean in training (last 1,000 episodes) as "training", of the
    evaluations as "deterministic", "noisy" and "random", and the half-widths of their intervals as "random_ci95", …"""
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of each phase."""
    signal: int | None = None
    """The signal that stopped an unfinished run."""

    def with_evaluations(self, played: dict[str, Evaluation]) -> "TrainResult":
        """The result with evaluations by player: return_random, return_random_ci95, …"""
        fields: dict[str, Any] = {f"return_{player}": evaluation.mean for player, evaluation in played.items()}
        fields |= {f"return_{player}_ci95": evaluation.ci95 for player, evaluation in played.items()}
        figures = {
            name: known | by_player({player: evaluation.figures[name] for player, evaluation in played.items()})
            for name, known in self.figures.items()
        }
        return dataclasses.replace(self, **fields, figures=figures)

    def to_json(self) -> dict[str, Any]:
        """What `shoal train --json` prints: figures are beside the returns, as landmarks_covered_random, …"""
        values = dataclasses.asdict(self)
        for name, figure in values.pop("figures").items():
            values |= {name if kind == "training" else f"{name}_{kind}": value for kind, value in figure.items()}
        return values


def by_player(estimates: dict[str, Estimate]) -> dict[str, float | None]:
    """The estimates of one figure: means as "random", …, half-widths of their intervals as "random_ci95", …"""
    found: dict[str, float | None] = {}
    for player, estimate in estimates.items():
        found |= {player: estimate.mean, f"{player}_ci95": estimate.ci95}
    return found


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
