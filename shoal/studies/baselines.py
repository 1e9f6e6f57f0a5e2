"""Models of Stable-Baselines3 that studies train themselves, with settings that others have tuned.

The settings are those published by RL Baselines3 Zoo (github.com/DLR-RM/rl-baselines3-zoo, hyperparams/*.yml); what the
Zoo does not have for an environment is taken from its nearest relative, and said so. `steps` is ours: where the Zoo
trains longer than a study can, it is cut.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
PPO_MUJOCO = {"n_steps": 512, "n_epochs": 20}
BULLET = "the Zoo's entry for PyBullet's version"
V3, V0 = "the Zoo's entry for v3", "the Zoo's entry for v0"

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
    ("ddpg", "MountainCarContinuous-v0"): Recipe(50_000, 300_000, 500, noise=("ornstein-uhlenbeck", 0.5)),
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
        20_000,
        20_000,
        150,
        {**DDPG_BOX, "gradient_steps": -1, "train_freq": [1, "episode"]},
        noise=("normal", 0.1),
        source=V0,
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
        60_000,
        1_000_000,
        600,
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
        60_000,
        1_000_000,
        600,
        {**DDPG_BOX, "learning_rate": 7e-4, "batch_size": 256, "gradient_steps": 1, "train_freq": 1},
        noise=("normal", 0.1),
        source=BULLET,
    ),
}
MUJOCO = ("HalfCheetah-v5", "Walker2d-v5")


def missing_packages() -> str | None:
    """A sentence if Stable-Baselines3 is not installed."""
    if importlib.util.find_spec("stable_baselines3") is None:
        return "Stable-Baselines3 is needed to train the models; pip install 'shoal[sb3]'."
    return None


def has_mujoco() -> bool:
    """Whether HalfCheetah and Walker2d can be played."""
    return importlib.util.find_spec("mujoco") is not None and importlib.util.find_spec("imageio") is not None


def trained_subject(
    algorithm: str, env: str, seed: int, steps: int, folder: Path, qat_bits: int | None = None
) -> ModelSubject:
    """The model of a recipe; trained if its zip is not in the folder, with quantization in mind if there are bits."""
    recipe = RECIPES[algorithm, env]
    decides = [dataclasses.asdict(recipe) | {"seconds": 0, "steps": steps}, seed, qat_bits]
    digest = sha256(json.dumps(decides).encode())[:10]
    place = folder / "models"
    place.mkdir(parents=True, exist_ok=True)
    zipped = place / f"{algorithm}-{env}-{digest}.zip"
    statistics = zipped.with_suffix(".npz")
    if not zipped.exists() or (recipe.normalise and not statistics.exists()):
        _train(algorithm, env, recipe, seed, steps, zipped, qat_bits)
    normaliser = read_normaliser(statistics) if recipe.normalise else None
    return model_subject(read_zip(zipped, normaliser=normaliser), env)


def _train(algorithm: str, env: str, recipe: Recipe, seed: int, steps: int, zipped: Path, qat_bits: int | None) -> None:
    import numpy as np
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize

    venv: VecEnv = make_vec_env(env, recipe.envs, seed=seed)
    if recipe.normalise:
        venv = VecNormalize(venv, gamma=recipe.settings.get("gamma", 0.99))
    settings = {name: _setting(name, value) for name, value in recipe.settings.items()}
    if recipe.noise is not None:
        settings["action_noise"] = _noise(*recipe.noise, venv.action_space.shape)
    callback = None
    if qat_bits is not None:
        from shoal.quantization.callback import QatCallback

        callback = QatCallback(qat_bits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of mini-batches that are larger than a rollout, as some tuned ones are
        model = getattr(stable_baselines3, algorithm.upper())("MlpPolicy", venv, device="cpu", seed=seed, **settings)
        model.learn(steps, callback=callback)
    if isinstance(venv, VecNormalize):
        found: Any = venv.obs_rms
        values = {"mean": found.mean, "var": found.var, "epsilon": venv.epsilon, "clip": venv.clip_obs}
        _whole(zipped.with_suffix(".npz"), lambda path: np.savez(path, **values))
    _whole(zipped, model.save)
    venv.close()


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
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

    kinds: dict[str, Any] = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}
    return kinds[kind](np.zeros(shape or ()), np.full(shape or (), deviation))


def _whole(path: Path, write: Callable[[Path], object]) -> None:
    """Written under another name first, so that a file that is there is whole."""
    temporary = path.with_name(f"{os.getpid()}-{path.name}")
    try:
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"'{path}' cannot be written: {error.strerror or error}.") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
