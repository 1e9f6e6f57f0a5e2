"""`shoal mac`: describe, area, sweep and train."""

import contextlib
import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from shoal.commands.arguments import folder_after_resume, overview, parse, part, stored_settings
from shoal.commands.console import give_outcome, give_result, output_file, print_result, progress_bar, quoted
from shoal.errors import UserError, perhaps
from shoal.system.files import shown
from shoal.system.streams import print_json, put, say

if TYPE_CHECKING:
    from shoal.classifiers.comparison import Comparison
    from shoal.classifiers.config import ClassifierConfig
    from shoal.classifiers.training import ClassifierResult
    from shoal.results import Result


def mac(argv: list[str]) -> int:
    """Emulated MAC units: number formats, numerical error, training and hardware cost.

    shoal mac describe E5M2 --cfg 5
    shoal mac area E5M2:5+E6M5 E5M2:5+Q8.13
    shoal mac sweep --picture units.png
    shoal mac train --model resnet8 --data digits --scheme E5M2:5+E6M5 --epochs 5        # needs the extra data
    """
    if argv and argv[0] in ("-h", "--help", "help"):
        put(overview("Emulated MAC units.", COMMANDS, "mac "))
        return 0
    if not argv or argv[0] not in COMMANDS:
        wrong = (
            f"There is no command 'mac {argv[0]}'{perhaps(argv[0], COMMANDS)}" if argv else "shoal mac needs a command"
        )
        raise UserError(f"{wrong}; the commands are {', '.join(COMMANDS)} (see shoal mac --help).")
    return COMMANDS[argv[0]](argv[1:])


def mac_describe(argv: list[str]) -> int:
    """Describe a number format, a MAC unit or a scheme: properties, special codes, all values.

    shoal mac describe E5M2 --cfg 5
    shoal mac describe E5M2:5+E6M5
    shoal mac describe Q8.13 --json
    shoal mac describe hfp8
    """
    import tyro

    @dataclass(frozen=True)
    class DescribeCommand:
        name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FORMAT-UNIT-OR-SCHEME")]
        """E5M2, Q8.13, bf16, E4M3FN, Q1.7/row, …; or a unit: E5M2:5+E6M5; or a scheme: hfp8, swalp, …"""
        cfg: int | None = None
        """Configuration (1 to 6) of the multiplier that decodes the format; None: the plain format."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(DescribeCommand, mac_describe, argv)
    from shoal.numerics.describe import describe_name

    result = describe_name(command.name, command.cfg)
    if command.json:
        print_json(result.data)
    else:
        print_result(result)
    return 0


def mac_area(argv: list[str]) -> int:
    """Compare LUTs, DSPs and energy of MAC units: the slides' figures, and fits in between.

    shoal mac area E5M2:5+E6M5 E5M2:5+Q8.13
    shoal mac area E4M3*E5M2:5+E6M6 --pes 256
    shoal mac area --fits
    """
    import tyro

    @dataclass(frozen=True)
    class AreaCommand:
        units: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="UNIT…")] = ()
        """Units such as E5M2:5+Q8.13; by default the four systems of the slides."""
        pes: int = 64
        """Number of units in the array."""
        fits: bool = False
        """Also print the fits and their residuals."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(AreaCommand, mac_area, argv)
    from shoal.numerics.formats.notation import split_list
    from shoal.numerics.hardware.report import compare
    from shoal.numerics.hardware.tables import SYSTEM

    result = compare(split_list(command.units) or tuple(SYSTEM.rows), command.pes, command.fits)
    if command.json:
        print_json(result.made_by("mac", "area", *argv).to_json())
    else:
        print_result(result)
    return 0


def mac_sweep(argv: list[str]) -> int:
    """Compare the error, saturation and cost of several MAC units on the same products.

    shoal mac sweep
    shoal mac sweep E5M2:5+E6M5 E5M2:5+Q8.13 --inner 256,1024,4096 --picture units.png
    shoal mac sweep 'E5M2:5+E6M5, rounding=stochastic' --json
    shoal mac sweep E5M2:5+E6M5 E4M2:5+E5M5 --train --model resnet8 --epochs 5 --out runs/sweep --picture accuracy.png

    The default data of --train, digits, need the extra data.
    """
    import tyro

    @dataclass(frozen=True)
    class SweepCommand:
        units: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="UNIT…")] = ()
        """Units such as E5M2:5+Q8.13, quoted if options follow; by default those of the slides' tables."""
        inner: tuple[int, ...] = (256, 4096)
        """Comma-separated lengths of the sums (inner dimension)."""
        scale: float = 1.0
        """Standard deviation of the operands."""
        seed: int = 0
        """Random seed of the operands and of stochastic rounding, and of the trainings."""
        train: bool = False
        """Also train a classifier through each unit, and in float32: accuracy beside LUTs and energy."""
        model: str | None = None
        """With --train: model, as in shoal mac train; None: resnet8."""
        data: str | None = None
        """With --train: data set, as in shoal mac train; None: digits."""
        epochs: int | None = None
        """With --train: epochs; None: 5."""
        loss_scale: str | None = None
        """With --train: none, a number, dynamic or adaptive; None: dynamic."""
        out: str | None = None
        """With --train: folder of the trainings, in which finished ones are not repeated; None: they are not kept."""
        picture: str = ""
        """PNG file for a plot of error, or with --train accuracy, over LUTs; the result is saved beside it as JSON."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(SweepCommand, mac_sweep, argv)
    picture = output_file("picture", command.picture, ".png") if command.picture else None
    config = _training_config(command)
    with progress_bar("shoal mac sweep") as progress:
        from shoal.numerics.formats.notation import split_list
        from shoal.numerics.sweep import SLIDES_UNITS, sweep, sweep_result

        units = split_list(command.units) or SLIDES_UNITS
        progress.expect(len(units) * len(command.inner))
        rows = sweep(units, command.inner, command.scale, command.seed, progress)
    result = sweep_result(rows, command.scale)
    if picture and not result.figures:
        raise UserError("None of the units has both a cost and a finite error, so there is nothing to draw.")
    if config is not None:
        trained = _train_units(units, config)
        if isinstance(trained, int):
            return 128 + trained
        result = dataclasses.replace(
            trained,
            tables=trained.tables + result.tables,
            findings=[*dict.fromkeys(trained.findings + result.findings)],
            figures=trained.figures + result.figures,
            data=trained.data | result.data,
        )
    give_result(result.made_by("mac", "sweep", *argv), picture, command.picture, command.json)
    return 0


def _training_config(command: Any) -> "ClassifierConfig | None":
    """The settings of a sweep's trainings; None if it has none."""
    given = {name: getattr(command, name) for name in ("model", "data", "epochs", "loss_scale", "out")}
    given = {name: value for name, value in given.items() if value is not None}
    if not command.train:
        if given:
            raise UserError(f"`{next(iter(given))}` is for trainings, but --train is not given.")
        return None
    from shoal.classifiers.config import ClassifierConfig

    return ClassifierConfig(seed=command.seed, **given).checked()


def _train_units(units: tuple[str, ...], config: "ClassifierConfig") -> "Result | int":
    """The trainings through these units, or the signal that stopped them."""
    from shoal.classifiers.comparison import train_units
    from shoal.classifiers.display import ClassifierDisplay
    from shoal.classifiers.report import training_result

    with contextlib.ExitStack() as stack:
        out = config.out or stack.enter_context(tempfile.TemporaryDirectory())
        trainings = train_units(units, dataclasses.replace(config, out=out), ClassifierDisplay())
    signal = trainings[-1].signal
    if signal is None:
        return training_result(trainings, config)
    say("Stopped; repeat the command to continue." if config.out else "Stopped; --out would have kept the trainings.")
    return signal


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
        """Continue the run in --out (short: --resume FOLDER)."""
        quiet: bool = False
        """Show no progress."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    def stored(folder: Path) -> MacTrainCommand:
        from shoal.classifiers.comparison import read_comparison

        comparison = read_comparison(folder)
        schemes = comparison.schemes if len(comparison.schemes) > 1 else ()
        return MacTrainCommand(**{**vars(comparison.config), "out": str(folder)}, schemes=schemes)

    argv = folder_after_resume(argv)
    before = stored_settings(argv, stored)  # a resumed run's: what is not given stays as it was
    command = parse(MacTrainCommand, mac_train, argv, before)
    config = part(command, ClassifierConfig).checked()

    with contextlib.nullcontext() if command.quiet else progress_bar("shoal mac train: loading"):
        from shoal.classifiers.comparison import Comparison, compare, split_schemes
        from shoal.classifiers.display import ClassifierDisplay
        from shoal.runs.observer import Quiet
        from shoal.runs.settings import check_kept

    schemes = split_schemes(command.schemes)
    if before is not None:
        check_kept(vars(config), before, Path(command.out or ""))
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
    from shoal.classifiers.report import comparison_result

    result = comparison_result(comparison, folder, results).made_by("mac", "train", *argv)
    give_outcome(result, folder, _draw(result, comparison, folder, results), command.json, command.quiet)
    return 0


def _draw(whole: "Result", comparison: "Comparison", folder: Path, results: "list[ClassifierResult]") -> list[Path]:
    """The figure as a picture; of several schemes also one of each with its layers, in its own folder."""
    from shoal.classifiers.config import is_float32
    from shoal.classifiers.report import PICTURE, run_figure
    from shoal.report.panels import draw_figure, draw_figures

    pictures = draw_figures(whole, folder)
    if len(comparison.schemes) > 1:
        baseline = next((result for result in results if is_float32(result.scheme)), None)
        for result in results:
            if result.layers:
                draw_figure(run_figure(result, baseline, whole.title), Path(result.run) / f"{PICTURE}.png")
    return pictures


COMMANDS = {"describe": mac_describe, "area": mac_area, "sweep": mac_sweep, "train": mac_train}
