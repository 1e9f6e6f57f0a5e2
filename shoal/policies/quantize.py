"""`shoal quantize`: a policy at many bit widths, its returns, how many of its actions stay the same, and its size.

Every width plays the same episodes. Actions are compared on the same states: those that the policy visited in full
precision, on which activation ranges are calibrated, too.
Shape letters: E copies, B rows, N agents, O observation, A action, U outputs.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algorithms.config import algorithm_title
from shoal.errors import UserError, counted
from shoal.inference.correction import BIAS, NOTHING, Correction
from shoal.inference.options import ExportOptions, ExportPrecision, Rounding
from shoal.policies.quantize_options import QuantizeOptions
from shoal.policies.torch_policy import Thinned, equal_actions
from shoal.policies.trained import Array
from shoal.quantization.export import correction_words, no_smaller, predicted_bytes
from shoal.quantization.layers import check_weights, find_layers
from shoal.quantization.ptq import Edge, ModelQuantizer, calibrate, model_bytes, quantized
from shoal.quantization.quantizer import Quantizer, What, Width
from shoal.results import Column, Figure, Panel, Result, Series, Table, Value
from shoal.training.evaluation import play
from shoal.waiting import Advance

if TYPE_CHECKING:
    from shoal.policies.torch_policy import TorchPolicy

COMPARED = 4096  # at most this many states are kept for comparing actions
BINS = 61


@dataclass(frozen=True)
class WidthRecord:
    """The policy in one precision."""

    precision: str
    bits: int
    what: str  # weights, activations, both; none: full precision; trained: quantization-aware training
    return_mean: float
    return_ci95: float
    relative_error: float | None  # (full precision - this) / |full precision|; positive is worse
    equal_actions: float
    kl: float | None
    bytes: int  # of weights, scales, biases and normaliser
    file_bytes: int | None = None  # of the file that `shoal export` writes with these weights; None: it writes none
    corrected: bool = False  # biases are corrected
    rounding: Rounding = "nearest"


@dataclass(frozen=True)
class WeightHistogram:
    """Weight histogram of a layer: counts in bins between the smallest and the largest."""

    layer: str
    shape: list[int]
    mean: float
    std: float
    low: float
    high: float
    counts: list[int]


@dataclass(frozen=True)
class WidthTable:
    """The table of a policy, and its weight histograms."""

    subject: str
    env: str
    episodes: int
    seed: int
    states: int
    ranges: str
    rows: list[WidthRecord]
    layers: list[WeightHistogram]
    failed: list[str]
    """Why rows are missing, one sentence each."""
    algorithm: str = ""
    """That it was trained with."""
    interrupted: bool = False
    """Ctrl-C ended the table early."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class WidthSweep:
    """Which widths are measured, and how."""

    widths: tuple[Width, ...]
    what: tuple[What, ...] = ("weights", "both")
    edges: Width | None = None
    """Another precision for the first and the last layer."""
    dynamic: bool = False
    """Dynamic quantization: activation ranges from each row instead of from calibration."""
    episodes: int = 100
    seed: int = 1
    agents: tuple[int, ...] | None = None
    """Which agents of a team are quantized; None: all."""
    corrections: tuple[Correction, ...] = ()
    """Every width below 16 bits is measured with each of these corrections as well."""

    @classmethod
    def of(cls, options: QuantizeOptions) -> "WidthSweep":
        """What these options ask for; corrections are of biases alone, and of the rounding as well if it is another."""
        corrections = [BIAS] * options.correct_bias
        if options.rounding != "nearest":
            corrections.append(Correction(options.correct_bias, options.rounding))
        what: Any = tuple(dict.fromkeys(options.what))
        return cls(
            options.widths(), what, options.edges(), options.dynamic, options.episodes, options.seed,
            corrections=tuple(corrections),
        )  # fmt: skip

    @property
    def narrow(self) -> list[tuple[Width, Quantizer, What, Correction]]:
        """Every reduced precision, with what is quantized and corrected."""
        return [
            (width, width.quantizer, what, correction)
            for what in self.what
            for width in self.widths
            if width.quantizer is not None
            for correction in (NOTHING, *self.corrections)
            if not correction or corrects(correction, width.quantizer, what)
        ]

    def quantizer_for(self, quantizer: Quantizer, what: What) -> ModelQuantizer:
        """How a width is quantized; activations have one scale per tensor, and a zero point in the standard style."""
        edge: Edge = (self.edges.quantizer or "full") if self.edges else None
        weights = None if what == "activations" else quantizer
        inputs = None if what == "weights" else dataclasses.replace(quantizer, symmetric=False, per_channel=False)
        return ModelQuantizer(weights, inputs, edge, edge, self.dynamic, self.agents)


def corrects(correction: Correction, quantizer: Quantizer, what: What) -> bool:
    """Whether a correction changes anything: 16 bits need none, and only integer weights are rounded to a grid."""
    by_output = correction.rounding == "output-error"
    return quantizer.width < 16 and not (by_output and (what == "activations" or quantizer.format is not None))


class FullPrecision(NamedTuple):
    """What every width is compared with."""

    return_mean: float
    states: Array  # (B, N, O) that it visited
    outputs: Tensor  # (B, N, U)


def sweep(policy: "TorchPolicy", settings: WidthSweep, advance: Advance | None = None) -> WidthTable:
    """The policy in full precision, as trained (if with quantization), and in every reduced precision.

    Ctrl-C ends the table early: finished widths are kept.
    """
    check_network(policy)
    tell = advance or (lambda amount, doing: None)
    visited = Thinned(COMPARED)
    played = _played(policy, policy.network, settings, tell, "float32", visited)
    states = visited.array()
    policy.notice(states, played[0])
    full = FullPrecision(played[0], states, policy.outputs(states, policy.network))
    file = _file_bytes(policy, None, "weights", NOTHING)
    records = [_record(policy, full, "float32", 32, "none", played, full.outputs, ModelQuantizer(), file)]
    failed = []
    try:
        for record in _narrow_records(policy, settings, tell, full):
            records.append(record)
    except KeyboardInterrupt:
        count = plays(policy, settings) // settings.episodes
        failed.append(f"Interrupted: {len(records)} of {count} rows are finished.")
    return WidthTable(
        policy.name, policy.env, settings.episodes, settings.seed, len(states),
        "dynamic" if settings.dynamic else "calibrated", records,
        weight_histograms(policy.network, policy.layer_names), failed, policy.algorithm, interrupted=bool(failed),
    )  # fmt: skip


def _narrow_records(
    policy: "TorchPolicy", settings: WidthSweep, tell: Advance, full: FullPrecision
) -> Iterator[WidthRecord]:
    def measured(
        network: nn.Module,
        name: str,
        bits: int,
        what: str,
        model_quantizer: ModelQuantizer,
        doing: str,
        file_bytes: int | None,
    ) -> WidthRecord:
        played, outputs = _played(policy, network, settings, tell, name + doing), policy.outputs(full.states, network)
        return _record(policy, full, name, bits, what, played, outputs, model_quantizer, file_bytes)

    if policy.trained is not None and policy.trained_bits is not None:
        quantizer = Quantizer(policy.trained_bits, per_channel=True)
        model_quantizer = ModelQuantizer(quantizer, networks=policy.trained_agents)
        file = _file_bytes(policy, quantizer, "weights", NOTHING)
        yield measured(policy.trained, quantizer.label, quantizer.bits, "trained", model_quantizer, " (trained)", file)
    ranges = None if settings.dynamic else calibrate(policy.network, lambda net: policy.head(net, full.states))
    visited = policy.visited() if any(correction for *_, correction in settings.narrow) else None
    for width, quantizer, what, correction in settings.narrow:
        model_quantizer = settings.quantizer_for(quantizer, what)
        run = None if visited is None else lambda network: policy.head(network, visited)
        network = quantized(policy.network, model_quantizer, ranges, correction, run)
        file = None if settings.edges or settings.agents else _file_bytes(policy, quantizer, what, correction)
        doing = f", {what}{', corrected' * bool(correction)}"
        record = measured(network, width.name, width.bits, what, model_quantizer, doing, file)
        yield dataclasses.replace(record, corrected=correction.bias, rounding=correction.rounding)


def _record(
    policy: "TorchPolicy", full: FullPrecision, name: str, bits: int, what: str, played: tuple[float, float],
    outputs: Tensor, model_quantizer: ModelQuantizer, file_bytes: int | None,
) -> WidthRecord:  # fmt: skip
    equal = equal_actions(policy.actions(full.outputs), policy.actions(outputs), policy.spec)
    divergence = policy.divergence(full.outputs, outputs)
    error = (full.return_mean - played[0]) / abs(full.return_mean) if full.return_mean else None
    kl = None if divergence is None else float(divergence.mean())
    size = model_bytes(policy.played_network, model_quantizer) + policy.overhead
    return WidthRecord(name, bits, what, *played, error, float(equal.mean()), kl, size, file_bytes)


def _played(
    policy: "TorchPolicy", network: nn.Module, settings: WidthSweep, advance: Advance, doing: str,
    visited: Thinned | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Mean return and the half-width of its interval."""

    def act(observation: Array) -> Array:
        if visited is not None:
            visited.add(observation)
        return policy.actions(policy.outputs(observation, network))

    with contextlib.closing(policy.make_env(min(settings.episodes, policy.most_copies), settings.seed)) as env:
        result = play(env, act, settings.episodes, lambda count: advance(count, doing))
    return result.mean, result.ci95


def _file_bytes(policy: "TorchPolicy", quantizer: Quantizer | None, what: What, correction: Correction) -> int | None:
    """Bytes of the file that `shoal export` writes for such a width; None if it has no precision for it or refuses."""
    one_agent = policy.trained is not None and policy.trained_agents is not None  # has one file per agent
    exported_as = _exported_as(quantizer, what)
    if one_agent or exported_as is None:
        return None
    try:
        options = ExportOptions(*exported_as, correct_bias=correction.bias, rounding=correction.rounding)
        return predicted_bytes(policy.portable(), options, policy.export_facts())
    except UserError:  # a custom network can be quantized, but not every one can be exported
        return None


def _exported_as(quantizer: Quantizer | None, what: What) -> tuple[ExportPrecision, int | None] | None:
    """Precision and bits of the exported file that holds such weights."""
    if quantizer is None:
        return "float32", None
    if quantizer.format == "float16" and what == "weights":
        return "float16", None
    if quantizer != Quantizer(quantizer.bits, per_channel=True) or what == "activations" or quantizer.bits > 8:
        return None
    if quantizer.bits == 8:
        return "int8", 8
    return ("packed", quantizer.bits) if what == "weights" else None


def plays(policy: "TorchPolicy", settings: WidthSweep) -> int:
    """How many episodes a sweep plays in all."""
    return settings.episodes * (1 + (policy.trained is not None) + len(settings.narrow))


def check_network(policy: "TorchPolicy") -> None:
    """Refuse weights that are not finite, and layers with only zeros."""
    check_weights(policy.network)
    for name, layer in zip(policy.layer_names, find_layers(policy.network), strict=True):
        axes = [axis for axis in range(layer.weight.dim()) if axis not in layer.networks]
        alive = layer.weight.detach().abs().amax(axes).flatten() > 0
        if not bool(alive.all()):
            whose = f" of network {int(torch.argmin(alive.int()))}" if layer.networks else ""
            raise UserError(
                f"Layer '{name}'{whose} has only zero weights: the policy acts the same in every state, "
                "in any precision; train it first."
            )


def weight_histograms(network: nn.Module, names: Sequence[str]) -> list[WeightHistogram]:
    layers = []
    for name, layer in zip(names, find_layers(network), strict=True):
        weight = layer.weight.detach().flatten().cpu().numpy()
        counts, edges = np.histogram(weight, BINS)
        low, high = float(edges[0]), float(edges[-1])
        mean, std = float(weight.mean()), float(weight.std())
        layers.append(WeightHistogram(name, list(layer.weight.shape), mean, std, low, high, counts.tolist()))
    return layers


# The result of `shoal quantize` ---------------------------------------------------------------------------------------


def width_result(table: WidthTable, style: str) -> Result:
    """The records as a table and two figures; `style` is that of the quantizers."""
    played = counted(table.episodes, "episode")
    whose = f"{algorithm_title(table.algorithm)} in {table.env}" if table.algorithm else table.env
    over_bits = f"Return over bits, {whose}: means of {played} with 95 % intervals"
    histograms = [weights_panel(layer) for layer in table.layers]
    # returns and their intervals have the same number of decimals in all rows
    digits = 2 if max(abs(_known(record.return_mean) or 0.0) for record in table.rows) >= 1 else 4
    return Result(
        "quantize",
        f"{table.subject} in {table.env}",
        [Table.of(f"{table.subject} in {table.env}, {played} each", [_cells(record, digits) for record in table.rows])],
        _larger_files(table.rows),
        figures=[
            Figure("quantize", over_bits, [return_panel(table.rows)]),
            Figure("weights", f"Weight histograms of the layers, {whose}", histograms),
        ],
        data=table.to_dict() | {"style": style},
    )


def _larger_files(records: list[WidthRecord]) -> list[str]:
    """A sentence for each kind of file that is no smaller than the float32 one; of several widths for the last."""
    full = records[0].file_bytes
    larger: dict[str, str] = {}
    for record in records[1:]:
        if full is not None and record.file_bytes is not None and record.file_bytes >= full:
            precision = {16: "float16", 8: "int8"}.get(record.bits, "packed")
            larger[precision] = no_smaller(precision, record.bits, record.file_bytes, record.bytes, full)
    return list(larger.values())


def _cells(record: WidthRecord, digits: int) -> dict[Column, Value]:
    mean, half = record.return_mean, _known(record.return_ci95)
    return {
        Column("precision"): record.precision,
        Column("quantized"): record.what,
        Column("corrected"): correction_words(record.corrected, record.rounding),
        Column("return", format=f",.{digits}f"): mean,
        Column("95 % interval"): "–" if half is None else f"± {half:,.{digits}f}",
        Column("relative error", format="+z.1%"): record.relative_error,
        Column("equal actions", format=".1%"): record.equal_actions,
        Column("KL", format=".5f"): record.kl,
        Column("weight bytes"): record.bytes,
        Column("file bytes"): record.file_bytes,
    }


def return_panel(records: list[WidthRecord]) -> Panel:
    """Returns over precisions, widest first: lines through integer widths, other formats as rings at their width."""
    full, *narrow = records
    widths = {record.precision: record.bits for record in narrow}
    order = sorted(widths, key=lambda name: (-widths[name], not _integers(name), name))
    series = []
    for label in dict.fromkeys(map(_line, narrow)):
        points = {record.precision: record for record in narrow if _line(record) == label}
        means = [_known(points[name].return_mean) if name in points else None for name in order]
        halves = [_known(points[name].return_ci95) if name in points else None for name in order]
        series.append(Series(label, means, halves=halves, hollow=[not _integers(name) for name in order]))
    return Panel(
        "", "return of an episode", series, "bits, or number format", [name.removesuffix(" bits") for name in order],
        level=full.return_mean, level_label="float32, 95 % interval", level_half=_known(full.return_ci95),
        rings="" if all(map(_integers, order)) else "number formats",
    )  # fmt: skip


def weights_panel(layer: WeightHistogram) -> Panel:
    step = (layer.high - layer.low) / len(layer.counts)
    edges = [layer.low + step * k for k in range(len(layer.counts) + 1)]
    shape = " × ".join(str(side) for side in layer.shape)
    return Panel(f"{layer.layer}  ({shape})", "", [Series("weights", list(layer.counts), "steps", edges)], "weight")


def _line(record: WidthRecord) -> str:
    """The line of a figure that a record belongs to."""
    corrected = correction_words(record.corrected, record.rounding)
    return record.what if corrected == "–" else f"{record.what}, {corrected} corrected"


def _integers(precision: str) -> bool:
    return precision.endswith(" bits")


def _known(value: float) -> float | None:
    """A single episode has no interval."""
    return value if math.isfinite(value) else None
