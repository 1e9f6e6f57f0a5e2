"""Which benches take numbers of agents."""

import ast
from pathlib import Path

from shoal import bench


def test_benches_of_agents_are_those_that_run_with_them():
    """Read from their sources: importing all of them takes seconds."""
    found = []
    for name in bench.BENCHES:
        source = Path(bench.__file__).with_name(f"{name.replace('-', '_')}.py")
        tree = ast.parse(source.read_text())
        (run,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
        if run.args.args[0].arg == "agents":
            found.append(name)
    assert sorted(found) == sorted(bench.OF_AGENTS)


def test_selected_parts_or_defaults():
    assert bench.parts("env", (5,)) == (5,)
    assert bench.parts("env") == (3, 12, 48)
    assert bench.parts("startup", (5,), alone=False) == bench.parts("startup")
