"""Observation normalisers from files: Stable-Baselines3's VecNormalize, whose own files are pickles, or safe files.

A safe file (.npz or .safetensors) holds `mean` and `var` (O,), and optionally `epsilon` and `clip`.
"""

import contextlib
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from shoal.errors import UserError
from shoal.inference.policy import Normaliser
from shoal.quantization.baselines_zip import MOST_PACKED, unpacked_times

SUFFIXES = (".npz", ".safetensors", ".pkl")
NAME = re.compile("_?(vec_?norm(ali[sz]e)?|normali[sz]er)", re.IGNORECASE)
"""What the name of a normaliser's file usually has in it."""


def read_normaliser(path: Path, trust: bool = False) -> Normaliser:
    """Read a normaliser; a pickle runs code when it is loaded, so it is read only with `trust`."""
    if path.suffix == ".pkl" and not trust:
        safe = path.with_suffix(".npz")
        raise UserError(
            f"'{path}' is a pickle, and loading one runs the code in it: pass `trust=True` if you trust its source, "
            f'or convert it to a safe file once: python -c "from shoal.quantization.normaliser import convert; '
            f"convert('{path}', '{safe}')\"."
        )
    if path.suffix not in SUFFIXES:
        raise UserError(f"`normaliser` '{path}' must end in one of {', '.join(SUFFIXES)}.")
    try:
        held = _read(path)
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except Exception as error:  # three libraries, each with its own errors
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"'{path}' cannot be read as a normaliser: {reason.rstrip('.')}.") from None
    return _normaliser(held, path)


def normaliser_beside(path: Path, env: str) -> Path | None:
    """A file beside a zip that looks like its normaliser, or None.

    RL Baselines3 Zoo has it in a folder named like the zip or the environment; the checkpoints of Stable-Baselines3,
    such as rl_model_500_steps.zip, have one file each, rl_model_vecnormalize_500_steps.pkl.
    """
    found = []
    for folder in (path.parent, path.with_suffix(""), path.parent / env):
        with contextlib.suppress(OSError):
            files = (file for file in folder.iterdir() if file.suffix in SUFFIXES and NAME.search(file.stem))
            found += sorted(files)
    own = [file for file in found if NAME.sub("", file.stem) == path.stem]
    return next(iter([*own, *found]), None)


def convert(pickled: str | Path, safe: str | Path) -> Path:
    """Convert a pickled VecNormalize that you trust to a safe file (.npz)."""
    safe = Path(safe)
    if safe.suffix != ".npz":
        raise UserError(f"'{safe}' must end in .npz.")
    found = read_normaliser(Path(pickled), trust=True)
    np.savez(safe, mean=found.mean[0], var=found.var[0], epsilon=found.epsilon, clip=found.clip)
    return safe


def _read(path: Path) -> dict[str, Any]:
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            if unpacked_times(archive.infolist(), path.stat().st_size) > MOST_PACKED:
                raise ValueError("unpacked it is far larger than any normaliser")
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    if path.suffix == ".safetensors":
        return dict(safetensors.numpy.load_file(path))
    with path.open("rb") as file:
        venv = pickle.load(file)
    return statistics_of(venv)


def statistics_of(venv: Any) -> dict[str, Any]:
    """The entries of a safe file, from a VecNormalize."""
    if not getattr(venv, "norm_obs", True):
        raise ValueError("it does not normalise observations")
    if isinstance(found := venv.obs_rms, dict):
        raise ValueError("it is for dictionary observations")
    return {"mean": found.mean, "var": found.var, "epsilon": venv.epsilon, "clip": venv.clip_obs}


def _normaliser(held: dict[str, Any], path: Path) -> Normaliser:
    if missing := {"mean", "var"} - held.keys():
        raise UserError(f"'{path}' has no '{min(missing)}': a normaliser file needs mean and var.")
    try:
        mean, var = (np.asarray(held[name], np.float32).reshape(1, -1) for name in ("mean", "var"))
        epsilon, clip = float(held.get("epsilon", 1e-8)), float(held.get("clip", 10.0))
    except (TypeError, ValueError):
        raise UserError(f"'{path}' is not a normaliser: mean, var, epsilon and clip must be numbers.") from None
    finite = mean.shape == var.shape and np.isfinite(mean).all() and np.isfinite(var).all()
    if not finite or not ((var >= 0) & (var + np.float32(epsilon) > 0)).all() or not clip > 0:
        raise UserError(
            f"'{path}' is not a normaliser: mean and var must be finite and of equal length, var not negative, "
            "and var + epsilon and clip must be positive."
        )
    return Normaliser(mean, var, epsilon, clip)
