"""Evaluation of a trained team and a random team."""

from collections.abc import Callable
from contextlib import closing

from shoal.errors import check_range
from shoal.training.config import TrainConfig
from shoal.training.parts import LearningTeam
from shoal.training.play import Act, Evaluation, build_env, play, random_act

__all__ = [
    "Act",
    "Evaluation",
    "PLAYERS",
    "build_env",
    "evaluate_team",
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
