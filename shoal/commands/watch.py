"""`shoal watch`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from shoal.arguments import parse
from shoal.console import put, say
from shoal.errors import check_range, printable


def watch(argv: list[str]) -> int:
    """Draw an episode of a run's trained team: a strip of pictures (PNG) and a film (GIF).

    shoal watch runs/hunt
    shoal watch runs/hunt --seed 7 --noisy
    """
    import tyro

    @dataclass(frozen=True)
    class WatchCommand:
        run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """Run folder."""
        seed: int = 0
        """Which episode: decides where everybody starts."""
        noisy: bool = False
        """Play with the noise of training instead of the most likely actions."""
        trust: bool = False
        """Let third-party code run that the run names as its environment (gym:MODULE:ID, pettingzoo:MODULE)."""

    command = parse(WatchCommand, watch, argv)
    check_range("--seed", command.seed, 0, 2**62)
    from shoal.report.watch import draw_run

    for path in draw_run(Path(command.run), command.seed, command.noisy, say, command.trust):
        put(printable(str(path)))
    return 0
