"""The result of `shoal quantize`: a table of a policy at many widths, its return over bits, and weight histograms."""

import math

from shoal.errors import counted
from shoal.policies.widths import Row, WeightHistogram, WidthTable
from shoal.results import Column, Figure, Panel, Result, Series, Table, Value


def width_result(found: WidthTable, style: str) -> Result:
    """The rows as a table and two figures; `style` is that of the quantizers."""
    played = counted(found.episodes, "episode")
    whose = f"{found.algorithm.upper()} in {found.env}" if found.algorithm else found.env
    over_bits = f"Return over bits, {whose}: means of {played} with 95 % intervals"
    return Result(
        "quantize",
        f"{found.subject} in {found.env}",
        [Table.of(f"{found.subject} in {found.env}, {played} each", _lines(found.rows))],
        _larger_files(found.rows),
        figures=[
            Figure("quantize", over_bits, [return_panel(found.rows)]),
            Figure(
                "weights", f"Weight histograms of the layers, {whose}", [weights_panel(layer) for layer in found.layers]
            ),
        ],
        data=found.to_dict() | {"style": style},
    )


def _larger_files(rows: list[Row]) -> list[str]:
    """A sentence for each kind of file that is no smaller than the float32 one; of several widths for the last."""
    full = rows[0].file_bytes
    larger: dict[str, str] = {}
    for row in rows[1:]:
        if full is not None and row.file_bytes is not None and row.file_bytes >= full:
            precision = {16: "float16", 8: "int8"}.get(row.bits, "packed")
            larger[precision] = no_smaller(precision, row.bits, row.file_bytes, row.bytes, full)
    return list(larger.values())


def no_smaller(precision: str, bits: int, file: int, weights: int, float32: int) -> str:
    """What is said of a file that saves nothing."""
    name = f"{bits}-bit packed" if precision == "packed" else precision
    return (
        f"The {name} file ({file:,} bytes, {weights:,} of them weights) is not smaller than the float32 one "
        f"({float32:,} bytes): for a network this small, graph and metadata decide."
    )


def _lines(rows: list[Row]) -> list[dict[Column, Value]]:
    """The lines of the table; returns and their intervals have the same number of decimals in all of them."""
    digits = 2 if max(abs(_known(row.return_mean) or 0.0) for row in rows) >= 1 else 4
    return [_cells(row, digits) for row in rows]


def _cells(row: Row, digits: int) -> dict[Column, Value]:
    mean, half = row.return_mean, _known(row.return_ci95)
    return {
        Column("precision"): row.precision,
        Column("quantized"): row.what,
        Column("corrected"): correction_words(row.corrected, row.rounding),
        Column("return", format=f",.{digits}f"): mean,
        Column("95 % interval"): "–" if half is None else f"± {half:,.{digits}f}",
        Column("relative error", format="+z.1%"): row.relative_error,
        Column("equal actions", format=".1%"): row.equal_actions,
        Column("KL", format=".5f"): row.kl,
        Column("weight bytes"): row.bytes,
        Column("file bytes"): row.file_bytes,
    }


def return_panel(rows: list[Row]) -> Panel:
    """Returns over precisions, widest first: lines through integer widths, other formats as rings at their width."""
    full, *narrow = rows
    widths = {row.precision: row.bits for row in narrow}
    order = sorted(widths, key=lambda name: (-widths[name], not _integers(name), name))
    series = []
    for name_of_line in dict.fromkeys(map(_line, narrow)):
        own = {row.precision: row for row in narrow if _line(row) == name_of_line}
        series.append(
            Series(
                name_of_line,
                [_known(own[name].return_mean) if name in own else None for name in order],
                halves=[_known(own[name].return_ci95) if name in own else None for name in order],
                hollow=[not _integers(name) for name in order],
            )
        )
    return Panel(
        "", "return of an episode", series, "bits, or number format", [name.removesuffix(" bits") for name in order],
        level=full.return_mean, level_label="float32, 95 % interval", level_half=_known(full.return_ci95),
        rings="" if all(map(_integers, order)) else "number formats",
    )  # fmt: skip


def weights_panel(layer: WeightHistogram) -> Panel:
    """The histogram of one layer."""
    step = (layer.high - layer.low) / len(layer.counts)
    edges = [layer.low + step * k for k in range(len(layer.counts) + 1)]
    shape = " × ".join(str(side) for side in layer.shape)
    return Panel(f"{layer.layer}  ({shape})", "", [Series("weights", list(layer.counts), "steps", edges)], "weight")


def correction_words(bias: bool, rounding: str) -> str:
    """What was corrected, in words."""
    parts = ["bias"] * bias + ["rounding"] * (rounding != "nearest")
    return " and ".join(parts) or "–"


def _line(row: Row) -> str:
    """The line of a figure that a row belongs to."""
    how = correction_words(row.corrected, row.rounding)
    return row.what if how == "–" else f"{row.what}, {how} corrected"


def _integers(precision: str) -> bool:
    return precision.endswith(" bits")


def _known(value: float) -> float | None:
    """A single episode has no interval."""
    return value if math.isfinite(value) else None
