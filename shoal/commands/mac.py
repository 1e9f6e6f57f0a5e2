"""`shoal mac`: describe, area and sweep."""

from dataclasses import dataclass
from typing import Annotated

from shoal.arguments import numbers, overview, parse
from shoal.console import output_file, print_json, print_result, progress_bar, put
from shoal.errors import UserError, printable


def mac(argv: list[str]) -> int:
    """Emulated MAC units: the values they read, their error on products, their area.

    shoal mac describe E5M2 --cfg 5
    shoal mac area E5M2:5+E6M5 E5M2:5+Q8.13
    shoal mac sweep --picture units.png
    """
    if argv and argv[0] in ("-h", "--help", "help"):
        put(overview("Emulated MAC units.", COMMANDS, "mac "))
        return 0
    if not argv or argv[0] not in COMMANDS:
        wrong = f"There is no command 'mac {argv[0]}'" if argv else "A command of shoal mac must be named"
        raise UserError(f"{wrong}; the commands are {', '.join(COMMANDS)} (shoal mac --help tells more).")
    return COMMANDS[argv[0]](argv[1:])


def mac_describe(argv: list[str]) -> int:
    """What a number format or a MAC unit is: properties, both ends of the range, all values.

    shoal mac describe E5M2 --cfg 5
    shoal mac describe E5M2:5+E6M5
    shoal mac describe Q8.13 --json
    """
    import tyro

    @dataclass(frozen=True)
    class DescribeCommand:
        name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FORMAT-OR-UNIT")]
        """E5M2, Q8.13, bf16, E4M3FN, Q1.7/row, …; or a unit: E5M2:5+E6M5."""
        cfg: int | None = None
        """Configuration 1 to 6 of the multiplier that reads the format; None: as it is."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(DescribeCommand, mac_describe, argv)
    from shoal.numerics.describe import describe_name

    found = describe_name(command.name, command.cfg)
    if command.json:
        print_json(found.data)
    else:
        print_result(found)
    return 0


def mac_area(argv: list[str]) -> int:
    """LUTs, DSPs and energy of MAC units beside each other: the slides' figures, and fits in between.

    shoal mac area E5M2:5+E6M5 E5M2:5+Q8.13
    shoal mac area E4M3*E5M2:5+E6M6 --pes 256
    shoal mac area --fits
    """
    import tyro

    @dataclass(frozen=True)
    class AreaCommand:
        units: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="UNIT…")] = ()
        """Units such as E5M2:5+Q8.13; none: the four systems of the slides."""
        pes: int = 64
        """Units in the array."""
        fits: bool = False
        """Also the fits that speak between the slides' figures, and what they miss."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(AreaCommand, mac_area, argv)
    from shoal.numerics.hardware.report import area_result
    from shoal.numerics.hardware.tables import SYSTEM

    found = area_result(command.units or tuple(SYSTEM.rows), command.pes, command.fits)
    if command.json:
        print_json(found.made_by("mac", "area", *argv).to_json())
    else:
        print_result(found)
    return 0


def mac_sweep(argv: list[str]) -> int:
    """Error of the same products through several MAC units, how often these saturate, and what they cost.

    shoal mac sweep
    shoal mac sweep E5M2:5+E6M5 E5M2:5+Q8.13 --inner 256,1024,4096 --picture units.png
    shoal mac sweep 'E5M2:5+E6M5, rounding=stochastic' --json
    """
    import tyro

    @dataclass(frozen=True)
    class SweepCommand:
        units: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="UNIT…")] = ()
        """Units such as E5M2:5+Q8.13, in quotes if options follow; none: those of the slides' tables."""
        inner: str = "256,4096"
        """Lengths of the sums, with commas between."""
        scale: float = 1.0
        """Standard deviation of the operands' numbers."""
        seed: int = 0
        """Decides the operands and the bits of stochastic rounding."""
        picture: str = ""
        """File (PNG) for the picture: error over LUTs."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(SweepCommand, mac_sweep, argv)
    inner, picture = numbers("--inner", command.inner), None
    if command.picture:
        picture = output_file("--picture", command.picture, ".png")
    from shoal.numerics.sweep import SLIDES_UNITS, sweep, sweep_result

    units = command.units or SLIDES_UNITS
    with progress_bar("shoal mac sweep", len(units) * len(inner)) as advance:
        found = sweep_result(sweep(units, inner, command.scale, command.seed, advance), command.scale)
    if picture:
        from shoal.report.panels import draw_figure

        if not found.figures:
            raise UserError("None of the units has both a cost and a finite error, so there is nothing to draw.")
        draw_figure(found.figures[0], picture)
    if command.json:
        print_json(found.made_by("mac", "sweep", *argv).to_json() | {"picture": command.picture or None})
        return 0
    print_result(found)
    if picture:
        put(f"PNG  {printable(str(picture))}")
    return 0


COMMANDS = {"describe": mac_describe, "area": mac_area, "sweep": mac_sweep}
