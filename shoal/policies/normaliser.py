"""Observation normalisers of Stable-Baselines3 models: VecNormalize from files, and hints that its file was not given.

VecNormalize is not part of a zip, and its own files are pickles. A safe file (.npz or .safetensors) holds `mean` and
`var` (O,), and optionally `epsilon` and `clip`. Without its normaliser a model still plays, quantizes and exports, but
sees other observations than in its training. Nothing proves that one is missing, so at most one warning is given.
"""

import contextlib
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy

from shoal.errors import UserError
from shoal.inference.policy import Normaliser
from shoal.policies.baselines_zip import MOST_PACKED, unpacked_times
from shoal.policies.trained import Array
from shoal.quantization.layers import find_layers

if TYPE_CHECKING:
    from shoal.policies.baselines_model import Model

SUFFIXES = (".npz", ".safetensors", ".pkl")
NAME = re.compile("_?(vec_?norm(ali[sz]e)?|normali[sz]er)", re.IGNORECASE)
"""What the name of a normaliser's file usually has in it."""
LARGEST_MEDIAN = 10.0
"""Median size of the first layer's pre-activations; in a trained network it is about 1, and tanh saturates at 5."""
LEAST_EPISODES, MOST_EPISODES = 5, 20
"""Training episodes that a return is compared with: the last ones, since earlier ones may have been learning still."""
DEVIATIONS, SHARE = 2.0, 0.25
"""How far below their mean a return must be: so many standard deviations, plus this share of the mean."""
GIVE = "if it was trained with VecNormalize, pass its file with `normaliser=FILE`."


def read_normaliser(path: Path, trust: bool = False) -> Normaliser:
    """Read a normaliser; a pickle runs code when it is loaded, so it is read only with `trust`."""
    if path.suffix == ".pkl" and not trust:
        safe = path.with_suffix(".npz")
        raise UserError(
            f"'{path}' is a pickle, and loading one runs the code in it: pass `trust=True` if you trust its source, "
            f'or convert it to a safe file once: python -c "from shoal.policies.normaliser import convert; '
            f"convert('{path}', '{safe}')\"."
        )
    if path.suffix not in SUFFIXES:
        raise UserError(f"`normaliser` '{path}' must end in one of {', '.join(SUFFIXES)}.")
    try:
        entries = _read(path)
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except Exception as error:  # three libraries, each with its own errors
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"'{path}' cannot be read as a normaliser: {reason.rstrip('.')}.") from None
    if missing := {"mean", "var"} - entries.keys():
        raise UserError(f"'{path}' has no '{min(missing)}': a normaliser file needs mean and var.")
    try:
        mean, var = (np.asarray(entries[name], np.float32).reshape(1, -1) for name in ("mean", "var"))
        epsilon, clip = float(entries.get("epsilon", 1e-8)), float(entries.get("clip", 10.0))
    except (TypeError, ValueError):
        raise UserError(f"'{path}' is not a normaliser: mean, var, epsilon and clip must be numbers.") from None
    finite = mean.shape == var.shape and np.isfinite(mean).all() and np.isfinite(var).all()
    if not finite or not ((var >= 0) & (var + np.float32(epsilon) > 0)).all() or not clip > 0:
        raise UserError(
            f"'{path}' is not a normaliser: mean and var must be finite and of equal length, var not negative, "
            "and var + epsilon and clip must be positive."
        )
    return Normaliser(mean, var, epsilon, clip)


def normaliser_beside(path: Path, env: str) -> Path | None:
    """A file beside a zip that looks like its normaliser, or None.

    RL Baselines3 Zoo has it in a folder named like the zip or the environment; the checkpoints of Stable-Baselines3,
    such as rl_model_500_steps.zip, have one file each, rl_model_vecnormalize_500_steps.pkl.
    """
    files = []
    for folder in (path.parent, path.with_suffix(""), path.parent / env):
        with contextlib.suppress(OSError):
            files += sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and NAME.search(file.stem))
    files.sort(key=lambda file: NAME.sub("", file.stem) != path.stem)  # the zip's own first
    return files[0] if files else None


def convert(pickled: str | Path, safe: str | Path) -> Path:
    """Convert a pickled VecNormalize that you trust to a safe file (.npz)."""
    safe = Path(safe)
    if safe.suffix != ".npz":
        raise UserError(f"'{safe}' must end in .npz.")
    norm = read_normaliser(Path(pickled), trust=True)
    np.savez(safe, mean=norm.mean[0], var=norm.var[0], epsilon=norm.epsilon, clip=norm.clip)
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
        return statistics_of(pickle.load(file))


def statistics_of(venv: Any) -> dict[str, Any]:
    """The entries of a safe file, from a VecNormalize."""
    if not getattr(venv, "norm_obs", True):
        raise ValueError("it does not normalise observations")
    if isinstance(moments := venv.obs_rms, dict):
        raise ValueError("it is for dictionary observations")
    return {"mean": moments.mean, "var": moments.var, "epsilon": venv.epsilon, "clip": venv.clip_obs}


class MissingNormaliser:
    """Warns once, at the first hint."""

    def __init__(self, model: "Model", env: str, warn: Callable[[str], None]) -> None:
        self.model, self.env, self._warn = model, env, warn
        self.silent = model.normaliser is not None or model.channels is not None or model.saw_normalised is False

    def check_files(self) -> None:
        """Look for a normaliser beside the zip, and at what the zip says about its training."""
        path = self.model.path
        if (beside := normaliser_beside(Path(path), self.env)) is not None:
            self._say(f"'{beside}' is not used: if '{path}' was trained with it, pass it with `normaliser=FILE`.")
        elif self.model.saw_normalised:
            self._say(
                f"'{path}' was trained with VecNormalize, whose statistics are not in the zip: unless it left "
                "observations as they were (norm_obs=False), pass its file with `normaliser=FILE`."
            )
        elif self.model.saw_outside:
            self._say(f"'{path}' saw observations outside the environment's bounds at the end of its training: {GIVE}")

    def check_states(self, states: Array) -> None:
        """Compare states (B, 1, O) with the scale that the first layer is made for."""
        first = find_layers(self.model.network)[0]
        if self.silent or tuple(first.weight.shape[1:]) != states.shape[2:]:  # a custom model's own order of layers
            return
        layer = first.portable()
        median = float(np.median(np.abs(states[:, 0] @ layer.weight[0] + layer.bias)))
        if median > LARGEST_MEDIAN:
            self._say(
                f"Observations of {self.env} are out of scale for the first layer of '{self.model.path}' "
                f"(median pre-activation ±{median:.3g}): {GIVE}"
            )

    def check_return(self, mean: float) -> None:
        """Compare a mean return with those of the last training episodes."""
        logged = np.array(self.model.logged_returns[-MOST_EPISODES:])
        if len(logged) < LEAST_EPISODES:
            return
        before = float(logged.mean())
        if mean < before - DEVIATIONS * float(logged.std()) - SHARE * abs(before):
            self._say(
                f"'{self.model.path}' returns {mean:.4g} in {self.env}, but {before:.4g} at the end of its training: "
                f"{GIVE}"
            )

    def _say(self, sentence: str) -> None:
        if not self.silent:
            self._warn(sentence)
        self.silent = True
