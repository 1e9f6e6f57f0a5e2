"""Importing third-party algorithms and samplers (`MODULE:CLASS`), and checking their options.

Reading a configuration from a file imports nothing; completing the user's own one, or building its run, does.
"""

import importlib
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

from shoal.envs.faults import message, reason
from shoal.errors import UserError, perhaps
from shoal.trust import LOCAL


def load_class(setting: str, name: str) -> Any:
    """What `MODULE:CLASS` names."""
    path, _, attribute = name.partition(":")
    if name in LOCAL:
        return LOCAL[name]
    if not path or not attribute:
        raise UserError(f"`{setting}` is {name}, but must be MODULE:CLASS.")
    try:
        module = importlib.import_module(path)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{path}.".startswith(f"{missing}."):
            why = f"there is no module {missing}, neither installed nor in the working directory"
        else:
            why = f"importing {path} failed: {reason(error)}"
        raise UserError(f"`{setting}` is {name}, but {why}.") from error
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        if path == "__main__":
            why = "that is defined in the script or notebook that trained it; move it into a module of its own"
        else:
            why = f"{path} has no {attribute}{perhaps(attribute, dir(module))}"
        raise UserError(f"`{setting}` is {name}, but {why}.") from None


def check_options(setting: str, kind: Callable[..., Any], given: int, options: Mapping[str, Any]) -> None:
    """Refuse options that a constructor does not take besides its `given` other arguments."""
    try:
        inspect.signature(kind).bind(*(None,) * given, **options)
    except TypeError as error:
        raise UserError(f"`{setting}_options` do not fit {kind.__name__}: {message(error)}.") from None
    except ValueError:  # native code without a signature
        pass
