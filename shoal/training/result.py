"""The result of a run."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shoal.errors import UserError
from shoal.training import disk
from shoal.training.play import Evaluation
from shoal.training.run_folder import RESULT, finite


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
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of each phase."""
    stopped: str | None = None
    """Why a run ended before its last episode, e.g. --stop-at-return; None: it did not."""
    signal: int | None = None
    """The signal that stopped an unfinished run."""


def result_fields(played: dict[str, Evaluation]) -> dict[str, Any]:
    """Evaluations as fields of the result: return_random, return_random_ci95, …"""
    fields: dict[str, Any] = {f"return_{name}": evaluation.mean for name, evaluation in played.items()}
    return fields | {f"return_{name}_ci95": evaluation.ci95 for name, evaluation in played.items()}


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
