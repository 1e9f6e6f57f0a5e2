"""`shoal bench env`: Shoal's worlds compared with mpe2's and, where it is installed, JaxMARL's, in steps per second.

Entities by distance are compared with entities by index, with as many copies as a training has.
One step is one step of all agents of one copy. Both sides play random choices drawn in advance, for
whole episodes with their resets, and take turns.
"""

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np

from shoal.bench import Record
from shoal.bench.jaxmarl_world import Episodes, jaxmarl_episodes
from shoal.bench.timing import interleaved
from shoal.envs import make_env
from shoal.envs.base import VectorEnv
from shoal.envs.particle import ParticleWorld
from shoal.errors import UserError, install
from shoal.results import Column

EPISODE = COPIES = 25
GOALS = {("mpe2", 3): 800.0, ("mpe2", 48): 1500.0}
JAXMARL_GOAL = 12.0
BY_DISTANCE_GOALS = {3: 1 / 1.15, 12: 1 / 1.6, 48: 1 / 3}
COLUMNS = {"shoal_steps_per_second": Column("shoal", "steps/s"), "peer_steps_per_second": Column("peer", "steps/s")}
PARTS = (3, 12, 48)


def run(agents: int, seconds: float = 2.0) -> list[Record]:
    """One record per world and peer; each takes about `seconds`, or three episodes of mpe2."""
    rows: list[Record] = []
    for world in ("cooperative-navigation", "predator-prey"):
        many = _our_world(world, agents)
        by_index, by_distance = (_our_world(world, agents, entities, COPIES) for entities in ("index", "distance"))
        pairs = [
            ("mpe2", many, Episodes(_their_episode(world, agents), 1, 1), GOALS.get(("mpe2", agents))),
            ("JaxMARL", many, jaxmarl_episodes(world, agents, EPISODE, numba.get_num_threads()), JAXMARL_GOAL),
            ("Shoal by index", by_distance, Episodes(_our_episode(by_index), COPIES, 1), BY_DISTANCE_GOALS.get(agents)),
        ]
        for name, ours, peer, goal in pairs:
            if peer is None:
                continue
            our_time, their_time = interleaved([_our_episode(ours), peer.play], seconds, least=3)
            our_rate = EPISODE * ours.copies / our_time
            their_rate = EPISODE * peer.copies * peer.episodes / their_time
            row = {
                "world": world,
                "agents": agents,
                "peer": name,
                "shoal_steps_per_second": our_rate,
                "peer_steps_per_second": their_rate,
                "ratio": our_rate / their_rate,
                "goal": goal,
                "copies": ours.copies,
                "threads": ours.threads,
                "peer_copies": peer.copies,
            }
            rows.append(row)
    return rows


def _our_world(world: str, agents: int, entities: str = "index", copies: int | None = None) -> ParticleWorld:
    """Enough copies that waking threads for a step takes little of it, but observations only a few megabytes.

    They start together, as the peers' do.
    """
    copies = copies or min(32_768, max(128, 294_912 // agents**2))
    prey = "learned" if world == "predator-prey" else "scripted"
    settings: dict[str, Any] = {"prey": prey, "entities": entities, "episode_length": EPISODE, "stagger": False}
    return cast(ParticleWorld, make_env(world, agents, copies, **settings))


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
        counts = {"num_good": max(1, agents // 3), "num_adversaries": agents, "num_obstacles": max(2, agents // 3)}
        env = simple_tag_v3.parallel_env(**counts, max_cycles=EPISODE)
    else:
        env = simple_spread_v3.parallel_env(N=agents, max_cycles=EPISODE)
    choices = np.random.default_rng(0).integers(5, size=(EPISODE, len(env.possible_agents))).tolist()
    actions = [dict(zip(env.possible_agents, row, strict=True)) for row in choices]
    env.reset(seed=0)

    def episode() -> None:
        env.reset()
        for action in actions:
            env.step(action)

    return episode
