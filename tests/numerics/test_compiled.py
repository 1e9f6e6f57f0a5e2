"""Compiled code must not be older than its sources, also those in other files, which numba does not look at."""

import ast
import hashlib
from pathlib import Path

import pytest

from shoal import numerics

FOLDER = Path(numerics.__file__).parent
COMPILED = sorted(path.stem for path in FOLDER.glob("*.py") if "cache=True" in path.read_text(encoding="utf-8"))


def helpers(name: str) -> list[str]:
    """The modules of this room that a module imports."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "shoal.numerics":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal.numerics."):
            found.add(str(node.module).removeprefix("shoal.numerics."))
    return sorted(found)


def test_all_compiled_modules_are_known() -> None:
    assert {"block_kernels", "kernels", "kernels64", "mac_kernels", "tile_kernels"} <= set(COMPILED)
    assert helpers("kernels") == ["plan", "randomness", "shifts"]


@pytest.mark.parametrize("name", [name for name in COMPILED if helpers(name)])
def test_a_module_changes_with_what_is_compiled_into_it(name: str) -> None:
    """In this order where several fail: kernels, kernels64, then the others."""
    sources = b"".join((FOLDER / f"{helper}.py").read_bytes() for helper in helpers(name))
    wanted = hashlib.sha256(sources).hexdigest()[:16]
    assert f'HELPERS = "{wanted}"' in (FOLDER / f"{name}.py").read_text(encoding="utf-8")
