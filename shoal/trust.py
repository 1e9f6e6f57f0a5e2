"""Third-party code: how it is named, and when it may run.

A run folder and an exported policy name the world that they were trained in. Shoal's own worlds, the environments of
PettingZoo, mpe2 and dm_control, and those that Gymnasium has registered are installed already; any other name makes
Python import a module and run it. A name that the user typed is trusted, also in a sweep file, which is written by
hand; one that was read from a run or a policy only with --trust, unless the user trained the run here (`signature.py`).
A run also names third-party algorithms and samplers, as MODULE:CLASS; here they have the prefix of Shoal's interfaces.
"""

import contextlib
import functools
import itertools
import json
import operator
import os
import sys
from collections.abc import Callable, Collection
from itertools import pairwise
from os import PathLike, fspath
from typing import Any

from shoal.errors import UserError, setting

ADAPTERS = ("pettingzoo:", "gym:", "dm:", "shoal:")  # prefixes of the names of worlds that are not Shoal's own
WORLDS = ("cooperative-navigation", "predator-prey")
CODE = ("env", "algorithm", "sampler")  # settings that can name third-party code
LIBRARIES = ("pettingzoo", "mpe2")
FAMILIES = {name: f"pettingzoo.{name}" for name in ("atari", "butterfly", "classic", "magent", "sisl")} | {
    "mpe": "mpe2"
}
"""Short names of PettingZoo's families, and where each is now."""


def pettingzoo_function(name: str) -> tuple[str, str]:
    """The module and the function of `pettingzoo:MODULE` or `pettingzoo:MODULE:FUNCTION`."""
    path, _, function = name.removeprefix("pettingzoo:").partition(":")
    family, dot, rest = path.partition(".")
    return f"{FAMILIES.get(family, family)}{dot}{rest}", function or "parallel_env"


def module_of(env: str) -> str:
    """The module in the name of a third-party environment."""
    kind, _, rest = env.partition(":")
    return pettingzoo_function(env)[0] if kind == "pettingzoo" else rest.rpartition(":")[0]


LOCAL: dict[str, Callable[..., Any]] = {}
"""What no module has under its name, but this process: lambdas, local classes, partial functions."""


def env_name(env: str | Callable[..., Any]) -> str:
    """The name of an environment: of a class, or of a function that makes one, where its module has it.

    One that its module does not have gets a number, under which this process alone knows it.
    """
    if isinstance(env, str | PathLike):
        name = class_name("env", env, WORLDS)
        return f"shoal:{name}" if ":" in name and ":" not in fspath(env) else name
    if not callable(env):
        raise UserError(f"`env` is {env!r}, but must be a name, or a class or function that makes an environment.")
    return f"{_kind(env)}:{_object_name(env)}"


def class_name(setting: str, given: str | type, known: Collection[str]) -> str:
    """`MODULE:CLASS` for a class, or for a name that an installed package registers; known and other ones unchanged."""
    if isinstance(given, type):
        return _object_name(given)
    if not isinstance(given, str | PathLike):
        raise UserError(f"`{setting}` is {given!r}, but must be a name or a class.")
    name = fspath(given)
    if name in known or ":" in name:
        return name
    there = registered(setting).get(name, {name})
    if len(there) > 1:
        raise UserError(f"`{setting}` '{name}' has several meanings: {', '.join(sorted(there))}; choose one of these.")
    return min(there)


def registered(setting: str) -> dict[str, set[str]]:
    """The names that installed packages register for `env`, `algorithm` or `sampler`, each with its MODULE:CLASS.

    They are entry points of the groups `shoal.envs`, `shoal.algorithms` and `shoal.samplers`.
    """
    from importlib.metadata import entry_points  # here, because it takes its time to import

    names: dict[str, set[str]] = {}
    for entry in entry_points(group=f"shoal.{setting}s"):
        names.setdefault(entry.name, set()).add(entry.value)
    return names


def _object_name(thing: Callable[..., Any]) -> str:
    """`MODULE:NAME` of a class or function, where its module has it; else a number, known to this process alone."""
    inner = thing.func if isinstance(thing, functools.partial) else thing
    module, attribute = getattr(inner, "__module__", None), getattr(inner, "__qualname__", type(inner).__name__)
    try:
        known = operator.attrgetter(attribute)(sys.modules[str(module)])
    except (AttributeError, KeyError):
        known = None
    if known is thing:
        return f"{module}:{attribute}"
    names = (f"__main__:{attribute}#{number}" for number in itertools.count(1))
    return next(name for name in names if LOCAL.setdefault(name, thing) is thing)


def is_local(env: str) -> bool:
    """Whether only the process that defines this environment can make it: it is in its script or notebook."""
    return is_third_party(env) and module_of(env) == "__main__"


LOCAL_ONLY = (
    "is defined in the script or notebook that trained it: pass the class or function itself there, as in "
    "shoal.load(run, env=MyEnv), or move it into a module and name it in `env`"
)
"""Why another process cannot make such an environment, and what to do."""


def _kind(env: Callable[..., Any]) -> str:
    """The prefix of a class or function; what a function makes is known only when it is called."""
    from gymnasium import Env  # here, because it takes its time to import

    if hasattr(env, "load_state"):  # of a `VectorEnv`
        return "shoal"
    return "pettingzoo" if isinstance(env, type) and not issubclass(env, Env) else "gym"


def check_importable(what: str, env: str, who: str) -> None:
    """Refuse code of the script or notebook that is running: no other process could import it."""
    if is_local(env):
        name = env if what == "env" else env.removeprefix("shoal:")
        raise UserError(
            f"{setting(what)} is {name}, which is defined in the running script or notebook, where {who} cannot import "
            "it; move it into a module of its own."
        )


def is_third_party(env: str) -> bool:
    """Whether making this environment imports a module that belongs to neither Shoal nor a library it knows."""
    kind, _, name = env.partition(":")
    if kind == "pettingzoo":
        module, function = pettingzoo_function(env)
        return module.partition(".")[0] not in LIBRARIES or function != "parallel_env"
    return kind in ("gym", "shoal") and ":" in name  # module:ID or module:class, which imports the module


def import_from_working_directory() -> None:
    """Let modules in the working directory be imported, after all others."""
    with contextlib.suppress(OSError):  # it may be gone
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)


def names_third_party(argv: list[str]) -> bool:
    """Whether a command line names third-party code, e.g. with --env, or allows what a file names with --trust."""
    options = tuple(f"--{setting}" for setting in CODE)
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith(options) else [word])]
    named = [value for option, value in pairwise(words) if option in options]
    # An ID of Gymnasium's may be given without the prefix gym: for a Stable-Baselines3 model; MODULE:CLASS has none.
    names = (name if name.startswith(ADAPTERS) else f"gym:{name}" for name in named)
    return "--trust" in words or any(map(is_third_party, names))


def check_trusted(what: str, code: str, options: str, trust: bool, setting: str = "env") -> None:
    """Refuse to take third-party code and its options from an untrusted file."""
    if not trust and setting == "env" and is_local(code):
        raise UserError(f"The environment '{code}' of {what[:1].lower()}{what[1:]} {LOCAL_ONLY}.")
    if not trust and (why := untrusted(code, options, setting)):
        raise UserError(f"{what} {why}: add `trust=True` if you trust it.")


def untrusted(code: str, options: str, setting: str = "env") -> str:
    """Why an environment, an algorithm or a sampler and its options from a file need --trust; empty if they do not."""
    kind = "environment" if setting == "env" else setting
    if is_third_party(code) if setting == "env" else ":" in code:
        return f"names the {kind} '{code}', which is third-party code"
    try:
        harmless = not options or not _has_text(json.loads(options))
    except (ValueError, RecursionError):
        harmless = False
    return "" if harmless else f"passes {options} to the {kind}'s code"


def _has_text(value: Any) -> bool:
    """Whether a JSON value contains a string, which may name a module, a file or an address, as a number cannot."""
    if isinstance(value, dict | list):
        return any(map(_has_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)
