"""`shoal sweep`, and the end of `shoal train --seeds`."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shoal.commands.arguments import parse
from shoal.commands.console import give_outcome, progress_bar, quoted, write_json
from shoal.errors import UserError, check_range, counted
from shoal.system.files import absolute, shown
from shoal.system.streams import say
from shoal.waiting import Progress

if TYPE_CHECKING:
    from shoal.sweeps.grid import SweepRun
    from shoal.training.config import TrainConfig


def sweep(argv: list[str]) -> int:
    """Train several configurations and seeds side by side; run it again to continue.

    shoal sweep sweep.json
    shoal sweep sweep.json --out runs/rates --parallel 4
    shoal sweep sweep.json --json
    """
    import tyro

    @dataclass(frozen=True)
    class SweepCommand:
        file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
        """JSON file with base settings, a grid of values and seeds; docs/sweep.md describes it."""
        out: str | None = None
        """Folder of the sweep, with one run folder per configuration and seed; None: runs/ and the file's name.
        Finished runs in it are kept, others are resumed."""
        parallel: int | None = None
        """Runs side by side; None: as many as there are processors, fewer where memory is short. Each has its share of
        the processors as threads."""
        quiet: bool = False
        """Show no progress."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(SweepCommand, sweep, argv)
    from shoal.sweeps.grid import read_sweep

    file = Path(command.file)
    out = chosen_folder(command.out, file.stem)
    runs = read_sweep(file, out)
    again = f"shoal sweep {quoted(command.file)} --out {quoted(shown(out))}"
    name = "Sweep" if file.stem.lower() == "sweep" else f"Sweep {file.stem}"
    title = ", ".join(part for part in (name, subject([run.config for run in runs])) if part)
    return train_all(runs, out, title, command.parallel, command.quiet, command.json, ["sweep", *argv], again)


def subject(configs: "Sequence[TrainConfig]") -> str:
    """What all runs are about, for titles: algorithm and world, or the one that they share."""
    from shoal.algorithms.config import algorithm_title

    algorithms, worlds = {algorithm_title(config.algorithm) for config in configs}, {config.env for config in configs}
    return " in ".join(names.pop() for names in (algorithms, worlds) if len(names) == 1)


def chosen_folder(out: str | None, name: str) -> Path:
    """The folder in --out, or the one of this name under runs/."""
    if out is not None and not out.strip():
        raise UserError("--out is empty, but must be the name of a folder.")
    folder = absolute(out if out is not None else Path("runs") / name)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out '{shown(folder)}' is a file, but must be a folder.")
    if (folder / "config.json").exists():
        raise UserError(f"'{shown(folder)}' is the folder of a run, but must be one for several; choose another --out.")
    return folder


def train_all(
    runs: "Sequence[SweepRun]",
    out: Path,
    title: str,
    parallel: int | None,
    quiet: bool,
    json: bool,
    argv: list[str],
    again: str,
) -> int:
    """Train all runs, then print the table and draw the picture; `again` is the command that continues."""
    if parallel is not None:
        check_range("parallel", parallel, 1, 1024)
    from shoal.report.panels import draw_figures
    from shoal.runs.folder import RunFolder
    from shoal.sweeps.side_by_side import Lines, choose_parallel, run_side_by_side
    from shoal.sweeps.summary import summarize

    left = [run for run in runs if run.result() is None]
    at_once, kept = choose_parallel(left, parallel), len(runs) - len(left)
    with RunFolder(out, make=True, kind="sweep"):
        if not quiet:
            pace = f", {at_once} side by side" if left else ""
            before = f"; {counted(kept, 'finished run')} kept" if kept else ""
            say(f"{counted(len(runs), 'run')}{pace}, into {shown(out)}{before}")
        episodes = sum(run.config.episodes for run in runs)
        bar = contextlib.nullcontext(Progress("")) if quiet else progress_bar(f"shoal {argv[0]}", episodes)
        with bar as advance:
            lines = Lines(len(left), episodes, at_once, advance, quiet)
            outcomes, signal = run_side_by_side(runs, at_once, lines)
        result = summarize(outcomes, title).made_by(*argv)
        pictures = draw_figures(result, out)
        write_json(result.to_json(), out / "sweep-result.json")
    give_outcome(result, out, pictures, json, quiet)
    if signal is not None:
        say(f"Stopped and saved; continue with: {again}")
        return 128 + signal
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        say(f"shoal: {counted(len(failed), 'run')} failed, {len(outcomes) - len(failed)} did not; {failed[0].error}")
        return 2
    return 0
