"""The progress display: what it says, also on a narrow terminal."""

import io
from types import SimpleNamespace

from rich.console import Console

from shoal.envs.base import EnvSpec
from shoal.training.play import evaluation
from shoal.training.progress import Display, summary
from shoal.training.returns import Episode


def training(*names):
    """A stand-in for a run with two finished episodes and an evaluation."""
    spec = EnvSpec("toy", names, (1,) * len(names), (2,) * len(names), True)
    episodes = [Episode(0.5, None, tuple(1000.0 * number + shift for number in range(len(names)))) for shift in (0, 1)]
    return SimpleNamespace(
        last=episodes,
        env=SimpleNamespace(spec=spec),
        milestones=SimpleNamespace(latest=evaluation(spec, episodes[:1])),
        samples=5_000,
        clock=SimpleNamespace(total=lambda: 2.0),
    )


def test_returns_are_shown_by_group_where_there_are_a_few():
    mixed, alone = training("eve_0", "bob_0", "bob_1"), training("agent_0", "agent_1")
    assert summary(mixed) == "return eve 0.5, bob 1,500.5  evaluation eve 0.0, bob 1,500.0  2,500 steps/s"
    assert summary(alone) == "return 0.5  evaluation 0.5  2,500 steps/s"
    assert summary(training("a", "b", "c", "d")) == summary(alone)


def test_a_narrow_terminal_hides_neither_the_count_nor_the_returns():
    display = Display()
    display.console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    display._bar = True
    display._start("episode", 60_000, 0)
    display._show("episode", 60_000, 12_345, figures := summary(training("leader_0", "[red]_0", "blue_0")), "phases")
    shown = display.console.file.getvalue().rpartition("episode 0/60,000")[2]
    display._stop()
    assert "episode 12,345/60,000" in shown and "left" in shown and "phases" in shown
    assert all(word in shown for word in figures.split())
