"""What a run came to."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from shoal.errors import UserError
from shoal.training.evaluation import Evaluation
from shoal.training.run_folder import finite


@dataclass(frozen=True)
class TrainResult:
    """What a run came to. Returns are per agent and episode; see docs/returns.md."""

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
    """Where the prey learns: its training return, mean over the last 1,000 episodes."""
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of each phase."""
    signal: int | None = None
    """The signal that stopped an unfinished run."""


def result_fields(played: dict[str, Evaluation]) -> dict[str, Any]:
    """Evaluations as the result's fields: return_random, return_random_ci95, …"""
    fields: dict[str, Any] = {f"return_{name}": evaluation.mean for name, evaluation in played.items()}
    return fields | {f"return_{name}_ci95": evaluation.ci95 for name, evaluation in played.items()}


def result_json(result: TrainResult) -> str:
    """The text of result.json; what is not a finite number is null."""
    return json.dumps(finite(dataclasses.asdict(result)), indent=2) + "\n"


def result_of(held: dict[str, Any], run: Path) -> TrainResult:
    """What result.json held; the run may have been moved since."""
    held = {**held, "run": str(run)}
    try:
        result = TrainResult(**held)
        whole = all(fits(held[name], kind) for name, kind in get_type_hints(TrainResult).items() if name in held)
    except TypeError:  # a field is missing or unknown
        whole = False
    if not whole or not result.finished:
        raise UserError(f"'{run / 'result.json'}' is damaged; remove it, and --resume makes it anew.")
    return result


def fits(value: Any, kind: Any) -> bool:
    """Whether a value that was read from JSON is of a field's type."""
    kind = get_origin(kind) if get_origin(kind) is dict else kind
    return isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))
