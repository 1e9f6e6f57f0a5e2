"""Playing without learning: what a trained team and a random team get."""

from collections.abc import Callable
from pathlib import Path

import torch

from shoal.algorithms import make_team
from shoal.algorithms.team import Team
from shoal.errors import UserError, check_range
from shoal.training.checkpoint import load_part
from shoal.training.config import TrainConfig, read_config
from shoal.training.parts import Learner
from shoal.training.play import Act, Evaluation, build_env, options_named, play, random_act
from shoal.training.precision import train_quantized

__all__ = [
    "Act",
    "Evaluation",
    "PLAYERS",
    "build_env",
    "evaluate_team",
    "load_team",
    "options_named",
    "play",
    "random_act",
    "team_act",
]

PLAYERS = ("deterministic", "noisy", "random")
"""Who plays in an evaluation: the trained team with its most likely actions, with training noise, a random team."""


def team_act(team: Learner, explore: bool) -> Act:
    """The team's policies, noisy as in training or the most likely actions."""
    return lambda observation: team.to_world(team.act(observation, explore))


def evaluate_team(
    team: Learner, config: TrainConfig, episodes: int, seed: int, advance: Callable[[int], None] | None = None
) -> dict[str, Evaluation]:
    """Deterministic, noisy and random play in the same number of episodes; each from the same starts.

    `advance` is told of every episode played.
    """
    check_range("--episodes", episodes, 1, 10**7)
    results = {}
    for name in PLAYERS:
        env = build_env(config, min(episodes, 100), seed, stagger=False)
        act = random_act(env.spec, seed) if name == "random" else team_act(team, explore=name == "noisy")
        results[name] = play(env, act, episodes, advance)
        env.close()
    return results


def load_team(folder: Path, warn: Callable[[str], None]) -> tuple[Team, TrainConfig]:
    """The trained team of a run folder, from its newest whole checkpoint; `warn` hears of damaged ones."""
    config = read_config(folder)
    checkpoint = load_part(folder / "checkpoints", "weights", warn)
    if checkpoint is None:
        raise UserError(f"'{folder}' has no checkpoint yet: train it first, or resume it.")
    env = build_env(config, 1, config.seed, stagger=False)
    team = make_team(env.spec, config, config.seed, torch.device("cpu"))
    env.close()
    train_quantized(team, config)  # its ranges are among the weights
    team.load_weights({name: torch.from_numpy(array) for name, array in checkpoint.items()})
    return team, config
