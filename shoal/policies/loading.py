"""Load a trained policy from a path; torch is imported only for run folders and zips."""

import os
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.errors import UserError, names_checked
from shoal.policies.trained import ExportedPolicy, PolicyKind, TrainedPolicy
from shoal.trust import env_name


def kind_of(path: str) -> PolicyKind:
    """The kind of policy at a path; a `UserError` if there is nothing."""
    if os.path.isdir(path):
        return "run"
    if not os.path.exists(path):  # False also for invalid file names
        raise UserError(f"There is no run folder, Stable-Baselines3 zip or ONNX file '{path}'.")
    if not os.path.isfile(path):  # a pipe would wait for its other end
        raise UserError(f"'{path}' is not a regular file.")
    return "zip" if path.lower().endswith(".zip") or zipfile.is_zipfile(path) else "onnx"


def check_loadable(path: str, checkpoint: str = "last") -> PolicyKind:
    """The kind of policy at a path; what cannot be loaded is refused, as far as that can be told without torch."""
    kind = kind_of(path)
    if kind == "run":
        from shoal.training.saved_team import check_run

        check_run(Path(path), checkpoint)
    elif checkpoint != "last":
        raise UserError(f"`checkpoint` is for run folders, but '{path}' is not one.")
    return kind


def warn_caller(sentence: str) -> None:
    """Warn with the line of code outside this package that led here."""
    package, level, frame = str(Path(__file__).parents[1]), 1, sys._getframe()
    while frame.f_code.co_filename.startswith(package) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, stacklevel=level)


@names_checked
def load(
    path: str | os.PathLike[str],
    env: str | Callable[..., Any] = "",
    *,
    agents: int | None = None,
    episode_length: int | None = None,
    env_options: str = "",
    env_workers: int | None = None,
    normaliser: str = "",
    threads: int | None = None,
    checkpoint: str | int = "last",
    trust: bool = False,
    warn: Callable[[str], None] = warn_caller,
) -> TrainedPolicy:
    """Load the trained policy in a run folder, a Stable-Baselines3 zip or an exported ONNX file.

    Args:
        path: run folder, zip or ONNX file.
        env: world to play in, by its name or as a class or function; empty: its own. A zip needs one, e.g. CartPole-v1.
        agents: number of agents, where the world supports several; None: as in training.
        episode_length: steps per episode; None: as in training, or the environment's own limit.
        env_options: the environment's constructor arguments as a JSON object.
        env_workers: processes that share the copies of a slow environment in evaluations, with the same results; None:
            this process alone. For PettingZoo, Gymnasium and dm_control.
        normaliser: a zip's observation normaliser (VecNormalize) as .npz or .safetensors; as .pkl only with `trust`.
        threads: ONNX Runtime threads; for exported files only.
        checkpoint: a run's newest weights (`last`), those with its best evaluation (`best`), or a snapshot's episode.
        trust: allow running third-party code that the path names or contains; not needed for a run's own environment
            where the run was trained by the same user on this machine.
        warn: called with warnings about damaged or doubtful files.

    """
    path = os.fspath(path)
    kind = check_loadable(path, str(checkpoint))
    options = {
        "env": env_name(env), "agents": agents, "episode_length": episode_length, "env_options": env_options,
        "env_workers": env_workers,
    }  # fmt: skip
    options = {name: value for name, value in options.items() if value not in (None, "")}
    if normaliser and kind != "zip":
        raise UserError(f"`normaliser` is for Stable-Baselines3 zips, but '{path}' is not one.")
    if threads is not None and kind != "onnx":
        raise UserError(f"`threads` is for exported files, but '{path}' is not one.")
    if kind == "onnx":
        return ExportedPolicy(Path(path), options, 1 if threads is None else threads, trust)
    if kind == "run":
        from shoal.policies.run import load_run

        return load_run(Path(path), options, trust, warn, str(checkpoint))
    from shoal.policies.stable_baselines import load_zip

    return load_zip(Path(path), options, normaliser, trust, warn)
