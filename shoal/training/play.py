"""Play whole episodes without learning; imports no torch, so that exported policies can be evaluated."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.envs import make_env, planned_env
from shoal.envs.base import EnvSpec, VectorEnv, random_actions
from shoal.errors import UserError
from shoal.seeding import stream
from shoal.training.config import TrainConfig
from shoal.training.returns import Columns, Episode, Estimate, ReturnTracker

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
    return {
        "name": config.env,
        "agents": config.agents,
        "copies": copies,
        "rules": config.rules,
        "seed": seed,
        "episode_length": episode_length or config.episode_length,
        "stagger": stagger,
        "landmarks": config.landmarks,
        "prey": config.prey,
        "prey_count": config.prey_count,
        "obstacles": config.obstacles,
        "prey_scale": config.prey_scale,
        "options": config.world_options or None,
        "workers": config.env_workers or 1,
    }


@contextmanager
def _names_of_config() -> Iterator[None]:
    """Let errors call the arguments of `make_env` what they are called in `TrainConfig`."""
    try:
        yield
    except UserError as error:
        raise UserError(re.sub("`(options|workers)`", r"`env_\1`", str(error))) from None


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
    agents, groups, figures = (
        {name: Estimate.of(values) for name, values in columns.items()} for columns in Columns.of(spec, played)
    )
    return Evaluation(
        len(played),
        *Estimate.of(np.array([episode.team for episode in played])),
        prey_mean=float(np.mean(prey)) if prey else None,
        agents=agents,
        groups=groups,
        figures=figures,
    )


def random_act(spec: EnvSpec, seed: int) -> Act:
    """A team that acts uniformly at random: one-hot choices, or points of the box."""
    rng = stream(seed, "random team")
    return lambda observation: random_actions(spec, len(observation), rng)
