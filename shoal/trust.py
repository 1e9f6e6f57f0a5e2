"""Third-party code: how it is named, and when it may run.

A run folder and an exported policy name the world that they were trained in. Shoal's own worlds, the environments of
PettingZoo, mpe2 and dm_control, and those that Gymnasium has registered are installed already; any other name makes
Python import a module and run it. A name that the user typed is trusted; one that was read from a file only with
--trust.
"""

import json
from itertools import pairwise
from typing import Any

from shoal.errors import UserError

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


def is_third_party(env: str) -> bool:
    """Whether making this environment imports a module that belongs to neither Shoal nor a library it knows."""
    kind, _, name = env.partition(":")
    if kind == "pettingzoo":
        module, function = pettingzoo_function(env)
        return module.partition(".")[0] not in LIBRARIES or function != "parallel_env"
    return kind == "gym" and ":" in name  # gymnasium.make("module:ID") imports the module


def names_third_party(argv: list[str]) -> bool:
    """Whether a command line names third-party code with --env, or allows what a file names with --trust."""
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--env=") else [word])]
    named = [value for option, value in pairwise(words) if option == "--env"]
    return "--trust" in words or any(map(is_third_party, map(_with_kind, named)))


def _with_kind(env: str) -> str:
    """A Gymnasium ID may be given without the prefix gym: for a Stable-Baselines3 model."""
    return env if env.startswith(("pettingzoo:", "gym:", "dm:")) else f"gym:{env}"


def check_trusted(what: str, env: str, options: str, trust: bool) -> None:
    """Refuse to take an environment and its options from an untrusted file."""
    if not trust and (why := untrusted(env, options)):
        raise UserError(f"{what} {why}: add --trust if you trust it.")


def untrusted(env: str, options: str) -> str:
    """Why an environment and its options from a file need --trust; empty where they do not."""
    if is_third_party(env):
        return f"names the environment '{env}', which is third-party code"
    if _has_text(options):
        return f"passes {options} to the environment's code"
    return ""


def _has_text(options: str) -> bool:
    """Whether options contain a string, which may name a module, a file or an address, as a number cannot."""
    try:
        return _texts(json.loads(options)) if options else False
    except (ValueError, RecursionError):
        return True


def _texts(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_texts, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)
