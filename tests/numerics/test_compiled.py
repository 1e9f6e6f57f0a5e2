"""Compiled code must not be older than its sources, also those in other files, which numba does not look at."""

import ast
import hashlib
from pathlib import Path

import pytest

from shoal import numerics

FOLDER = Path(numerics.__file__).parent
COMPILED = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in FOLDER.rglob("*.py")
    if "cache=True" in path.read_text(encoding="utf-8")
)


def helpers(name: str) -> list[str]:
    """The modules of numerics that a module imports."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal.numerics."):
            place = str(node.module).removeprefix("shoal.numerics.").replace(".", "/")
            found |= {f"{place}/{alias.name}" for alias in node.names} if (FOLDER / place).is_dir() else {place}
    return sorted(found)


def test_all_compiled_modules_are_known() -> None:
    rounding = {"rounding/block_kernels", "rounding/kernels32", "rounding/kernels64"}
    others = {"mac/kernels", "mac/panels", "mac/tile_kernels", "emulation/window_kernels", "schemes/events"}
    assert rounding | others == set(COMPILED)
    assert helpers("rounding/kernels32") == ["rounding/plan", "rounding/randomness", "rounding/shifts"]


@pytest.mark.parametrize("name", [name for name in COMPILED if helpers(name)])
def test_a_module_changes_with_what_is_compiled_into_it(name: str) -> None:
    """In this order where several fail: kernels32, kernels64, then the others."""
    sources = b"".join((FOLDER / f"{helper}.py").read_bytes() for helper in helpers(name))
    wanted = hashlib.sha256(sources).hexdigest()[:16]
    assert f'HELPERS = "{wanted}"' in (FOLDER / f"{name}.py").read_text(encoding="utf-8")
