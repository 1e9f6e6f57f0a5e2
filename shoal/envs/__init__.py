"""Multi-agent worlds by name."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.envs.base import VectorEnv
from shoal.errors import UserError, check_choice, check_range, counted, names_checked, perhaps, whole_number
from shoal.trust import ADAPTERS, WORLDS, check_importable, env_name, registered

RULES = ("mpe2", "openai")
ENTITIES = ("index", "distance")
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
    entities: str = "index",
    options: dict[str, Any] | None = None,
    masks: bool = False,
    workers: int = 1,
) -> VectorEnv:
    """Copies of the world called `name`.

    Args:
        name: `cooperative-navigation`, `predator-prey`, `pettingzoo:<module>`, `gym:<id>` or `dm:<domain>/<task>`;
            `gym:<module>:<name>` or `pettingzoo:<module>:<name>` for a class or a function that makes an environment,
            `shoal:<module>:<name>` for a `VectorEnv`; or such a class or function itself.
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
        entities: particle worlds: order in which an agent sees landmarks, other agents and prey: by `index`, or
            by `distance`, nearest first.
        options: adapters: keyword arguments of the environment's constructor.
        masks: adapters: infos have an `action_mask`, as `info["action_mask"]` in Gymnasium; masks in Dict observations
            count without it.
        workers: adapters: number of processes that share the copies, for slow environments; 1: this process. Results
            are the same with any number.

    """
    return planned_env(**locals())()


DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(make_env).parameters.items()}
COMMON_SETTINGS = ("name", "agents", "copies", "seed", "episode_length", "stagger")
OWN_SETTINGS = {
    "cooperative-navigation": ("rules", "entities", "landmarks"),
    "predator-prey": ("rules", "entities", "prey", "prey_count", "obstacles", "prey_scale"),
    "adapters": ("options", "masks", "workers"),
}
"""Settings that not every world has."""


def planned_env(name: str | Callable[..., Any], **settings: Any) -> Callable[[], VectorEnv]:
    """What `make_env` will call: wrong settings are refused here, before anything is imported or built."""
    given = DEFAULTS | settings
    _check_numbers(given, copies=(1, MOST_COPIES), seed=(0, None), agents=(1, MOST))
    _check_numbers(given, episode_length=(1, MOST_STEPS), workers=(1, None))
    check_choice("rules", given["rules"], RULES)
    check_choice("entities", given["entities"], ENTITIES)
    check_choice("prey", given["prey"], PREY)
    name = env_name(name)
    adapted = name.startswith(ADAPTERS)
    if not adapted and name not in WORLDS:
        raise _unknown_world(name)
    allowed = (*COMMON_SETTINGS, *OWN_SETTINGS["adapters" if adapted else name])
    for setting, value in given.items():
        if setting not in allowed and value != DEFAULTS[setting]:
            raise UserError(f"`{setting}` is not a setting of {name}; leave it out.")
    if adapted:
        return partial(_adapter, **{setting: given[setting] for setting in allowed} | {"name": name})
    _check_numbers(given, landmarks=(1, MOST), prey_count=(1, MOST), obstacles=(0, MOST))
    agents = given["agents"] or 3
    common = {setting: given[setting] for setting in ("rules", "entities", "copies", "seed", "stagger")}
    common["episode_length"] = given["episode_length"] or 25
    if name == "cooperative-navigation":
        return partial(_particle_world, "cooperative_navigation", agents, given["landmarks"] or agents, **common)
    prey, scale, obstacles = given["prey"], given["prey_scale"], given["obstacles"]
    if scale is not None and prey != "facmac":
        raise UserError(f"`prey_scale` is a setting of facmac prey only, but `prey` is '{prey}'; leave it out.")
    if scale not in (None, 1, 4):
        raise UserError(f"`prey_scale` is {scale}, but must be 1 or 4.")
    prey_count = given["prey_count"] or max(1, agents // 3)
    obstacles = max(2, agents // 3) if obstacles is None else obstacles
    return partial(_particle_world, "predator_prey", agents, prey, prey_count, float(scale or 1), obstacles, **common)


def _check_numbers(given: dict[str, Any], **limits: tuple[int, int | None]) -> None:
    """Refuse what is not a whole number within these limits; None where that is the default."""
    for setting, (low, high) in limits.items():
        if given[setting] is not None or DEFAULTS[setting] is not None:
            given[setting] = whole_number(setting, given[setting], low, high)


def _particle_world(maker: str, agents: int, *settings: Any, copies: int, **common: Any) -> VectorEnv:
    from shoal.envs import particle  # here, because numba takes its time to import

    try:
        return getattr(particle, maker)(agents, *settings, copies=copies, **common)
    except MemoryError:
        many = f"{counted(copies, 'copy', 'copies')} of {counted(agents, 'agent')}"
        raise UserError(f"{many} do not fit into memory; use fewer copies.") from None


def _adapter(name: str, agents: int | None, copies: int, options: Any, workers: int, **common: Any) -> VectorEnv:
    from shoal.envs.adapters import make_copies

    if not isinstance(options, dict | None):
        raise UserError(f"`options` is {options!r}, but must be a dictionary of keyword arguments.")
    if name.startswith("shoal:"):
        from shoal.envs.adapters import make_vector

        if workers > 1:
            raise UserError(f"`workers` is {workers}, but {name} steps all copies at once; leave it out.")
        if common.pop("masks"):
            raise UserError(f"`masks` does not apply to {name}, whose spec says whether observations begin with masks.")
        return make_vector(name, copies, {"agents": agents, **common}, options)
    check_range("workers", workers, 1, copies)
    if workers > 1:
        check_importable("env", name, "workers")
    env = make_copies(name, copies if workers == 1 else 1, options=options, **common)
    spec = env.spec
    if agents not in (None, spec.agents):
        env.close()
        raise UserError(f"`agents` is {agents}, but {name} has {spec.agents}; leave it out or change its options.")
    if workers == 1:
        return env
    from shoal.envs.worker import WorkerCopies

    env.close()  # it was made for its spec
    return WorkerCopies(env, copies, workers, options=dict(options or {}), **common)


def _unknown_world(name: str) -> UserError:
    """The error, with the name that was probably meant."""
    known = (*WORLDS, *registered("env"))
    guess = perhaps(name, known)
    if re.fullmatch(r"[\w/]+-v\d+", name):  # as Gymnasium names its environments
        guess = f" (perhaps you meant gym:{name})"
    elif re.fullmatch(r"simple\w*_v\d+|\w+([.:]\w+)*[.:]\w+_v\d+", name):  # as PettingZoo and mpe2 do
        module = name.replace(":", ".")
        guess = f" (perhaps you meant pettingzoo:{module if '.' in module else f'mpe2.{module}'})"
    return UserError(
        f"The world '{name}' is not known{guess}; known are {', '.join(known)}, pettingzoo:<module>, gym:<id>, "
        "gym:<module>:<class> and dm:<domain>/<task>."
    )
