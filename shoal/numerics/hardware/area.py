"""Hardware cost of a MAC unit on an FPGA: LUTs and DSPs of its parts, of the array and of the whole system.

Figures that the slides tabulate are returned unchanged. Others come from least-squares fits of the same tables, and
every figure is labelled: `tabulated`; `interpolated`, between the rows of the fit; or `extrapolated`, beyond them or
based on an assumption. `docs/numerics.md` lists the fits, their errors and the assumptions.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

from shoal.errors import UserError, whole_number
from shoal.numerics.formats.notation import parse, unit_parts
from shoal.numerics.formats.types import FixedFormat, FloatFormat, Scalar
from shoal.numerics.hardware import tables
from shoal.numerics.hardware.fits import Fit
from shoal.numerics.mac.datapath import Datapath, bits_of
from shoal.numerics.mac.unit import MacUnit

AnyUnit = str | MacUnit | Datapath
KINDS = ("tabulated", "interpolated", "extrapolated")
MOST_PES = 2**20
MOST_LUT_MANTISSA = 3  # up to here floats need no DSPs: slide 'MAC Design Space Exploration', Multiplier


@dataclass(frozen=True)
class Area:
    """LUTs and DSPs of a part, and where they come from."""

    luts: float
    dsps: int
    kind: str  # `tabulated`, `interpolated` or `extrapolated`
    error: float | None  # standard error of the LUTs; 0 if tabulated, None if the fit has no degrees of freedom left
    source: str  # the slide, or how the figure was derived


@dataclass(frozen=True)
class Cost:
    """Area of a MAC unit's parts, of the unit, of an array of units and of the whole system."""

    datapath: Datapath
    pes: int
    multiplier: Area
    converter: Area | None  # from the float product to the fixed-point accumulator; None if not needed
    accumulator: Area
    unit: Area  # one MAC unit: multiplier, converter and accumulator
    array: Area  # `pes` units
    surroundings: Area  # system minus array: FP32 converters, interconnect, buffers for the accumulators' output
    system: Area

    @property
    def saving(self) -> float:
        """LUTs saved relative to the FP32 system, as a fraction; negative if this system takes more."""
        return 1 - self.system.luts / tables.SYSTEM.rows["fp32+fp32"][0]


def datapath_of(unit: AnyUnit) -> Datapath:
    """The datapath of a unit or of its name: `E5M2:5+Q8.13` is an E5M2 multiplier in CFG-5 and a Q8.13 accumulator.

    Two operand formats are written `E4M3*E5M2:5+E6M6`. The default configuration is CFG-1, the default accumulator has
    the format of the multiplier's output: `E5M2:5` is `E5M2:5+E6M5`, and `fp32` is `fp32+fp32`. Cost depends on the
    formats of a `MacUnit` only, not on its order or rounding, for which there are no figures; a name with such options
    is refused.
    """
    if isinstance(unit, Datapath):
        path = unit
    elif isinstance(unit, MacUnit):
        path = unit.datapath
    else:
        operands, cfg, accumulator, options = unit_parts(unit)
        if options:
            raise UserError(
                f"'{unit}' has options; cost depends on formats only, so leave out what is after the comma."
            )
        both: tuple[Scalar, Scalar] = (operands[0], operands[-1])
        path = Datapath(both, accumulator or operands[0], cfg)
        if accumulator is None:
            kind = FloatFormat if isinstance(operands[0], FloatFormat) else FixedFormat
            path = replace(path, accumulator=kind(*path.product_bits))
    operand = path.operands[0]
    if isinstance(operand, FixedFormat) and isinstance(path.accumulator, FloatFormat):
        raise UserError(
            f"There are no figures for a {operand} multiplier before a float accumulator ({path.accumulator})."
        )
    return path


def mac_cost(unit: AnyUnit, pes: int = tables.SYSTEM_PES, dsps: bool = True) -> Cost:
    """The cost of a MAC unit and of a system with `pes` of them (the slides' array has 16 × 4).

    Without `dsps` the significands of floats with more than three mantissa bits are multiplied in LUTs, too.
    """
    path = datapath_of(unit)
    pes = whole_number("pes", pes, 1, MOST_PES)
    multiplier, accumulator = multiplier_area(path, dsps), accumulator_area(path.accumulator)
    converter = converter_area(path)
    parts = [part for part in (multiplier, converter, accumulator) if part]
    luts, blocks, error = sum(p.luts for p in parts), sum(p.dsps for p in parts), _root([p.error for p in parts])
    one = Area(luts, blocks, _worst(*parts), error, "sum of the parts")
    array = Area(pes * one.luts, pes * one.dsps, one.kind, _scaled(one.error, pes), f"{pes} times the unit")
    system = _system(path, pes, dsps, one, accumulator)
    around = (system.luts - array.luts, system.dsps - array.dsps)
    error = array.error if system.kind == "tabulated" else system.error
    surroundings = Area(*around, _worst(system, array), error, "system minus array")
    return Cost(path, pes, multiplier, converter, accumulator, one, array, surroundings, system)


def multiplier_area(path: Datapath, dsps: bool = True) -> Area:
    """The multiplier: LUTs only for floats of up to three mantissa bits, otherwise with DSPs.

    For two formats: the mean of the multipliers for either format, with half the difference as the error.
    """
    a, b = path.operands
    if a != b:
        first, second = (multiplier_area(replace(path, operands=(format, format)), dsps) for format in (a, b))
        luts, blocks = (first.luts + second.luts) / 2, max(first.dsps, second.dsps)
        error = _root([first.error, second.error, (first.luts - second.luts) / 2])
        return Area(luts, blocks, "extrapolated", error, "mean over the operands")
    if isinstance(a, FixedFormat):
        if not dsps:
            raise UserError(f"There are no figures for a {a} multiplier without DSPs; leave dsps on.")
        if row := _rows(tables.MULTIPLIER, FixedFormat).get(bits_of(a)):
            return Area(*row, "tabulated", 0.0, tables.MULTIPLIER.source)
        return replace(_fitted("fixed multiplier", (a.width,), a.width), dsps=_dsps(a.width - 1))
    bits = bits_of(a)
    in_luts = not (dsps and _wide(path))
    table = tables.MULTIPLIER if dsps or not _wide(path) else tables.MULTIPLIER_WITHOUT_DSPS
    if basic := _rows(table).get(bits):
        area = Area(*basic, "tabulated", 0.0, table.source)
    else:
        area = _fitted("multiplier in LUTs" if in_luts else "multiplier with DSPs", bits, sum(bits) + 1)
        area = replace(area, dsps=0 if in_luts else _dsps(bits[1] + 1))
    assert path.cfg is not None
    share = tables.CFG_SHARES[path.cfg]
    if share == 1:
        return area
    error = None if area.error is None else math.hypot(share * area.error, tables.CFG_SHARE_ERROR * area.luts)
    source = f"{share:.0%} of CFG-1, by assumption"
    return replace(area, luts=share * area.luts, kind="extrapolated", error=error, source=source)


def accumulator_area(format: Scalar) -> Area:
    """The accumulator, by its format alone: float (shifters, rounding) or fixed point (saturation)."""
    bits = bits_of(format)
    if row := _rows(tables.ACCUMULATOR, type(format)).get(bits):
        return Area(*row, "tabulated", 0.0, tables.ACCUMULATOR.source)
    if isinstance(format, FloatFormat):
        return _fitted("float accumulator", bits, format.width)
    return _fitted("fixed accumulator", (format.width,), format.width)


def converter_area(path: Datapath) -> Area | None:
    """From the float product to the fixed-point accumulator; None if there is no such step.

    The table has one target, Q8.13. Other targets are assumed to take the same LUTs: the system rows fit best if a
    wider target costs nothing extra. The extra cost in proportion to its width is the error.
    """
    if not path.converts:
        return None
    product, target, known = path.product_bits, path.accumulator, parse(tables.CONVERTER_TARGET)
    if row := _rows(tables.CONVERTER).get(product):
        area = Area(*row, "tabulated", 0.0, tables.CONVERTER.source)
    else:
        area = _fitted("converter", product, known.width)
    if bits_of(target) == bits_of(known):
        return area
    error = math.hypot(area.error or 0.0, area.luts * (target.width / known.width - 1))
    source = f"the same as to {known}, by assumption"
    return Area(max(area.luts, float(target.width)), 0, "extrapolated", error, source)


def fits() -> list[Fit]:
    """The fits used between the tables' rows."""
    return [*_part_fits().values(), _surroundings_fit()]


def _dsps(bits: int) -> int:
    """DSP blocks (27 × 18 bits, signed) for a product of magnitudes; as tabulated for 8, 11, 15, 24 and 31 bits."""
    return math.ceil(bits / 26) * math.ceil(bits / 17)


def _system(path: Datapath, pes: int, dsps: bool, unit: Area, accumulator: Area) -> Area:
    """The whole system: its row in the table, or the array plus surroundings from a fit of the table's rows.

    The rows have one low-precision multiplier, E5M2 in CFG-5. With any other the figure is extrapolated, and the errors
    of both multipliers count; with that one they cancel. For another number of PEs, the part of the surroundings that
    depends on the output width is assumed to grow in proportion.
    """
    row = {_key(datapath_of(name)): known for name, known in tables.SYSTEM.rows.items()}.get(_key(path))
    if row and pes == tables.SYSTEM_PES and (dsps or not _wide(path)):
        return Area(*row, "tabulated", 0.0, tables.SYSTEM.source)
    fit = _surroundings_fit()
    around = fit((path.accumulator.width,))
    grown = (pes / tables.SYSTEM_PES - 1) * float(fit.coefficients[1]) * path.accumulator.width
    if _key(path) == _key(datapath_of("fp32")):  # with DSPs or without
        parts = tables.SYSTEM.rows["fp32+fp32"], tables.MULTIPLIER.rows["fp32"], tables.ACCUMULATOR.rows["fp32"]
        # The FP32 system minus its array; the slides do not explain its DSPs (one per PE).
        rest, blocks = (total - tables.SYSTEM_PES * (m + a) for total, m, a in zip(*parts, strict=True))
        blocks = pes * unit.dsps + round(blocks * pes / tables.SYSTEM_PES)
        return Area(
            pes * unit.luts + rest + grown, blocks, "extrapolated", None, "array plus the surroundings of the FP32 row"
        )
    anchor = datapath_of("E5M2:5")
    if _key(path) == _key(replace(anchor, accumulator=path.accumulator)):
        between = around.inside and accumulator.kind != "extrapolated" and pes == tables.SYSTEM_PES
        errors = [around.error, _scaled(accumulator.error, pes)]
    else:
        between = False
        errors = [around.error, _scaled(unit.error, pes), _scaled(multiplier_area(anchor).error, pes)]
    kind = "interpolated" if between else "extrapolated"
    luts = pes * unit.luts + around.value + grown
    return Area(luts, pes * unit.dsps, kind, _root(errors), "array plus a fit of the system rows' surroundings")


@cache
def _part_fits() -> dict[str, Fit]:
    """Fits of single parts, from the tables' rows without the FP32 accumulator, which is a different design."""
    multiplier, accumulator = _rows(tables.MULTIPLIER), _rows(tables.ACCUMULATOR)
    in_luts = {point: luts for point, (luts, dsps) in multiplier.items() if not dsps}
    in_luts |= {point: luts for point, (luts, _) in _rows(tables.MULTIPLIER_WITHOUT_DSPS).items()}
    with_dsps = {point: luts for point, (luts, dsps) in multiplier.items() if dsps}
    floats = {point: luts for point, (luts, dsps) in accumulator.items() if not dsps}
    converter = {point: luts for point, (luts, _) in _rows(tables.CONVERTER).items()}
    made = (
        Fit("multiplier in LUTs", ("1", "e", "(m+1)²"), lambda p: (1, p[0], (p[1] + 1) ** 2), in_luts),
        Fit("multiplier with DSPs", ("1", "e", "m"), lambda p: (1, *p), with_dsps),
        Fit("fixed multiplier", ("1", "W", "W²"), lambda p: (1, p[0], p[0] ** 2), _by_width(tables.MULTIPLIER)),
        Fit("float accumulator", ("1", "e", "m"), lambda p: (1, *p), floats),
        Fit("fixed accumulator", ("1", "W"), lambda p: (1, *p), _by_width(tables.ACCUMULATOR)),
        Fit("converter", ("1", "e", "m"), lambda p: (1, *p), converter),
    )
    return {fit.name: fit for fit in made}


@cache
def _surroundings_fit() -> Fit:
    """Surroundings of the array in the low-precision systems, by the width of the accumulators' output."""
    rows: dict[tuple[int, ...], float] = {}
    for path, (luts, _) in ((datapath_of(name), row) for name, row in tables.SYSTEM.rows.items()):
        if path.cfg == 5:
            parts = [multiplier_area(path), converter_area(path), accumulator_area(path.accumulator)]
            rows[(path.accumulator.width,)] = luts - tables.SYSTEM_PES * sum(part.luts for part in parts if part)
    return Fit("surroundings", ("1", "W"), lambda p: (1, *p), rows)


def _key(path: Datapath) -> tuple[object, ...]:
    """Identifies units of the same area: biases and the like do not matter."""
    return *((type(format), bits_of(format)) for format in (*path.operands, path.accumulator)), path.cfg


def _wide(path: Datapath) -> bool:
    """Whether the significands of a float multiplier are so wide that DSPs multiply them."""
    return any(isinstance(a, FloatFormat) and a.mantissa > MOST_LUT_MANTISSA for a in path.operands)


def _rows(
    table: tables.PublishedTable[tables.Resources], kind: type = FloatFormat
) -> dict[tuple[int, ...], tables.Resources]:
    """The rows of one kind of format, by (exponent, mantissa) or (bits before, bits after the point)."""
    named = {name: parse(name) for name in table.rows}
    return {bits_of(format): table.rows[name] for name, format in named.items() if isinstance(format, kind)}


def _by_width(table: tables.PublishedTable[tables.Resources]) -> dict[tuple[int, ...], float]:
    return {(sum(point),): luts for point, (luts, _) in _rows(table, FixedFormat).items()}


def _fitted(name: str, point: tuple[int, ...], least: int) -> Area:
    """A part's LUTs by its fit, but at least one per output bit; without DSPs."""
    estimate = _part_fits()[name](point)
    kind = "interpolated" if estimate.inside else "extrapolated"
    return Area(max(estimate.value, float(least)), 0, kind, estimate.error, f"fit of the {name}")


def _worst(*areas: Area) -> str:
    return max((area.kind for area in areas), key=KINDS.index)


def _scaled(error: float | None, n: int) -> float | None:
    return None if error is None else n * error


def _root(errors: list[float | None]) -> float | None:
    """Combined error of independent figures; None if one is unknown."""
    known = [error for error in errors if error is not None]
    return math.hypot(*known) if len(known) == len(errors) else None
