"""Models of Stable-Baselines3 that studies train themselves, with settings that others have tuned.

Algorithms may lose at the end what they had learnt. So the model that is kept is the best of five: after every tenth of
the second half of the training it plays ten episodes.

The settings are those published by RL Baselines3 Zoo (github.com/DLR-RM/rl-baselines3-zoo, hyperparams/*.yml); what the
Zoo does not have for an environment is taken from its nearest relative, and said so. `steps` is ours: where the Zoo
trains longer than a study can, it is cut.
"""

import dataclasses
import importlib.util
import json
import math
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import UserError
from shoal.quantization.normaliser import read_normaliser
from shoal.quantization.stable_baselines import read_zip
from shoal.training.disk import sha256
from shoal.training.subjects import ModelSubject, model_subject


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    steps: int
    zoo_steps: int
    """Steps in the Zoo."""
    seconds: float
    """About how long our steps take on one core."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of the algorithm; 'lin_0.001' falls from 0.001 to 0."""
    envs: int = 1
    normalise: bool = False
    """Observations and rewards by VecNormalize."""
    noise: tuple[str, float] | None = None
    """Rollout noise, normal or ornstein-uhlenbeck, and its standard deviation."""
    seed: int = 0
    """The first with which it learns anything in these steps."""
    source: str = ""
    """Where the settings are from, if not from the Zoo's entry of this name."""


SDE = {"use_sde": True, "policy_kwargs": {"log_std_init": -2, "ortho_init": False}}
A2C_BOX = {
    "ent_coef": 0.0,
    "max_grad_norm": 0.5,
    "n_steps": 8,
    "gae_lambda": 0.9,
    "vf_coef": 0.4,
    "gamma": 0.99,
    "use_rms_prop": True,
    "normalize_advantage": False,
    **SDE,
}
DDPG_BOX = {
    "gamma": 0.98,
    "buffer_size": 200_000,
    "learning_starts": 10_000,
    "learning_rate": 1e-3,
    "policy_kwargs": {"net_arch": [400, 300]},
}
PAPERS_LAYERS = {"policy_kwargs": {"net_arch": [64, 64]}}
DDPG_SMALL = {**DDPG_BOX, **PAPERS_LAYERS, "learning_starts": 1_000, "gradient_steps": -1, "train_freq": [1, "episode"]}
"""The Zoo's 10,000 steps without learning would be half of the training."""
PPO_MUJOCO = {"n_steps": 512, "n_epochs": 20}
BULLET = "the Zoo's entry for PyBullet's version"
V3, V0 = "the Zoo's entry for v3", "the Zoo's entry for v0"
SMALL = "the Zoo's nearest entry, with the paper's layers"

RECIPES: dict[tuple[str, str], Recipe] = {
    ("a2c", "CartPole-v1"): Recipe(300_000, 500_000, 120, {"ent_coef": 0.0}, 8),
    ("ppo", "CartPole-v1"): Recipe(
        100_000,
        100_000,
        110,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
        8,
    ),
    ("dqn", "CartPole-v1"): Recipe(
        50_000,
        50_000,
        60,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    ("a2c", "MountainCarContinuous-v0"): Recipe(
        100_000,
        100_000,
        40,
        {
            "n_steps": 100,
            "ent_coef": 0.0,
            "use_sde": True,
            "sde_sample_freq": 16,
            "policy_kwargs": {"log_std_init": 0.0, "ortho_init": False},
        },
        4,
        True,
    ),
    ("ppo", "MountainCarContinuous-v0"): Recipe(
        20_000,
        20_000,
        90,
        {
            "batch_size": 256,
            "n_steps": 8,
            "gamma": 0.9999,
            "learning_rate": 7.77e-05,
            "ent_coef": 0.00429,
            "clip_range": 0.1,
            "n_epochs": 10,
            "gae_lambda": 0.9,
            "max_grad_norm": 5,
            "vf_coef": 0.19,
            "use_sde": True,
            "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
        },
        1,
        True,
    ),
    ("ddpg", "MountainCarContinuous-v0"): Recipe(
        20_000, 300_000, 150, PAPERS_LAYERS, noise=("ornstein-uhlenbeck", 0.5), seed=1, source=SMALL
    ),
    ("a2c", "Acrobot-v1"): Recipe(300_000, 500_000, 150, {"ent_coef": 0.0}, 16, True),
    ("ppo", "Acrobot-v1"): Recipe(
        300_000,
        1_000_000,
        150,
        {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
        16,
        True,
    ),
    ("dqn", "Acrobot-v1"): Recipe(
        100_000,
        150_000,
        120,
        {
            "learning_rate": 2.5e-4,
            "batch_size": 512,
            "buffer_size": 100_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 5_000,
            "train_freq": 16,
            "gradient_steps": 4,
            "exploration_fraction": 0.06,
            "exploration_final_eps": 0.11,
        },
    ),
    ("a2c", "Pendulum-v1"): Recipe(
        500_000, 1_000_000, 300, {**A2C_BOX, "learning_rate": "lin_7e-4"}, 8, True, source=V0
    ),
    ("ppo", "Pendulum-v1"): Recipe(
        100_000,
        100_000,
        90,
        {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        4,
    ),
    ("ddpg", "Pendulum-v1"): Recipe(
        8_000,
        20_000,
        60,
        DDPG_SMALL,
        noise=("normal", 0.1),
        source=SMALL,
    ),
    ("ddpg", "Reacher-v5"): Recipe(
        6_000,
        300_000,
        40,
        DDPG_SMALL,
        noise=("normal", 0.1),
        source=SMALL,
    ),
    ("a2c", "HalfCheetah-v5"): Recipe(
        300_000, 2_000_000, 300, {**A2C_BOX, "learning_rate": "lin_0.00096"}, 4, True, source=BULLET
    ),
    ("ppo", "HalfCheetah-v5"): Recipe(
        200_000,
        1_000_000,
        600,
        {
            **PPO_MUJOCO,
            "batch_size": 64,
            "gamma": 0.98,
            "learning_rate": 2.0633e-05,
            "ent_coef": 0.000401762,
            "clip_range": 0.1,
            "gae_lambda": 0.92,
            "max_grad_norm": 0.8,
            "vf_coef": 0.58096,
            "policy_kwargs": {
                "log_std_init": -2,
                "ortho_init": False,
                "activation_fn": "ReLU",
                "net_arch": {"pi": [256, 256], "vf": [256, 256]},
            },
        },
        1,
        True,
        source=V3,
    ),
    ("ddpg", "HalfCheetah-v5"): Recipe(
        30_000,
        1_000_000,
        400,
        {**DDPG_BOX, "gradient_steps": 1, "train_freq": 1},
        noise=("normal", 0.1),
        source=BULLET,
    ),
    ("a2c", "Walker2d-v5"): Recipe(
        300_000, 2_000_000, 300, {**A2C_BOX, "learning_rate": "lin_0.00096"}, 4, True, source=BULLET
    ),
    ("ppo", "Walker2d-v5"): Recipe(
        200_000,
        1_000_000,
        600,
        {
            **PPO_MUJOCO,
            "batch_size": 32,
            "gamma": 0.99,
            "learning_rate": 5.05041e-05,
            "ent_coef": 0.000585045,
            "clip_range": 0.1,
            "gae_lambda": 0.95,
            "max_grad_norm": 1,
            "vf_coef": 0.871923,
        },
        1,
        True,
        source=V3,
    ),
    ("ddpg", "Walker2d-v5"): Recipe(
        30_000,
        1_000_000,
        400,
        {**DDPG_BOX, "learning_rate": 7e-4, "batch_size": 256, "gradient_steps": 1, "train_freq": 1},
        noise=("normal", 0.1),
        source=BULLET,
    ),
}
MUJOCO = ("HalfCheetah-v5", "Walker2d-v5", "Reacher-v5")
CHOSEN: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 1.0)
CHOSEN_BY = 10
"""Shares of the training after which a model plays to be chosen, and for how many episodes."""


def missing_packages() -> str | None:
    """A sentence if Stable-Baselines3 is not installed."""
    if importlib.util.find_spec("stable_baselines3") is None:
        return "Stable-Baselines3 is needed to train the models; pip install 'shoal[sb3]'."
    return None


def can_play(env: str) -> bool:
    """Whether an environment's own library is there."""
    return env not in MUJOCO or all(map(importlib.util.find_spec, ("mujoco", "imageio")))


def left_out() -> list[str]:
    """A sentence if there are environments whose library is not there."""
    missing = [env for env in MUJOCO if not can_play(env)]
    names = ", ".join(missing)
    return [f"{names} are left out: mujoco is not installed (pip install 'shoal[control]')."] if missing else []


def digest_of(algorithm: str, env: str) -> str:
    """Changes with whatever decides how a recipe's model is trained."""
    decides = dataclasses.asdict(RECIPES[algorithm, env]) | {"seconds": 0, "steps": 0}
    del decides["seed"]  # which, as the steps, are told apart from it
    return sha256(json.dumps([decides, CHOSEN, CHOSEN_BY]).encode())[:10]


def trained_subject(
    algorithm: str, env: str, seed: int, steps: int, folder: Path, qat_bits: int | None = None
) -> ModelSubject:
    """The model of a recipe; trained if its zip is not in the folder, with quantization in mind if there are bits."""
    recipe = RECIPES[algorithm, env]
    digest = sha256(json.dumps([digest_of(algorithm, env), steps, seed, qat_bits]).encode())[:10]
    place = folder / "models"
    place.mkdir(parents=True, exist_ok=True)
    zipped = place / f"{algorithm}-{env}-{digest}.zip"
    statistics = zipped.with_suffix(".npz")
    if not zipped.exists() or (recipe.normalise and not statistics.exists()):
        _train(algorithm, env, recipe, seed, steps, zipped, qat_bits)
    normaliser = read_normaliser(statistics) if recipe.normalise else None
    return model_subject(read_zip(zipped, normaliser=normaliser), env)


def _train(algorithm: str, env: str, recipe: Recipe, seed: int, steps: int, zipped: Path, qat_bits: int | None) -> None:
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

        qat = QatCallback(qat_bits)

    with warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=zipped.parent) as best:

        def keep() -> None:
            if qat is not None:
                qat.keep()
            if isinstance(venv, VecNormalize):
                found: Any = venv.obs_rms
                values = {"mean": found.mean, "var": found.var, "epsilon": venv.epsilon, "clip": venv.clip_obs}
                np.savez(Path(best) / f"{zipped.stem}.npz", **values)
            model.save(Path(best) / zipped.name)

        warnings.simplefilter("ignore")  # of mini-batches that are larger than a rollout, as some tuned ones are
        model = getattr(stable_baselines3, algorithm.upper())("MlpPolicy", venv, device="cpu", seed=seed, **settings)
        played = _played(make_vec_env(env, 1, seed=seed + 1_000), venv)
        try:
            model.learn(steps, callback=[*filter(None, [qat]), best_callback(steps, played, keep)])
            for path in sorted(Path(best).iterdir()):  # the zip last: where it is, all is
                path.replace(zipped.with_name(path.name))
        except OSError as error:
            raise UserError(f"'{zipped}' cannot be written: {error.strerror or error}.") from None
        finally:
            venv.close()


def best_callback(steps: int, play: Callable[[Any], float], keep: Callable[[], None]) -> Any:
    """For `learn`: at the shares of `CHOSEN` the model plays, and is kept where it gets at least as much as before."""
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
    """Gives a model's mean return in an environment of its own, normalised as the one it is trained in."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    if isinstance(trained_in, VecNormalize):
        own = VecNormalize(own, training=False, norm_reward=False, clip_obs=trained_in.clip_obs)
        own.obs_rms = trained_in.obs_rms
    return lambda model: float(np.mean(evaluate_policy(model, own, CHOSEN_BY, warn=False)[0]))


def _setting(name: str, value: Any) -> Any:
    """A setting as the algorithms take it."""
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
