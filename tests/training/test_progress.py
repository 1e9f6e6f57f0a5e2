"""The progress display: what it says, also on a narrow terminal."""

import io
import re
import time
from types import SimpleNamespace

from rich.console import Console

from shoal import TrainConfig, waiting
from shoal.envs.base import EnvSpec
from shoal.runs.observer import Display
from shoal.training.evaluation import evaluation
from shoal.training.progress import ProgressDisplay, catching_up, summary, timing
from shoal.training.returns import Episode

PHASES = {
    "action selection": 0.06, "environment": 0.04, "replay insertion": 0.02, "mini-batch sampling": 0.08,
    "target Q": 0.4, "Q loss": 0.6, "P loss": 0.72, "other": 0.08,
}  # fmt: skip


def training(*names):
    """A stand-in for a run with two finished episodes and an evaluation."""
    spec = EnvSpec("toy", names, (1,) * len(names), (2,) * len(names), True)
    episodes = [Episode(0.5, None, tuple(1000.0 * number + shift for number in range(len(names)))) for shift in (0, 1)]
    return SimpleNamespace(
        last=episodes,
        env=SimpleNamespace(spec=spec),
        milestones=SimpleNamespace(latest=evaluation(spec, episodes[:1])),
        samples=29_240,
        clock=SimpleNamespace(total=lambda: 2.0, by_phase=lambda: PHASES),
    )


def shown(width, figures, below):
    """The lines of the display on a terminal of this width, 1,234 of 3,000 episodes into a run."""
    display = Display()
    display.console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    display.has_bar = True
    display._start("episode", 3_000, 0)
    display._show("episode", 3_000, 1_234, figures, below)
    text = display.console.file.getvalue().rpartition("episode 1,234/3,000")
    display._bar.stop()
    return "".join(text[1:]).splitlines()


def test_progress_shows_returns_of_a_few_groups():
    mixed, alone = training("eve_0", "bob_0", "bob_1"), training("agent_0", "agent_1")
    assert summary(mixed) == "return eve 0.5, bob 1,500.5  evaluation eve 0.0, bob 1,500.0"
    assert summary(alone) == "return 0.5  evaluation 0.5"
    assert summary(training("a", "b", "c", "d")) == summary(alone)


def test_narrow_terminal_shows_count_and_returns():
    text = " ".join(shown(80, figures := summary(training("leader_0", "[red]_0", "blue_0")), "phases"))
    assert "episode 1,234/3,000" in text and "left" in text and "phases" in text
    assert all(word in text for word in figures.split())


def test_two_groups_take_two_lines_of_120_columns():
    run = training("predator_0", "prey_0")
    first, second = shown(120, summary(run), timing(run, 120))
    assert first.endswith("return predator 0.5, prey 1,000.5  evaluation predator 0.0, prey 1,000.0")
    assert second.startswith("14,620 steps/s  action selection 3%  ") and second.endswith("P loss 36%  other 7%")


def test_lines_are_broken_between_phrases_only():
    run = training("predator_0", "prey_0")
    lines = shown(80, summary(run), timing(run, 80))
    assert [line[41:].strip() for line in lines[:2]] == summary(run).split("  ")
    assert lines[2:] == ["14,620 steps/s  target Q 20%  Q loss 30%  P loss 36%  other 14%"]
    assert shown(80, "", "many phases  " * 6 + "end")[1:] == ["  ".join(["many phases"] * 6), "end"]


def test_short_phases_are_merged_into_other():
    run = training("agent_0")
    assert timing(run).startswith("14,620 steps/s  action selection 3%  environment 2%  replay insertion 1%")
    assert timing(run, 60).endswith("/s  Q loss 30%  P loss 36%  other 34%")
    assert timing(run, 1) == "14,620 steps/s  P loss 36%  other 64%"


def test_line_without_a_terminal_is_complete(capsys):
    display = Display()
    display.has_bar = False
    display._start("episode", 60, 0)
    display._show("episode", 60, 30, "return 0.5", "9 steps/s")
    display._show("episode", 60, 30, "", "9 steps/s")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"episode 30 of 60: return 0\.5, \d+ s left  \(9 steps/s\)", first)
    assert re.fullmatch(r"episode 30 of 60: \d+ s left  \(9 steps/s\)", second)


def learning(updates, **settings):
    """A run that has just reached its warm-up of 1,000 samples, with 10 samples per update."""
    config = TrainConfig(warmup=1_000, update_every=10, episodes=60, **settings).checked()
    run = training("agent_0")
    run.config, run.updates, run.samples = config, updates, 1_025
    run.counter, run.total, run.done = "episode", 60, 41
    return run


def test_the_updates_due_after_the_warm_up_are_counted():
    assert catching_up(learning(0)) == ""
    assert catching_up(learning(40)) == "catching up after the warm-up: update 40 of 102"
    assert catching_up(learning(100)) == ""
    assert catching_up(learning(40, actors=2)) == ""  # the rate limiter owes none of the warm-up's
    assert catching_up(learning(40, actors=2, lockstep=True))


def test_lines_without_a_terminal_report_other_work(capsys, monkeypatch):
    monkeypatch.setattr(waiting, "FIRST", 0.0)
    monkeypatch.setattr(waiting, "EVERY", 0.0)
    monkeypatch.setattr("shoal.runs.observer.REFRESH", 0.0)
    display = ProgressDisplay()
    display.has_bar = False
    display._start("episode", 60, 0)
    display.advance(learning(40))
    advance = display.aside("evaluating: episode", 20)
    advance(3)
    advance(0)
    playing = display.evaluate(600)
    playing(150)
    monkeypatch.setattr(waiting, "EVERY", 60.0)
    time.sleep(0.01)
    display.end()
    first, second, third, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("episode 41 of 60: catching up after the warm-up: update 40 of 102, ")
    assert second.startswith("episode 41 of 60: evaluating: episode 3 of 20, ") and "3 of 20" in third
    assert rest and all(line.startswith("evaluating trained and random teams: ") for line in rest)
