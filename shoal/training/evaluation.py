"""Evaluation: whole episodes are played without learning. No torch is imported, so exported policies need none."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.envs import WORLDS, make_env, planned_env
from shoal.envs.base import EnvSpec, VectorEnv, random_actions
from shoal.errors import UserError, check_range
from shoal.seeding import stream
from shoal.training.config import TrainConfig
from shoal.training.returns import Episode, Estimate, ReturnTracker, columns

if TYPE_CHECKING:
    from shoal.algorithms.base import BaseTeam

PLAYERS = ("deterministic", "noisy", "random")
"""Who acts in an evaluation: the trained team with its most likely actions or with exploration noise, a random team."""
Act = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Maps observations (E, N, O) to actions (E, N, A) in the world's units."""


@dataclass(frozen=True)
class Evaluation:
    """Returns per agent of a number of whole episodes."""

    episodes: int
    mean: float
    ci95: float
    """Half-width of the 95 % confidence interval of the mean."""
    prey_mean: float | None = None
    agents: dict[str, Estimate] = field(default_factory=dict, repr=False)
    """Return of each agent, by name."""
    groups: dict[str, Estimate] = field(default_factory=dict)
    """Return per agent of each group, by name."""
    figures: dict[str, Estimate] = field(default_factory=dict)
    """What the world reports of an episode beside rewards, by name."""

    def share(self, start: "Evaluation", goal: "Evaluation") -> float | None:
        """The share of the way from the mean of `start` to that of `goal`; None where that is not clearly higher."""
        way = goal.mean - start.mean
        return (self.mean - start.mean) / way if way > goal.ci95 + start.ci95 else None


def build_env(
    config: TrainConfig, copies: int, seed: int, stagger: bool, episode_length: int | None = None
) -> VectorEnv:
    """Make the configured world, with no more workers than copies."""
    world = _world(config, copies, seed, stagger, episode_length)
    with _names_of_config():
        planned_env(**world)  # refuses workers of a world that has none, however few copies there are
        return make_env(**world | {"workers": min(world["workers"], copies)})


def check_env(config: TrainConfig) -> None:
    """Refuse an unknown world, or one that does not have these settings, without importing or building it."""
    with _names_of_config():
        planned_env(**_world(config, config.copies, config.seed, config.stagger))


def _world(
    config: TrainConfig, copies: int, seed: int, stagger: bool, episode_length: int | None = None
) -> dict[str, Any]:
    """The arguments of `make_env`."""
    same = ("agents", "rules", "landmarks", "prey", "prey_count", "obstacles", "prey_scale", "entities")
    return {
        **{name: getattr(config, name) for name in same},
        "name": config.env,
        "copies": copies,
        "seed": seed,
        "episode_length": episode_length or config.episode_length,
        "stagger": stagger,
        "options": config.world_options or None,
        "masks": config.env_masks,
        "workers": config.env_workers or 1,
    }


@contextmanager
def _names_of_config() -> Iterator[None]:
    """Let errors call the arguments of `make_env` what they are called in `TrainConfig`."""
    try:
        yield
    except UserError as error:
        error.args = (re.sub("`(options|masks|workers)`", r"`env_\1`", str(error)),)
        raise


def play(env: VectorEnv, act: Act, episodes: int, advance: Callable[[int], None] | None = None) -> Evaluation:
    """Play whole episodes, the same number in every copy so that short ones are not overrepresented.

    `advance` is called after every step, with the number of episodes that it finished.
    """
    observation = env.reset()
    tracker = ReturnTracker(env.spec, env.episode_step == 0)
    wanted = np.full(env.copies, episodes // env.copies)
    wanted[: episodes % env.copies] += 1
    played: list[Episode] = []
    while wanted.any():
        open_copies = wanted > 0
        step = env.step(act(observation))
        finished = np.flatnonzero(step.ended & tracker.counts)
        before = len(played)
        for copy, episode in zip(finished, tracker.add(step), strict=True):
            if open_copies[copy]:
                wanted[copy] -= 1
                played.append(episode)
        if advance is not None:
            advance(len(played) - before)
        observation = step.observation
    return evaluation(env.spec, played)


def evaluation(spec: EnvSpec, played: list[Episode]) -> Evaluation:
    """Means over the episodes that were played."""
    prey = [episode.prey for episode in played if episode.prey is not None]
    named = {
        field: {name: Estimate.of(values) for name, values in by_name.items()}
        for field, by_name in columns(spec, played).items()
    }
    mean, ci95 = Estimate.of(np.array([episode.team for episode in played]))
    prey_mean = float(np.mean(prey)) if prey else None
    return Evaluation(len(played), mean, ci95, prey_mean, named["agents"], named["groups"], named["figures"])


def random_act(spec: EnvSpec, seed: int) -> Act:
    """A team that acts uniformly at random: one-hot choices, or points of the box."""
    rng = stream(seed, "random team")
    return lambda observation: random_actions(spec, len(observation), rng, observation)


def team_act(team: "BaseTeam", explore: bool) -> Act:
    """The team's policy, with exploration noise or with its most likely actions."""
    return lambda observation: team.to_world(team.act(observation, explore))


def evaluate_controllers(config: TrainConfig, episodes: int, seed: int) -> dict[str, Evaluation]:
    """The world's hand-written controllers by name, from the same initial states; most worlds have none."""
    if config.env not in WORLDS:
        return {}
    from shoal.envs.controllers import Controller, controllers
    from shoal.envs.particle import ParticleWorld

    def played(controller: Controller) -> Evaluation:
        world = cast(ParticleWorld, build_env(config, min(episodes, 100), seed, stagger=False))
        return play(world, lambda observation: controller(world), episodes)

    one = cast(ParticleWorld, build_env(config, 1, seed, stagger=False))
    return {name: played(controller) for name, controller in controllers(one).items()}


def evaluate_team(
    team: "BaseTeam", config: TrainConfig, episodes: int, seed: int, advance: Callable[[int], None] | None = None
) -> dict[str, Evaluation]:
    """Deterministic, noisy and random play in the same number of episodes, and the world's controllers.

    All from the same initial states. `advance` is called with the number of finished episodes, except controllers'.
    """
    check_range("episodes", episodes, 1, 10**7)
    results = {}
    for name in PLAYERS:
        env = build_env(config, min(episodes, 100), seed, stagger=False)
        act = random_act(env.spec, seed) if name == "random" else team_act(team, explore=name == "noisy")
        with closing(env):
            results[name] = play(env, act, episodes, advance)
    return results | evaluate_controllers(config, episodes, seed)
