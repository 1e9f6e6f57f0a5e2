"""Observation normalisers of others: Stable-Baselines3's VecNormalize, whose own files are pickles, in safe ones.

A safe file (.npz or .safetensors) holds `mean` and `var` (O,), and perhaps `epsilon` and `clip`.
"""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from shoal.errors import UserError
from shoal.inference.policy import Normaliser
from shoal.quantization.baselines_zip import MOST_PACKED, unpacked_times

SUFFIXES = (".npz", ".safetensors", ".pkl")


def read_normaliser(path: Path, trust: bool = False) -> Normaliser:
    """The normaliser in a file; a pickle runs whatever is in it, so it is read only on trust."""
    if path.suffix == ".pkl" and not trust:
        safe = path.with_suffix(".npz")
        raise UserError(
            f"'{path}' is a pickle, and reading one runs the code that is in it: --trust says that you know who made "
            f'it, or make a safe file of it once: python -c "from shoal.quantization.normaliser import convert; '
            f"convert('{path}', '{safe}')\"."
        )
    if path.suffix not in SUFFIXES:
        raise UserError(f"--normaliser '{path}' must be one of the files {', '.join(SUFFIXES)}.")
    try:
        held = _read(path)
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except Exception as error:  # whatever foreign bytes can do to three libraries
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"'{path}' cannot be read as a normaliser: {reason.rstrip('.')}.") from None
    return _normaliser(held, path)


def convert(pickled: str | Path, safe: str | Path) -> Path:
    """Make a safe file (.npz) of a pickled VecNormalize that you trust."""
    safe = Path(safe)
    if safe.suffix != ".npz":
        raise UserError(f"'{safe}' must end in .npz: that is what is written.")
    found = read_normaliser(Path(pickled), trust=True)
    np.savez(safe, mean=found.mean[0], var=found.var[0], epsilon=found.epsilon, clip=found.clip)
    return safe


def _read(path: Path) -> dict[str, Any]:
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            if unpacked_times(archive.infolist(), path.stat().st_size) > MOST_PACKED:
                raise ValueError("unpacked it would be far larger than any normaliser")
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    if path.suffix == ".safetensors":
        return dict(safetensors.numpy.load_file(path))
    with path.open("rb") as file:
        venv = pickle.load(file)
    if not getattr(venv, "norm_obs", True):
        raise ValueError("it does not normalise observations")
    statistics = venv.obs_rms
    if isinstance(statistics, dict):
        raise ValueError("it is of dictionary observations")
    return {"mean": statistics.mean, "var": statistics.var, "epsilon": venv.epsilon, "clip": venv.clip_obs}


def _normaliser(held: dict[str, Any], path: Path) -> Normaliser:
    if missing := {"mean", "var"} - held.keys():
        raise UserError(f"'{path}' has no '{min(missing)}': a normaliser's file holds mean and var.")
    try:
        mean, var = (np.asarray(held[name], np.float32).reshape(1, -1) for name in ("mean", "var"))
        epsilon, clip = float(held.get("epsilon", 1e-8)), float(held.get("clip", 10.0))
    except (TypeError, ValueError):
        raise UserError(f"'{path}' is not a normaliser: mean, var, epsilon and clip must be numbers.") from None
    finite = mean.shape == var.shape and np.isfinite(mean).all() and np.isfinite(var).all()
    if not finite or not ((var >= 0) & (var + np.float32(epsilon) > 0)).all() or not clip > 0:
        raise UserError(
            f"'{path}' is not a normaliser: mean and var must be finite and of one length, var not below 0, "
            "and var + epsilon and clip above it."
        )
    return Normaliser(mean, var, epsilon, clip)
