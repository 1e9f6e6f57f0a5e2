"""What a sweep runs: base settings, a grid of values and seeds, as documented in docs/sweep.md."""

import contextlib
import dataclasses
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import SETTING_ALIASES, UserError, check_range, nearest, whole_number
from shoal.runs.folder import CONFIG, read_result
from shoal.training.config import TrainConfig, read_config
from shoal.training.prechecks import check_new
from shoal.training.result import TrainResult
from shoal.trust import CODE, check_importable, import_from_working_directory, names_third_party

KEYS = ("base", "grid", "seeds")
NOT_HERE = {
    "out": "every run has a folder of its own inside `out`",
    "seed": "seeds has all of them",
    "threads": "it is the number of processors divided by that of runs side by side",
}
"""Settings that a sweep chooses itself, and why."""
MOST_RUNS = 10_000
WHOLE = "whole numbers such as '0-9' or '0,3,7'"


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    point: Mapping[str, Any]  # its values of the grid; empty if there is none
    config: TrainConfig  # with its folder in `out`

    @property
    def label(self) -> str:
        """Its configuration among the others."""
        return _label(self.point)

    @property
    def label_in_world(self) -> str:
        """Its configuration among those of the same world."""
        return _label({name: value for name, value in self.point.items() if name != "env"})

    @property
    def folder(self) -> Path:
        return Path(self.config.out or "")

    @property
    def name(self) -> str:
        return self.folder.name

    def result(self) -> TrainResult | None:
        """The result in its folder; None if there is none, or a damaged one, which its own process will report."""
        with contextlib.suppress(UserError):
            return read_result(self.folder, TrainResult)
        return None

    @property
    def started(self) -> bool:
        """Whether its folder has settings."""
        return (self.folder / CONFIG).exists()


def read_sweep(path: Path, out: Path) -> list[SweepRun]:
    """The runs of a sweep file; a `UserError` for whatever is wrong in it, before anything is started."""
    try:
        sweep = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_key_twice)
    except OSError as error:
        raise UserError(f"The sweep '{path}' cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"The sweep '{path}' is not JSON: {error}.") from None
    try:
        return sweep_runs(sweep, out)
    except UserError as error:
        raise UserError(f"The sweep '{path}' cannot be used: {error}") from None


def sweep_runs(sweep: Any, out: Path) -> list[SweepRun]:
    """The runs of a sweep's JSON object."""
    if not isinstance(sweep, dict):
        raise UserError("it must be a JSON object with base, grid and seeds.")
    if unknown := sweep.keys() - set(KEYS):
        raise UserError(f"'{min(unknown)}' is not known; choose one of: {', '.join(KEYS)}.")
    base, grid = (_settings(key, sweep.get(key, {})) for key in ("base", "grid"))
    for name, values in grid.items():
        if name in base:
            raise UserError(f"'{name}' is in base and in grid; leave one of them out.")
        if not isinstance(values, list) or not values:
            raise UserError(f"grid has {values!r} for '{name}', but must have a list of values.")
        if any(value in values[:k] for k, value in enumerate(values)):
            raise UserError(f"grid has a value of '{name}' twice.")
    seeds = parse_seeds("seeds", sweep.get("seeds", [0]))
    _check_count(len(seeds) * math.prod(map(len, grid.values())))
    named = [[base[name]] if name in base else grid.get(name, ()) for name in CODE]
    if names_third_party([f"--{name}={value}" for name, values in zip(CODE, named, strict=True) for value in values]):
        import_from_working_directory()
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return list_runs(base, points, seeds, out)


def list_runs(
    base: Mapping[str, Any], points: Sequence[Mapping[str, Any]], seeds: Sequence[int], out: Path
) -> list[SweepRun]:
    """One run per point of the grid and seed, all checked, also against what is in their folders."""
    _check_count(len(points) * len(seeds))
    runs = []
    for point in points:
        folder = "-".join(f"{name}={_text(value)}" for name, value in point.items())
        for seed in seeds:
            name = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", f"{folder}-seed{seed}" if folder else f"seed{seed}")
            config = TrainConfig(**{**base, **point}, seed=seed, out=str(out / name)).checked()
            check_importable("env", config.env, "the processes of a sweep")
            for name in ("algorithm", "sampler"):
                check_importable(name, f"shoal:{getattr(config, name)}", "the processes of a sweep")
            runs.append(SweepRun(point, config))
    if len({run.name for run in runs}) < len(runs):
        raise UserError("two values of the grid would have the same folder name; name them more differently.")
    for run in runs:
        _check_folder(run)
    return runs


def parse_seeds(name: str, value: Any) -> tuple[int, ...]:
    """Seeds as a range '0-9', a list '0,3,7', both, or a JSON list of whole numbers."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value.strip(), re.ASCII):
        count = int(value)
        several = f"0-{count - 1} for {count} seeds, " if count > 1 else ""
        raise UserError(f"{name} is {count}, a single number: write {several}{count}-{count} for seed {count} alone.")
    if isinstance(value, str):
        seeds: list[int] = []
        for word in value.split(","):
            match = re.fullmatch(r"\s*(\d{1,19})\s*(?:-\s*(\d{1,19}))?\s*", word, re.ASCII)
            if match is None:
                raise UserError(f"{name} is '{value}', but must be {WHOLE}.")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise UserError(f"{name} is '{value}', but {first}-{last} counts down; write {last}-{first}.")
            _check_count(len(seeds) + last - first + 1)
            seeds += range(first, last + 1)
    elif isinstance(value, list) and value:
        seeds = [whole_number(name, seed) for seed in value]
    else:
        raise UserError(f"{name} is {value!r}, but must be {WHOLE}.")
    for seed in seeds:
        check_range(name, seed, 0, 2**62)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{name} has a seed twice.")
    return tuple(seeds)


def _check_count(runs: int) -> None:
    if runs > MOST_RUNS:
        raise UserError(f"{runs:,} runs are too many; at most {MOST_RUNS:,} can be in one sweep.")


def _settings(key: str, fields: Any) -> dict[str, Any]:
    """The settings in `base` or `grid`, under the names of `TrainConfig`; spellings of options are understood."""
    if not isinstance(fields, dict):
        raise UserError(f"{key} must be a JSON object.")
    known = [field.name for field in dataclasses.fields(TrainConfig)]
    settings: dict[str, Any] = {}
    for given, value in fields.items():
        name = given.lstrip("-").replace("-", "_")
        name = SETTING_ALIASES.get(name, name)
        if name in NOT_HERE:
            raise UserError(f"{key} has '{given}', but {NOT_HERE[name]}.")
        if name not in known:
            meant = nearest(given, [setting for setting in known if setting not in NOT_HERE])
            raise UserError(f"{key} has the unknown setting '{given}'{f'; perhaps {meant}' if meant else ''}.")
        if name in settings:
            raise UserError(f"{key} has '{name}' twice.")
        settings[name] = value
    return settings


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; Python would silently take the last of several values."""
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"duplicate key '{twice[0]}'")
    return dict(pairs)


def _check_folder(run: SweepRun) -> None:
    """Refuse a folder that holds a run with other settings; a new run is checked as `shoal train` would."""
    if not run.started:
        check_new(run.config)
        return
    stored = read_config(run.folder).settings
    for name, value in run.config.settings.items():
        if stored[name] != value and name not in run.config.settled_later:
            raise UserError(
                f"'{run.folder}' holds a run with {name} {_text(stored[name])}, not {_text(value)}; choose another "
                "`out`."
            )


def _label(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in point.items())


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
