"""Forks wait for pictures that another thread draws; any text can be drawn."""

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from shoal.report.curve import draw_curve, draw_curves
from shoal.report.drawing import drawing, plain
from shoal.report.panels import _folded, draw_figure
from shoal.results import Figure, Panel, Series

ODD = [
    "\x1b[31mred\x07", "a\tb", "\udcff", "$x$", "$", r"\$x$ \frac{", r"$\frac{1}{$", "a^b_c", "_a", "שלום", "مرحبا",
    "\u202eevil", "🐟🐠", "实验", "{x}", "%d", "e\u0301", "𝔘", "",
]  # fmt: skip
LINES = [{"episode": k, "return_mean": 0.1 * k, "time/update": 1.0} for k in range(1, 50)]


def test_arbitrary_text_is_drawn_without_warnings(tmp_path):
    series, title = [Series(name, [1.0] * len(ODD)) for name in ODD], " ".join(ODD)
    panel = Panel(title, ODD[0], series, ODD[1], ODD, level=1.0, level_label=f"{ODD[6]}!", rings=f"{ODD[7]}!")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_figure(Figure("figure", title, [panel], key=ODD), tmp_path / "figure.png")
        draw_curves([(name, LINES) for name in ODD], tmp_path / "curves.png", title)


def test_wrapped_labels_contain_no_formula():
    assert _folded(plain("$ab$ " * 3), 2).count("$") == _folded(plain("$ab$ " * 3), 2).count(r"\$")


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("größe – −3 × 2\nнуль", "größe – −3 × 2\nнуль"),
        ("a\x1bb", r"a\x1bb"),
        ("🐟 fish", r"\U0001f41f fish"),
        ("5 $ or $x$", r"5 \$ or \$x\$"),
    ],
)
def test_missing_glyphs_are_escaped_and_formulas_disabled(text, drawn):
    assert plain(text) == drawn


def ends(child: int, seconds: float) -> bool:
    """Whether a forked process ends well within this time; it is killed if not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status == 0
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def test_fork_waits_for_rendering_in_another_thread():
    began, ended = threading.Event(), threading.Event()

    def draw() -> None:
        with drawing():
            began.set()
            time.sleep(0.1)
            ended.set()

    thread = threading.Thread(target=draw)
    thread.start()
    began.wait()
    child = os.fork()
    if child == 0:
        with drawing():  # would wait forever if the lock had been copied while it was held
            os._exit(0)
    assert ended.is_set() and ends(child, 10)
    thread.join()
    with drawing():  # the parent's is free as well
        pass


@pytest.mark.slow
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "first picture"])
def test_processes_forked_while_a_thread_draws_can_draw(warm, tmp_path):
    """Twenty forks; without waiting all of them hung in matplotlib, or in the import of it."""
    if not warm:  # in a process without matplotlib
        child = os.posix_spawn(sys.executable, [sys.executable, __file__, str(tmp_path)], os.environ)
        assert ends(child, 120)
        return
    draw_curve(LINES, tmp_path / "before.png")
    assert forks_that_hung(tmp_path) == 0


def forks_that_hung(folder) -> int:
    """How many of twenty processes, forked while a thread draws, did not draw a picture within ten seconds."""
    stop, hung = threading.Event(), 0

    def draw() -> None:
        while not stop.is_set():
            draw_curve(LINES, folder / "thread.png")

    thread = threading.Thread(target=draw)
    thread.start()
    for number in range(20):
        time.sleep(0.05 + 0.037 * number % 0.3)
        child = os.fork()
        if child == 0:
            draw_curve(LINES, folder / "child.png")
            os._exit(0)
        hung += not ends(child, 10)
    stop.set()
    thread.join()
    return hung


if __name__ == "__main__":
    raise SystemExit(forks_that_hung(Path(sys.argv[1])))
