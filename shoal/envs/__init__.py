"""Multi-agent worlds by name."""

import difflib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.envs.base import VectorEnv
from shoal.errors import UserError, check_choice, check_range, counted, names_checked, whole_number
from shoal.trust import check_importable, env_name

WORLDS = ("cooperative-navigation", "predator-prey")
RULES = ("mpe2", "openai")
ADAPTERS = ("pettingzoo:", "gym:", "dm:")
PREY = ("scripted", "facmac", "learned", "random")
MOST = 1024  # agents, and everything else that a copy has many of
MOST_COPIES = 2**20
MOST_STEPS = 2**40  # of an episode: times the copies it is still a 64-bit number

__all__ = ["make_env"]


@names_checked
def make_env(
    name: str | Callable[..., Any],
    agents: int | None = None,
    copies: int = 1,
    rules: str = "mpe2",
    seed: int = 0,
    episode_length: int | None = None,
    stagger: bool = True,
    landmarks: int | None = None,
    prey: str = "scripted",
    prey_count: int | None = None,
    obstacles: int | None = None,
    prey_scale: float | None = None,
    options: dict[str, Any] | None = None,
    workers: int = 1,
) -> VectorEnv:
    """Copies of the world called `name`.

    Args:
        name: `cooperative-navigation`, `predator-prey`, `pettingzoo:<module>`, `gym:<id>` or `dm:<domain>/<task>`;
            `gym:<module>:<name>` or `pettingzoo:<module>:<name>` for a class or a function that makes an environment;
            or such a class or function itself.
        agents: number of trained agents (predators), 3 by default; an adapter has its environment's own.
        copies: number of copies that are stepped together.
        rules: `mpe2` or `openai`, the two rule sets of the particle worlds.
        seed: random seed of all copies.
        episode_length: steps per episode, 25 by default; an adapter has its environment's own.
        stagger: start the copies at different steps of their first episode, so that they do not all end together.
        landmarks: cooperative navigation: number of landmarks; as many as agents by default.
        prey: predator-prey: policy of the prey: `scripted`, `facmac`, `learned` or `random`.
        prey_count: predator-prey: number of prey; max(1, agents // 3) by default.
        obstacles: predator-prey: number of obstacles; max(2, agents // 3) by default.
        prey_scale: predator-prey with facmac prey: its force, 1 (the default) or 4 times its chosen offset.
        options: adapters: keyword arguments of the environment's constructor.
        workers: adapters: number of processes that share the copies, for slow environments; 1: this process. Results
            are the same with any number.

    """
    settings = (agents, copies, rules, seed, episode_length, stagger, landmarks, prey, prey_count, obstacles)
    return planned_env(name, *settings, prey_scale, options, workers)()


def planned_env(
    name: str | Callable[..., Any],
    agents: int | None,
    copies: int,
    rules: str,
    seed: int,
    episode_length: int | None,
    stagger: bool,
    landmarks: int | None,
    prey: str,
    prey_count: int | None,
    obstacles: int | None,
    prey_scale: float | None,
    options: dict[str, Any] | None,
    workers: int,
) -> Callable[[], VectorEnv]:
    """What `make_env` will call: wrong settings are refused here, before anything is imported or built."""
    copies, seed = whole_number("copies", copies, 1, MOST_COPIES), whole_number("seed", seed, 0)
    agents = None if agents is None else whole_number("agents", agents, 1, MOST)
    episode_length = None if episode_length is None else whole_number("episode_length", episode_length, 1, MOST_STEPS)
    workers = whole_number("workers", workers, 1)
    check_choice("rules", rules, RULES)
    check_choice("prey", prey, PREY)
    of_navigation = {"landmarks": landmarks is not None}
    of_pursuit = {
        "prey": prey != "scripted",
        "prey_count": prey_count is not None,
        "obstacles": obstacles is not None,
        "prey_scale": prey_scale is not None,
    }
    of_adapters = {"options": options is not None, "workers": workers != 1}

    name = env_name(name)
    if str(name).startswith(ADAPTERS):
        _refuse(name, {"rules": rules != "mpe2"} | of_navigation | of_pursuit)
        return partial(_adapter, name, agents, copies, seed, episode_length, stagger, options, workers)
    _check_world(name)
    agents = agents or 3
    common: dict[str, Any] = {
        "rules": rules,
        "episode_length": episode_length or 25,
        "copies": copies,
        "seed": seed,
        "stagger": stagger,
    }
    if name == "cooperative-navigation":
        _refuse(name, of_pursuit | of_adapters)
        landmarks = agents if landmarks is None else whole_number("landmarks", landmarks, 1, MOST)
        return partial(_particle_world, "cooperative_navigation", agents, landmarks, **common)
    _refuse(name, of_navigation | of_adapters)
    prey_count = max(1, agents // 3) if prey_count is None else whole_number("prey_count", prey_count, 1, MOST)
    obstacles = max(2, agents // 3) if obstacles is None else whole_number("obstacles", obstacles, 0, MOST)
    if prey_scale is not None and prey != "facmac":
        raise UserError(f"`prey_scale` is a setting of facmac prey only, but `prey` is '{prey}'; leave it out.")
    if prey_scale not in (None, 1, 4):
        raise UserError(f"`prey_scale` is {prey_scale}, but must be 1 or 4.")
    pursuit = (prey, prey_count, float(prey_scale or 1), obstacles)
    return partial(_particle_world, "predator_prey", agents, *pursuit, **common)


def _particle_world(maker: str, agents: int, *settings: Any, copies: int, **common: Any) -> VectorEnv:
    from shoal.envs import particle  # here, because numba takes its time to import

    try:
        world: VectorEnv = getattr(particle, maker)(agents, *settings, copies=copies, **common)
    except MemoryError:
        many = f"{counted(copies, 'copy', 'copies')} of {counted(agents, 'agent')}"
        raise UserError(f"{many} do not fit into memory; use fewer copies.") from None
    return world


def _adapter(
    name: str,
    agents: int | None,
    copies: int,
    seed: int,
    episode_length: int | None,
    stagger: bool,
    options: dict[str, Any] | None,
    workers: int,
) -> VectorEnv:
    from shoal.envs.adapters import make_copies

    if not isinstance(options, dict | None):
        raise UserError(f"`options` is {options!r}, but must be a dictionary of keyword arguments.")
    check_range("workers", workers, 1, copies)
    if workers > 1:
        check_importable("env", name, "workers")
    env = make_copies(name, copies if workers == 1 else 1, seed, episode_length, stagger, options)
    spec = env.spec
    if agents not in (None, spec.agents):
        env.close()
        raise UserError(f"`agents` is {agents}, but {name} has {spec.agents}; leave it out or change its options.")
    if workers == 1:
        return env
    from shoal.envs.worker import WorkerCopies

    env.close()  # it was made for its spec
    return WorkerCopies(spec, env.form, copies, workers, seed, episode_length, stagger, dict(options or {}))


def _refuse(name: str, given: dict[str, bool]) -> None:
    """Raise a `UserError` for the first given setting that this world does not have."""
    for setting, is_given in given.items():
        if is_given:
            raise UserError(f"`{setting}` is not a setting of {name}; leave it out.")


def _check_world(name: str) -> None:
    if name not in WORLDS:
        close = difflib.get_close_matches(str(name), WORLDS, n=1)
        if re.fullmatch(r"[\w/]+-v\d+", str(name)):  # as Gymnasium names its environments
            close = [f"gym:{name}"]
        elif re.fullmatch(r"simple\w*_v\d+|\w+([.:]\w+)*[.:]\w+_v\d+", str(name)):  # as PettingZoo and mpe2 do
            module = str(name).replace(":", ".")
            close = [f"pettingzoo:{module if '.' in module else f'mpe2.{module}'}"]
        guess = f" (perhaps you meant {close[0]})" if close else ""
        known = ", ".join(WORLDS)
        raise UserError(
            f"The world '{name}' is not known{guess}; known are {known}, pettingzoo:<module>, gym:<id>, "
            "gym:<module>:<class> and dm:<domain>/<task>."
        )
