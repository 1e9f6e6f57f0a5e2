"""JaxMARL's particle worlds for `shoal bench env`, as fast as we can make them on a CPU.

A whole episode is one compiled call: jit over vmap over scan, in float32, with one reset per episode instead of a reset
in every step that is mostly thrown away. Observations are in the scan's carry, so that no step leaves them out. Each of
several threads plays its own copies, because XLA itself would keep one processor busy; a thread has the number of
copies at which it is fastest, mostly a few, whose state stays in the cache.
"""

import importlib
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

MOST_COPIES = 64  # per thread; beyond it the state leaves the cache
TURN = 0.05  # seconds of a turn, about: long enough for caches to be warm


class Episodes(NamedTuple):
    """Whole episodes of a peer's world."""

    play: Callable[[], object]
    copies: int
    episodes: int  # that one call plays in each copy


def jaxmarl_episodes(world: str, agents: int, length: int, threads: int) -> Episodes | None:
    """Episodes of the same world with random choices; None where JaxMARL is not installed."""
    try:
        jax, jaxmarl = (importlib.import_module(name) for name in ("jax", "jaxmarl"))
    except ImportError:
        return None

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # each thread computes what it asks for
    if world == "predator-prey":
        counts = {"num_good_agents": max(1, agents // 3), "num_adversaries": agents, "num_obs": max(2, agents // 3)}
        env = jaxmarl.make("MPE_simple_tag_v3", **counts)
    else:
        env = jaxmarl.make("MPE_simple_spread_v3", num_agents=agents, num_landmarks=agents)
    play, copies, seconds = fastest(lambda copies: compiled(jax, env, copies, length))
    episodes, pool = max(1, round(TURN / seconds)), ThreadPoolExecutor(threads)

    def play_some(_: int) -> None:
        for _ in range(episodes):
            play()

    return Episodes(lambda: list(pool.map(play_some, range(threads))), copies * threads, episodes)


def fastest(make: Callable[[int], Callable[[], None]]) -> tuple[Callable[[], None], int, float]:
    """The call with the most copies per second, its copies and its seconds; more are tried while that helps."""
    play = make(1)
    best, copies = (play, 1, seconds_of(play)), 4
    while copies <= MOST_COPIES:
        play = make(copies)
        taken = seconds_of(play)
        if copies / taken < best[1] / best[2]:
            break
        best, copies = (play, copies, taken), 4 * copies
    return best


def compiled(jax: Any, env: Any, copies: int, length: int) -> Callable[[], None]:
    """One episode in every copy, compiled."""

    def episode(key: Any, choices: Any) -> Any:  # choices (T, N)
        observation, state = env.reset(key)

        def step(carry: Any, choice: Any) -> Any:
            key, state, _, total = carry
            key, now = jax.random.split(key)
            actions = {name: choice[i] for i, name in enumerate(env.agents)}
            observation, state, reward, _, _ = env.step_env(now, state, actions)
            return (key, state, observation, jax.tree.map(jax.numpy.add, total, reward)), None

        nothing = dict.fromkeys(env.agents, jax.numpy.float32(0))
        (_, _, observation, total), _ = jax.lax.scan(step, (key, state, observation, nothing), choices)
        return observation, total

    played = jax.jit(jax.vmap(episode))
    keys = jax.random.split(jax.random.key(0), copies)
    choices = jax.numpy.asarray(np.random.default_rng(0).integers(5, size=(copies, length, len(env.agents))))

    def play() -> None:
        jax.block_until_ready(played(keys, choices))

    return play


def seconds_of(play: Callable[[], None]) -> float:
    """The shortest of some calls; the first compiles and does not count."""
    play()
    return min(timeit.repeat(play, number=1, repeat=20))
