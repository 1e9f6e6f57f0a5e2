"""`shoal bench env`: Shoal's worlds compared with those of the mpe2 package, in steps per second.

One step is one step of all agents of one copy. Both sides play random choices drawn in advance, for
whole episodes with their resets, and take turns.
"""

from collections.abc import Callable
from typing import Annotated, TypedDict, cast

import numpy as np

from shoal.bench.timing import interleaved
from shoal.envs import make_env
from shoal.envs.base import VectorEnv
from shoal.envs.particle import ParticleWorld
from shoal.errors import UserError, install
from shoal.results import Column

EPISODE = 25


class Row(TypedDict):
    """One world with one number of agents."""

    world: str
    agents: int
    shoal_steps_per_second: Annotated[float, Column("shoal", "steps/s")]
    mpe2_steps_per_second: Annotated[float, Column("mpe2", "steps/s")]
    ratio: float
    copies: int
    threads: int


def run(agents: tuple[int, ...] = (3, 48), seconds: float = 2.0) -> list[Row]:
    """One row per task and number of agents; each takes about `seconds`, or three episodes of mpe2."""
    rows: list[Row] = []
    for world in ("cooperative-navigation", "predator-prey"):
        for n in agents:
            ours, theirs = _our_world(world, n), _their_episode(world, n)
            our_time, their_time = interleaved([_our_episode(ours), theirs], seconds, least=3)
            our_rate, their_rate = EPISODE * ours.copies / our_time, EPISODE / their_time
            rows.append(
                {
                    "world": world,
                    "agents": n,
                    "shoal_steps_per_second": our_rate,
                    "mpe2_steps_per_second": their_rate,
                    "ratio": our_rate / their_rate,
                    "copies": ours.copies,
                    "threads": ours.threads,
                }
            )
    return rows


def _our_world(world: str, agents: int) -> ParticleWorld:
    """Enough copies that a step occupies all threads, but observations take only a few megabytes."""
    copies = max(64, 73_728 // agents**2)  # 8192 for 3 agents
    prey = "learned" if world == "predator-prey" else "scripted"
    return cast(ParticleWorld, make_env(world, agents, copies, prey=prey, episode_length=EPISODE))


def _our_episode(env: VectorEnv) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    choices = rng.integers(5, size=(EPISODE, env.copies, env.spec.agents))
    actions = np.eye(5, dtype=np.float32)[choices]  # (T, E, N, 5)

    def episode() -> None:
        for action in actions:
            env.step(action)

    return episode


def _their_episode(world: str, agents: int) -> Callable[[], None]:
    try:
        from mpe2 import simple_spread_v3, simple_tag_v3
    except ImportError:
        raise UserError(f"bench env compares with mpe2, which is not installed; {install('pettingzoo')}.") from None

    if world == "predator-prey":
        prey, obstacles = max(1, agents // 3), max(2, agents // 3)
        env = simple_tag_v3.parallel_env(
            num_good=prey, num_adversaries=agents, num_obstacles=obstacles, max_cycles=EPISODE
        )
    else:
        env = simple_spread_v3.parallel_env(N=agents, max_cycles=EPISODE)
    rng = np.random.default_rng(0)
    names = env.possible_agents
    actions = [
        dict(zip(names, choices, strict=True)) for choices in rng.integers(5, size=(EPISODE, len(names))).tolist()
    ]

    env.reset(seed=0)

    def episode() -> None:
        env.reset()
        for action in actions:
            env.step(action)

    return episode
