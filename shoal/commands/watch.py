"""`shoal watch`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from shoal.commands.arguments import parse
from shoal.commands.console import output_file, progress_bar
from shoal.errors import check_range, printable
from shoal.system.files import absolute, shown
from shoal.system.streams import put, say


def watch(argv: list[str]) -> int:
    """Draw an episode of a run's trained team: a strip of pictures (PNG) and an animation (GIF).

    shoal watch runs/hunt
    shoal watch runs/hunt --seed 7 --noisy
    shoal watch runs/hunt --out hunt.gif
    shoal watch runs/hunt --checkpoint best
    """
    import tyro

    @dataclass(frozen=True)
    class WatchCommand:
        run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """Run folder."""
        seed: int = 0
        """Random seed of the episode."""
        checkpoint: str = "last"
        """Newest weights (last), those with the best evaluation (best), or the episode of a snapshot."""
        noisy: bool = False
        """Play with exploration noise instead of the most likely actions."""
        out: str = ""
        """File to write instead: .png (strip) or .gif (animation).

        Empty: episode.png and episode.gif in the run; with --checkpoint 375, episode-375.png and episode-375.gif.
        """
        trust: bool = False
        """Allow third-party code that the run names as its environment (gym:MODULE:NAME, pettingzoo:MODULE)."""

    command = parse(WatchCommand, watch, argv)
    check_range("seed", command.seed, 0, 2**62)
    out = output_file("out", command.out, ".png", ".gif") if command.out else None
    from shoal.training.saved_team import check_run

    check_run(Path(command.run), command.checkpoint)
    with progress_bar("shoal watch"):
        from shoal.report.watch import draw_run

        run = absolute(command.run)
        files = draw_run(run, command.seed, command.noisy, say, command.trust, out, command.checkpoint)
    for path in files:
        put(printable(shown(path)))
    return 0
