"""`shoal mac train`."""

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.commands.arguments import folder_after_resume, parse, stored_settings
from shoal.commands.console import print_files, print_result, progress_bar, quoted
from shoal.errors import UserError
from shoal.system.files import shown
from shoal.system.streams import print_json, say

if TYPE_CHECKING:
    from shoal.classifiers.comparison import Comparison
    from shoal.classifiers.result import ClassifierResult
    from shoal.results import Result


def mac_train(argv: list[str]) -> int:
    """Train a classifier through a MAC unit or in a low-precision scheme, and compare it with float32.

    shoal mac train --model resnet8 --data digits --scheme E5M2:5+E6M5 --loss-scale dynamic --epochs 5 --out runs/mac1
    shoal mac train --scheme 'hfp8; master=E6M9' --data fashion-mnist --train-images 6000
    shoal mac train --schemes E5M2:5+E6M5,E5M2:5+Q8.13,hfp8 --loss-scale 1024
    shoal mac train --schemes 'E5M2:5+E6M5' 'E5M2:5+E6M5, order=pairwise' --no-baseline
    shoal mac train --resume runs/mac1

    The default data, digits, need the extra data.
    """
    from shoal.classifiers.config import ClassifierConfig

    @dataclass(frozen=True)
    class MacTrainCommand(ClassifierConfig):
        schemes: tuple[str, ...] = ()
        """Several schemes side by side, in place of --scheme: one word each, or separated by commas (a comma before an
        option such as order=pairwise belongs to its scheme)."""
        resume: bool = False
        """Continue what is in --out (short: --resume FOLDER)."""
        quiet: bool = False
        """Show no progress."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    def stored(folder: Path) -> MacTrainCommand:
        from shoal.classifiers.comparison import read_comparison

        held = read_comparison(folder)
        schemes = held.schemes if len(held.schemes) > 1 else ()
        return MacTrainCommand(**{**vars(held.config), "out": str(folder)}, schemes=schemes)

    argv = folder_after_resume(argv)
    before = stored_settings(argv, stored)  # a resumed run's: what is not given stays as it was
    command = parse(MacTrainCommand, mac_train, argv, before)
    names = [field.name for field in dataclasses.fields(ClassifierConfig)]
    config = ClassifierConfig(**{name: getattr(command, name) for name in names}).checked()

    with contextlib.nullcontext() if command.quiet else progress_bar("shoal mac train: loading"):
        from shoal.classifiers.comparison import Comparison, compare, split_schemes
        from shoal.classifiers.observer import ClassifierDisplay, Quiet
        from shoal.training.early import check_kept

    schemes = split_schemes(command.schemes)
    if before is not None:
        check_kept({name: getattr(config, name) for name in names}, before, Path(command.out or ""))
        if schemes != before.schemes:
            raise UserError(f"--schemes differ from those in '{command.out}': a resumed run keeps its settings.")
    elif schemes and command.scheme != ClassifierConfig.scheme:
        raise UserError("--scheme and --schemes cannot be used together.")
    comparison = Comparison(config, schemes or (config.scheme,))
    folder, results = compare(comparison, Quiet(say) if command.quiet else ClassifierDisplay(), command.resume)
    if (signal := results[-1].signal) is not None:
        if command.json:
            print_json({"run": str(folder), "runs": [dataclasses.asdict(result) for result in results]})
        say(
            f"Stopped and saved at step {results[-1].steps:,} of {results[-1].scheme}; resume with: "
            f"shoal mac train --resume {quoted(shown(folder))}"
        )
        return 128 + signal
    _give(comparison, folder, results, command.json, command.quiet, argv)
    return 0


def _give(
    comparison: "Comparison", folder: Path, results: "list[ClassifierResult]", json: bool, quiet: bool, argv: list[str]
) -> None:
    """Draw the pictures and print the table."""
    from shoal.classifiers.report import comparison_result

    found = comparison_result(comparison, folder, results).made_by("mac", "train", *argv)
    pictures = _draw(found, comparison, folder, results)
    if json:
        print_json(found.to_json() | {"pictures": [str(path) for path in pictures]})
    elif not quiet:
        print_result(found)
        print_files(folder, pictures)


def _draw(found: "Result", comparison: "Comparison", folder: Path, results: "list[ClassifierResult]") -> list[Path]:
    """The figure as a picture; of several schemes also one of each with its layers, in its own folder."""
    from shoal.classifiers.config import is_float32
    from shoal.classifiers.report import PICTURE, run_figure
    from shoal.report.panels import draw_figure, draw_figures

    pictures = draw_figures(found, folder)
    if len(comparison.schemes) > 1:
        baseline = next((result for result in results if is_float32(result.scheme)), None)
        for result in results:
            if result.layers:
                draw_figure(run_figure(result, baseline, found.title), Path(result.run) / f"{PICTURE}.png")
    return pictures
