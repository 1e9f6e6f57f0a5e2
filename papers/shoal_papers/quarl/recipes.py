"""The settings with which studies train Stable-Baselines3 models: published tuned hyperparameters.

They come from RL Baselines3 Zoo (github.com/DLR-RM/rl-baselines3-zoo, hyperparams/*.yml); where the Zoo has no entry
for an environment, that of the most similar one is used, and `source` says so. `steps` is our choice: shorter where the
Zoo trains longer than a study can.
"""

import importlib.util
import json
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import install
from shoal.runs.disk import sha256


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    steps: int
    zoo_steps: int
    """Training steps in the Zoo."""
    seconds: float
    """Approximate seconds of our steps on one core."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of the algorithm; 'lin_0.001' decreases linearly from 0.001 to 0."""
    envs: int = 1
    normalise: bool = False
    """Normalise observations and rewards with VecNormalize."""
    noise: tuple[str, float] | None = None
    """Action noise, normal or ornstein-uhlenbeck, and its standard deviation."""
    seed: int = 0
    """The first seed with which it learns anything in these steps."""
    source: str = ""
    """Source of the settings, if not the Zoo's entry of this name."""


SDE = {"use_sde": True, "policy_kwargs": {"log_std_init": -2, "ortho_init": False}}
A2C_BOX = {
    "ent_coef": 0.0, "max_grad_norm": 0.5, "n_steps": 8, "gae_lambda": 0.9, "vf_coef": 0.4, "gamma": 0.99,
    "use_rms_prop": True, "normalize_advantage": False, **SDE,
}  # fmt: skip
DDPG_BOX = {
    "gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000, "learning_rate": 1e-3,
    "policy_kwargs": {"net_arch": [400, 300]},
}  # fmt: skip
PAPERS_LAYERS = {"policy_kwargs": {"net_arch": [64, 64]}}
DDPG_SMALL = {
    **DDPG_BOX, **PAPERS_LAYERS, "learning_starts": 1_000, "gradient_steps": -1, "train_freq": [1, "episode"],
}  # fmt: skip
"""The Zoo's 10,000 steps without learning would be half of the training."""
PPO_MUJOCO = {"n_steps": 512, "n_epochs": 20}
BULLET = "the Zoo's entry for PyBullet's version"
V3, V0 = "the Zoo's entry for v3", "the Zoo's entry for v0"
SMALL = "the Zoo's nearest entry, with the paper's layers"
A2C_MUJOCO = Recipe(300_000, 2_000_000, 300, {**A2C_BOX, "learning_rate": "lin_0.00096"}, 4, True, source=BULLET)
EVERY_STEP = {"gradient_steps": 1, "train_freq": 1}
NORMAL = ("normal", 0.1)
# fmt: off
RECIPES: dict[tuple[str, str], Recipe] = {
    ("a2c", "CartPole-v1"): Recipe(300_000, 500_000, 120, {"ent_coef": 0.0}, 8),
    ("ppo", "CartPole-v1"): Recipe(
        100_000, 100_000, 110, {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
        "ent_coef": 0.0, "learning_rate": "lin_0.001", "clip_range": "lin_0.2"}, 8,
    ),
    ("dqn", "CartPole-v1"): Recipe(
        50_000, 50_000, 60, {"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000,
        "learning_starts": 1_000, "gamma": 0.99, "target_update_interval": 10, "train_freq": 256,
        "gradient_steps": 128, "exploration_fraction": 0.16, "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256, 256]}},
    ),
    ("a2c", "MountainCarContinuous-v0"): Recipe(
        100_000, 100_000, 40, {"n_steps": 100, "ent_coef": 0.0, "use_sde": True, "sde_sample_freq": 16,
        "policy_kwargs": {"log_std_init": 0.0, "ortho_init": False}}, 4, True,
    ),
    ("ppo", "MountainCarContinuous-v0"): Recipe(
        20_000, 20_000, 90, {"batch_size": 256, "n_steps": 8, "gamma": 0.9999, "learning_rate": 7.77e-05,
        "ent_coef": 0.00429, "clip_range": 0.1, "n_epochs": 10, "gae_lambda": 0.9, "max_grad_norm": 5, "vf_coef": 0.19,
        "use_sde": True, "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False}}, 1, True,
    ),
    ("ddpg", "MountainCarContinuous-v0"): Recipe(
        20_000, 300_000, 150, PAPERS_LAYERS, noise=("ornstein-uhlenbeck", 0.5), seed=1, source=SMALL,
    ),
    ("a2c", "Acrobot-v1"): Recipe(300_000, 500_000, 150, {"ent_coef": 0.0}, 16, True),
    ("ppo", "Acrobot-v1"): Recipe(
        300_000, 1_000_000, 150, {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
        16, True,
    ),
    ("dqn", "Acrobot-v1"): Recipe(
        100_000, 150_000, 120, {"learning_rate": 2.5e-4, "batch_size": 512, "buffer_size": 100_000,
        "learning_starts": 0, "gamma": 0.99, "target_update_interval": 5_000, "train_freq": 16, "gradient_steps": 4,
        "exploration_fraction": 0.06, "exploration_final_eps": 0.11},
    ),
    ("a2c", "Pendulum-v1"): Recipe(
        500_000, 1_000_000, 300, {**A2C_BOX, "learning_rate": "lin_7e-4"}, 8, True, source=V0,
    ),
    ("ppo", "Pendulum-v1"): Recipe(
        100_000, 100_000, 90, {"n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0,
        "learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4}, 4,
    ),
    ("ddpg", "Pendulum-v1"): Recipe(8_000, 20_000, 60, DDPG_SMALL, noise=NORMAL, source=SMALL),
    ("ddpg", "Reacher-v5"): Recipe(6_000, 300_000, 40, DDPG_SMALL, noise=NORMAL, source=SMALL),
    ("a2c", "HalfCheetah-v5"): A2C_MUJOCO,
    ("ppo", "HalfCheetah-v5"): Recipe(
        200_000, 1_000_000, 600, {**PPO_MUJOCO, "batch_size": 64, "gamma": 0.98, "learning_rate": 2.0633e-05,
        "ent_coef": 0.000401762, "clip_range": 0.1, "gae_lambda": 0.92, "max_grad_norm": 0.8, "vf_coef": 0.58096,
        "policy_kwargs": {"log_std_init": -2, "ortho_init": False, "activation_fn": "ReLU",
        "net_arch": {"pi": [256, 256], "vf": [256, 256]}}}, 1, True, source=V3,
    ),
    ("ddpg", "HalfCheetah-v5"): Recipe(30_000, 1_000_000, 400, {**DDPG_BOX, **EVERY_STEP}, noise=NORMAL, source=BULLET),
    ("a2c", "Walker2d-v5"): A2C_MUJOCO,
    ("ppo", "Walker2d-v5"): Recipe(
        200_000, 1_000_000, 600, {**PPO_MUJOCO, "batch_size": 32, "gamma": 0.99, "learning_rate": 5.05041e-05,
        "ent_coef": 0.000585045, "clip_range": 0.1, "gae_lambda": 0.95, "max_grad_norm": 1, "vf_coef": 0.871923}, 1,
        True, source=V3,
    ),
    ("ddpg", "Walker2d-v5"): Recipe(
        30_000, 1_000_000, 400, {**DDPG_BOX, "learning_rate": 7e-4, "batch_size": 256, **EVERY_STEP}, noise=NORMAL,
        source=BULLET,
    ),
    ("a2c", "BipedalWalker-v3"): Recipe(500_000, 5_000_000, 400, {**A2C_BOX, "learning_rate": "lin_0.00096"}, 16, True),
    ("ppo", "BipedalWalker-v3"): Recipe(
        500_000, 5_000_000, 500, {"n_steps": 2048, "batch_size": 64, "gae_lambda": 0.95, "gamma": 0.999,
        "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 3e-4, "clip_range": 0.18}, 8, True,
        source="the Zoo's entry with 8 environments instead of 32",
    ),
    ("ddpg", "BipedalWalker-v3"): Recipe(
        40_000, 1_000_000, 550, {**DDPG_BOX, "gradient_steps": -1, "train_freq": [1, "episode"]}, noise=NORMAL,
    ),
}
# fmt: on
MUJOCO, BOX2D = ("HalfCheetah-v5", "Walker2d-v5", "Reacher-v5"), ("BipedalWalker-v3",)
LIBRARIES = {"control": (MUJOCO, "mujoco", ("mujoco", "imageio")), "box2d": (BOX2D, "box2d", ("Box2D",))}
"""By extra: the environments that need it, its library, and the modules that they import."""
CHOSEN: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 1.0)  # shares of the training after which a model is evaluated
CHOSEN_BY = 10  # episodes of each of these evaluations, by which one is selected


def can_play(env: str) -> bool:
    """Whether an environment's library is installed."""
    needed = [module for envs, _, modules in LIBRARIES.values() if env in envs for module in modules]
    return all(map(importlib.util.find_spec, needed))


def left_out() -> list[str]:
    """A message for each library that is not installed and has environments."""
    said = []
    for extra, (envs, library, _) in LIBRARIES.items():
        if missing := [env for env in envs if not can_play(env)]:
            are = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
            said.append(f"{are} left out: {library} is not installed; {install(extra)}.")
    return said


def digest_of(algorithm: str, env: str) -> str:
    """A digest of everything that determines a recipe's training but its steps and seed."""
    recipe = RECIPES[algorithm, env]
    decides = recipe.settings, recipe.envs, recipe.normalise, recipe.noise
    return sha256(json.dumps([decides, CHOSEN, CHOSEN_BY]).encode())[:10]
