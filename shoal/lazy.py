"""Public names that load their module when first used, so that `import shoal` and `shoal --help` stay fast."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """A module-level `__getattr__` for `package`: each name is fetched from the module that `home` gives for it."""

    def __getattr__(name: str) -> Any:
        if name in home:
            return getattr(importlib.import_module(home[name]), name)
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return __getattr__


def papers(module: str = "") -> Any:
    """`shoal_papers`, the second package of this distribution, or a module of it; the library finds it by name only."""
    return importlib.import_module(f"shoal_papers.{module}".rstrip("."))
