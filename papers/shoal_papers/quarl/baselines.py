"""Stable-Baselines3 models that studies train themselves, with the settings in `recipes`.

Performance may collapse late in training, so the best of five models is kept: the model is evaluated for ten episodes
after every tenth of the second half of the training.
"""

import importlib.util
import json
import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import UserError, install
from shoal.policies.baselines_model import read_zip
from shoal.policies.normaliser import read_normaliser, statistics_of
from shoal.policies.stable_baselines import BaselinesPolicy
from shoal.runs.disk import sha256
from shoal.waiting import Advance
from shoal_papers.cells import Options
from shoal_papers.quarl import recipes
from shoal_papers.quarl.recipes import CHOSEN, CHOSEN_BY, Recipe
from shoal_papers.study import CellStudy


class ModelStudy(CellStudy):
    """A study of such models, unless the user names one."""

    def measured(self, quick: bool, advance: Advance, options: Options) -> dict[str, Any]:
        """Refuse to train models without Stable-Baselines3; say which environments are left out."""
        if not options.model and importlib.util.find_spec("stable_baselines3") is None:
            raise UserError(f"Stable-Baselines3 is needed to train the models; {install('sb3')}.")
        data = super().measured(quick, advance, options)
        if not quick and not options.model:
            data["failed"] += recipes.left_out()
        return data


def trained_model(
    algorithm: str, env: str, seed: int, steps: int, folder: Path, qat_bits: int | None = None, critics: bool = True
) -> BaselinesPolicy:
    """The model of a recipe, trained if its zip is not in the folder; with `qat_bits`, by quantization-aware training.

    `critics`: whether the critics are quantized in training as well.
    """
    recipe = recipes.RECIPES[algorithm, env]
    digest = sha256(json.dumps([recipes.digest_of(algorithm, env), steps, seed, qat_bits]).encode())[:10]
    place = folder / "models"
    place.mkdir(parents=True, exist_ok=True)
    zipped = place / f"{algorithm}-{env}-{digest}{'' if critics else '-actors'}.zip"
    statistics = zipped.with_suffix(".npz")
    if not zipped.exists() or (recipe.normalise and not statistics.exists()):
        _train(algorithm, env, recipe, seed, steps, zipped, qat_bits, critics)
    normaliser = read_normaliser(statistics) if recipe.normalise else None
    return BaselinesPolicy(read_zip(zipped, normaliser=normaliser), {"env": env})


def _train(
    algorithm: str, env: str, recipe: Recipe, seed: int, steps: int, zipped: Path, qat_bits: int | None, critics: bool
) -> None:
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize

    venv: VecEnv = make_vec_env(env, recipe.envs, seed=seed)
    if recipe.normalise:
        venv = VecNormalize(venv, gamma=recipe.settings.get("gamma", 0.99))
    settings = {name: _setting(name, value) for name, value in recipe.settings.items()}
    if recipe.noise is not None:
        settings["action_noise"] = _noise(*recipe.noise, venv.action_space.shape)
    qat = None
    if qat_bits is not None:
        from shoal.quantization.callback import QatCallback

        qat = QatCallback(qat_bits, critics=critics)

    with warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=zipped.parent) as best:

        def keep() -> None:
            if qat is not None:
                qat.keep()
            if isinstance(venv, VecNormalize):
                np.savez(Path(best) / f"{zipped.stem}.npz", **statistics_of(venv))
            model.save(Path(best) / zipped.name)

        warnings.simplefilter("ignore")  # about mini-batches larger than a rollout, as in some tuned settings
        model = getattr(stable_baselines3, algorithm.upper())("MlpPolicy", venv, device="cpu", seed=seed, **settings)
        played = _played(make_vec_env(env, 1, seed=seed + 1_000), venv)
        try:
            model.learn(steps, callback=[*filter(None, [qat]), best_callback(steps, played, keep)])
            for path in sorted(Path(best).iterdir()):  # the zip last: it marks a complete model
                path.replace(zipped.with_name(path.name))
        except OSError as error:
            raise UserError(f"'{zipped}' cannot be written: {error.strerror or error}.") from None
        finally:
            venv.close()


def best_callback(steps: int, play: Callable[[Any], float], keep: Callable[[], None]) -> Any:
    """A callback for `learn`: evaluates the model at the shares in `CHOSEN` and keeps it unless it got worse."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Best(BaseCallback):
        left, best = CHOSEN, -math.inf

        def _on_step(self) -> bool:
            if self.left and self.num_timesteps >= self.left[0] * steps:
                self.left = tuple(share for share in self.left if share * steps > self.num_timesteps)
                if (reached := play(self.model)) >= self.best:
                    self.best = reached
                    keep()
            return True

    return Best()


def _played(own: Any, trained_in: Any) -> Callable[[Any], float]:
    """Returns a function for a model's mean return in its own environment, normalised like the training environment."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    if isinstance(trained_in, VecNormalize):
        own = VecNormalize(own, training=False, norm_reward=False, clip_obs=trained_in.clip_obs)
        own.obs_rms = trained_in.obs_rms
    return lambda model: float(np.mean(evaluate_policy(model, own, CHOSEN_BY, warn=False)[0]))


def _setting(name: str, value: Any) -> Any:
    """A setting in the form that the algorithms take."""
    if isinstance(value, str) and value.startswith("lin_"):
        first = float(value.removeprefix("lin_"))
        return lambda left: left * first
    if name == "train_freq" and isinstance(value, list):
        return tuple(value)
    if name == "policy_kwargs":
        import torch

        return {key: getattr(torch.nn, held) if key == "activation_fn" else held for key, held in value.items()}
    return value


def _noise(kind: str, deviation: float, shape: tuple[int, ...] | None) -> Any:
    from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

    kinds: dict[str, Any] = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}
    return kinds[kind](np.zeros(shape or ()), np.full(shape or (), deviation))
