"""Evaluation of a trained team and a random team."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch

from shoal.algorithms import make_team
from shoal.algorithms.team import Team
from shoal.errors import check_range
from shoal.native.engine import why_unusable
from shoal.training.checkpoint import newest
from shoal.training.config import TrainConfig, read_config
from shoal.training.parts import LearningTeam
from shoal.training.play import Act, Evaluation, build_env, options_named, play, random_act
from shoal.training.precision import make_precision
from shoal.training.run_folder import CHECKPOINTS
from shoal.training.stored import check_settings, check_world, damage, no_checkpoint
from shoal.training.weights_file import chosen_weights

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
"""Who acts in an evaluation: the trained team with its most likely actions or with exploration noise, a random team."""


def team_act(team: LearningTeam, explore: bool) -> Act:
    """The team's policy, with exploration noise or with its most likely actions."""
    return lambda observation: team.to_world(team.act(observation, explore))


def evaluate_team(
    team: LearningTeam, config: TrainConfig, episodes: int, seed: int, advance: Callable[[int], None] | None = None
) -> dict[str, Evaluation]:
    """Deterministic, noisy and random play in the same number of episodes, from the same initial states.

    `advance` is called with the number of finished episodes.
    """
    check_range("--episodes", episodes, 1, 10**7)
    results = {}
    for name in PLAYERS:
        env = build_env(config, min(episodes, 100), seed, stagger=False)
        act = random_act(env.spec, seed) if name == "random" else team_act(team, explore=name == "noisy")
        with closing(env):
            results[name] = play(env, act, episodes, advance)
    return results


def load_team(
    folder: Path, warn: Callable[[str], None], trust: bool = False, named: str = "", checkpoint: str = "last"
) -> tuple[Team, TrainConfig]:
    """Load the trained team of a run folder from its newest intact checkpoint; `warn` is called for damaged files.

    `trust` allows running third-party code that the folder names as its environment; `named` is what the user named.
    `checkpoint` may also be `best` or the episode of a snapshot.
    """
    config = read_config(folder)
    if checkpoint == "last":
        found = newest(folder / CHECKPOINTS, ("weights",), warn)
    else:
        found = chosen_weights(folder, checkpoint)
    if found is None:
        raise no_checkpoint(folder)
    check_settings(config, folder, found)
    check_world(config, folder, {"env": named}, trust)
    for sentence in damage(folder, found) if checkpoint == "last" else ():
        warn(sentence)
    env = build_env(config, 1, config.seed, stagger=False)
    team = make_team(env.spec, config, config.seed, torch.device("cpu"))
    env.close()
    team.progress(found.meta["samples"])
    make_precision(team, config)  # its state is stored with the weights
    team.load_weights({name: torch.from_numpy(array) for name, array in found.parts["weights"].items()})
    if config.update == "native" and why_unusable() is None:
        team.learn_natively(config.seed, threads=1)  # acts as it did in training
    return team, config
