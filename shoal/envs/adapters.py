"""Third-party environments by name: `pettingzoo:mpe2.simple_tag_v3`, `gym:Pendulum-v1`, `dm:humanoid/stand`.

`pettingzoo:MODULE:NAME` and `gym:MODULE:NAME` name a class, or a function that makes an environment (`parallel_env`
without NAME); either may make a Gymnasium environment or a PettingZoo parallel environment. Modules of PettingZoo's
families may be named without their package: `sisl.pursuit_v5`, `mpe.simple_tag_v3`.
"""

import difflib
import importlib
import operator
import pkgutil
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import gymnasium
from gymnasium.envs import registration
from gymnasium.spaces import Space

from shoal.envs.base import EnvSpec, VectorEnv
from shoal.envs.faults import reason
from shoal.envs.parallel import ParallelCopies, ParallelWorld
from shoal.errors import UserError, check_range, install
from shoal.system.memory import check_fits, resident_bytes
from shoal.trust import LOCAL, LOCAL_ONLY, is_local, module_of, pettingzoo_function

World = TypeVar("World", bound=ParallelWorld)

MOST = 2**14
"""Copies of third-party code: they are stepped one after another, and a step of so many takes about a second."""
TELLING = 2**26  # bytes that the process must have grown by to tell what a copy takes; less may be anything

REMEDIES = {
    "ale_py": install("atari"),
    "dm_control": install("control"),
    **dict.fromkeys(("mpe2", "pettingzoo", "pygame"), install("pettingzoo")),
}
REMEDIES_GYMNASIUM = {"mujoco": install("control"), "Box2D": install("box2d")}
"""Where a package is missing: of any environment, and of one of Gymnasium's."""


def make_copies(
    name: str,
    copies: int = 1,
    seed: int = 0,
    episode_length: int | None = None,
    stagger: bool = True,
    options: Mapping[str, Any] | None = None,
    first: int = 0,
    total: int | None = None,
    masks: bool = False,
) -> ParallelCopies:
    """Copies of a third-party environment; a single-agent one is a team of one agent called "agent".

    Episodes end when the environment ends them, at its registered limit, or after `episode_length` steps, whichever
    comes first; only those with a limit can be staggered. Arguments are those of `make_env`; `first` is the number of
    the first copy, where these are a part of `total` copies.
    """
    check_range("copies", copies, 1)
    check_range("seed", seed, 0, 2**63 - 1)
    if episode_length is not None:
        check_range("episode_length", episode_length, 1)
    worlds = construct(name, copies, options, partial(_world, name))
    own_limit = worlds[0].own_limit if isinstance(worlds[0], Solo) else None
    if own_limit is not None and own_limit < 1:
        raise UserError(f"{name} has episodes of {own_limit} steps with these options, but needs at least one.")
    limits = [limit for limit in (episode_length, own_limit) if limit is not None]
    return ParallelCopies(name, worlds, seed, min(limits, default=None), stagger, first, total, masks)


def make_vector(name: str, copies: int, settings: Mapping[str, Any], options: Mapping[str, Any] | None) -> VectorEnv:
    """All copies of a world that is written as a `VectorEnv`; of these settings its constructor gets the given ones."""
    given = {setting: value for setting, value in settings.items() if value is not None}
    module, _, attribute = name.removeprefix("shoal:").partition(":")

    def make(options: dict[str, Any]) -> Any:
        return _named(name, module, attribute)(copies=copies, **given, **options)

    env: VectorEnv = construct(name, 1, options, make)[0]
    lacks = [part for part in vars(VectorEnv) if not part.startswith("_") and not hasattr(env, part)]
    if lacks or not isinstance(getattr(env, "spec", None), EnvSpec) or getattr(env, "copies", None) != copies:
        what = f"it has no {lacks[0]}" if lacks else f"its spec must be an EnvSpec and its copies {copies}"
        raise UserError(f"{name} makes a {type(env).__name__}, but must make a VectorEnv (shoal/envs/base.py): {what}.")
    return env


class Solo:
    """A Gymnasium environment as a team of one."""

    def __init__(self, env: gymnasium.Env) -> None:
        self._env = env
        self.possible_agents = ["agent"]
        self.agents: list[str] = []
        self.render_mode = env.render_mode
        self.own_limit = env.spec.max_episode_steps if env.spec else None

    @property
    def unwrapped(self) -> gymnasium.Env:
        return self._env.unwrapped

    def observation_space(self, agent: str) -> Space:
        return self._env.observation_space

    def action_space(self, agent: str) -> Space:
        return self._env.action_space

    def reset(self, seed: int) -> tuple[dict, dict]:
        observation, info = self._returned("reset", "observation, info", self._env.reset(seed=seed))
        self.agents = ["agent"]
        return {"agent": observation}, {"agent": info}

    def step(self, actions: dict) -> tuple[dict, ...]:
        """Play the one agent's action."""
        parts = "observation, reward, terminated, truncated, info"
        returned = self._returned("step", parts, self._env.step(actions["agent"]))
        observation, reward, terminated, truncated, info = returned
        return {"agent": observation}, {"agent": reward}, {"agent": terminated}, {"agent": truncated}, {"agent": info}

    def _returned(self, method: str, parts: str, result: Any) -> tuple:
        """What a method returned, if it is what Gymnasium's interface says."""
        if not (isinstance(result, tuple) and len(result) == len(parts.split(", "))):
            raise UserError(
                f"{method}() of {type(self._env.unwrapped).__name__} must return {parts}, as Gymnasium's environments "
                "do since its version 0.26."
            )
        return result

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


def make_registered_or_named(name: str, options: dict[str, Any]) -> Any:
    """The environment of a class or function of a module, or that which Gymnasium has registered under an ID."""
    identifier = name.removeprefix("gym:")
    if is_local(name):
        return _named(name, *identifier.split(":", 1))(**options)
    register_atari(identifier)
    module, _, attribute = identifier.rpartition(":")
    if module:
        importlib.import_module(module)  # which may register the ID
        # A registered ID of exactly this name wins, one without its version does not: a user's own class CartPole is
        # meant, although Gymnasium would take its name for CartPole-v1.
        if attribute not in registration.registry and attribute.replace(".", "").isidentifier():
            has_versions = any(known.rpartition("-v")[0] == attribute for known in registration.registry)
            if not has_versions or callable(_attribute(module, attribute)):
                return _named(name, module, attribute)(**options)
    # without Gymnasium's checker and its warnings
    return gymnasium.make(identifier, **{"disable_env_checker": True, **options})


def register_atari(identifier: str) -> None:
    """Register the Atari games of ale-py with Gymnasium, which ale-py does not do by itself."""
    module, _, game = identifier.rpartition(":")
    if game in registration.registry or not (game.startswith("ALE/") or (not module and find_spec("ale_py"))):
        return
    ale = importlib.import_module("ale_py")
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # no banner for every copy
    gymnasium.register_envs(ale)


def _named(name: str, path: str, attribute: str) -> Callable[..., Any]:
    """The class or function of a module, or of the running script or notebook, that makes environments."""
    maker = LOCAL.get(f"{path}:{attribute}") or _attribute(path, attribute)
    if not callable(maker):
        if is_local(name):
            raise UserError(f"The environment '{name}' {LOCAL_ONLY}.")
        if attribute == "parallel_env" and callable(_attribute(path, "env")):
            raise _turn_based(name)
        raise UserError(f"{name} cannot be made: the module {path} has no class or function {attribute}.")
    return maker


def _attribute(path: str, attribute: str) -> Any:
    """What a module has under this name, which may be dotted; None if nothing."""
    try:
        return operator.attrgetter(attribute)(importlib.import_module(path))
    except AttributeError:
        return None


def _turn_based(name: str) -> UserError:
    return UserError(
        f"{name} is turn-based (an AEC environment), but Shoal plays parallel environments (function parallel_env)."
    )


def _world(name: str, options: dict[str, Any]) -> ParallelWorld:
    """One copy of an environment, by its name; a `UserError` if it cannot be played."""
    if name.startswith("dm:"):
        from shoal.envs.control import make_task  # here, because it knows where dm_control is

        return Solo(make_task(name.removeprefix("dm:"), options))
    if name.startswith("pettingzoo:"):
        env = _named(name, *pettingzoo_function(name))(**options)
    else:
        env = make_registered_or_named(name, options)
    if hasattr(env, "agent_iter"):
        raise _turn_based(name)
    if isinstance(env, gymnasium.Env):
        return Solo(env)
    agents = getattr(env, "possible_agents", ())
    if not (isinstance(agents, Collection) and len(agents)):
        raise UserError(
            f"{name} makes a {type(env).__name__}, but must make a Gymnasium environment or a PettingZoo parallel "
            "environment with a list possible_agents."
        )
    return env


def construct(
    name: str, copies: int, options: Mapping[str, Any] | None, one: Callable[[dict[str, Any]], World]
) -> list[World]:
    """Call `one` once per copy, quietly; errors of third-party code become a sentence."""
    options = dict(options or {})
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        try:
            return build_copies(name, copies, lambda: one(options))
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            given = f" with the options {options}" if options else ""
            raise UserError(f"{name} cannot be made{given}: {_reason(name, error)}.") from error


def build_copies(name: str, copies: int, one: Callable[[], World]) -> list[World]:
    """A list of `copies` results of `one`; a `UserError` as soon as it is clear that they do not fit."""
    if copies > MOST:
        raise UserError(
            f"`copies` is {copies:,}, but {name} is Python code that is stepped one copy after another: "
            f"at most {MOST:,} are possible."
        )
    worlds, each = [one()], 0.0
    before = resident_bytes()

    def largest(usable: int) -> str:
        return f"about {len(worlds) + int(usable / each):,} copies fit"

    while len(worlds) < copies:
        worlds.append(one())
        built, left = len(worlds), copies - len(worlds)
        grown = resident_bytes() - before if built & (built - 1) == 0 else 0  # at powers of two
        if grown >= TELLING:
            each = grown / (built - 1)
            check_fits(f"Building {left:,} more of {copies:,} copies of {name}", int(each * left), largest)
    return worlds


def _reason(name: str, error: BaseException) -> str:
    """What went wrong in third-party code, and the remedy where it is known."""
    if isinstance(error, gymnasium.error.DependencyNotInstalled) and error.__cause__ is not None:
        error = error.__cause__  # Gymnasium advises its own extras, in other versions than ours
    if not (isinstance(error, ModuleNotFoundError) and error.name):
        return reason(error)
    # Python names the first part of the path that it cannot find, so whatever is before it is installed.
    parent, _, missing = error.name.rpartition(".")
    if not parent:
        remedy = _remedy(name, missing)
        if not remedy and missing == module_of(name).partition(".")[0]:
            return f"there is no module {missing}, neither installed nor in the working directory"
        return f"the package {missing} is not installed" + (f"; {remedy}" if remedy else "")
    known = [module.name for module in pkgutil.iter_modules(getattr(sys.modules.get(parent), "__path__", []))]
    close = difflib.get_close_matches(missing, known, 1)
    return f"{parent} has no module {missing}" + (f"; perhaps you meant {close[0]}" if close else "")


def _remedy(name: str, package: str) -> str:
    """How to install a missing module; empty if unknown: a module need not be named like its package."""
    if remedy := REMEDIES.get(package) or (REMEDIES_GYMNASIUM.get(package) if name.startswith("gym:") else None):
        return remedy
    library, _, module = pettingzoo_function(name)[0].partition(".")
    if name.startswith("pettingzoo:") and library == "pettingzoo":
        return f"pip install 'pettingzoo[{module.partition('.')[0]}]'"  # it has an extra for each of its families
    return ""
