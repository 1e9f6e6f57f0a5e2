"""A policy at many bit widths: its returns, how many of its actions stay the same, and its size in bytes.

Every row plays the same episodes. Actions are compared on the same states: those that the policy visited in full
precision, on which activation ranges are calibrated, too.
Shape letters: E copies, B rows, N agents, O observation, A action, U outputs.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.errors import UserError, check_range
from shoal.inference.correction import BIAS, NOTHING, Correction
from shoal.inference.options import ExportOptions, ExportPrecision, Rounding
from shoal.policies.named_width import What, Width
from shoal.policies.states import Thinned
from shoal.policies.trained import Array
from shoal.quantization.export import predicted_bytes
from shoal.quantization.layers import check_weights, find_layers
from shoal.quantization.ptq import Edge, Plan, Ranges, calibrate, model_bytes, quantized
from shoal.quantization.scheme import Scheme
from shoal.training.evaluation import play
from shoal.waiting import Advance

if TYPE_CHECKING:
    from shoal.policies.torch_policy import TorchPolicy

STATES = 4096
"""At most this many states are kept for comparing actions."""
BINS = 61


@dataclass(frozen=True)
class Row:
    """The policy in one precision."""

    precision: str
    bits: int
    what: str
    """weights, activations, both; none: full precision; trained: quantization-aware training."""
    return_mean: float
    return_ci95: float
    relative_error: float | None
    """(full precision - this) / |full precision|; positive is worse."""
    equal_actions: float
    kl: float | None
    bytes: int
    """Of weights, scales, biases and normaliser."""
    file_bytes: int | None = None
    """Of the file that `shoal export` writes with these weights; None: it writes none."""
    corrected: bool = False
    """Biases are corrected."""
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
    rows: list[Row]
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
    """The settings of the rows."""

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
    """Further rows for every width below 16 bits: with these corrections."""

    @property
    def narrow(self) -> list[tuple[Width, What, Correction]]:
        """Every reduced precision, with what is quantized and corrected."""
        rows = []
        for what in self.what:
            for width in self.widths:
                if width.scheme is not None:
                    rows.append((width, what, NOTHING))
                    rows += [(width, what, how) for how in self.corrections if corrects(how, width.scheme, what)]
        return rows

    def plan(self, scheme: Scheme, what: What) -> Plan:
        """The plan of a row; activations have one scale per tensor, and a zero point in the standard style."""
        edge: Edge = (self.edges.scheme or "full") if self.edges else None
        inputs = dataclasses.replace(scheme, symmetric=False, per_channel=False)
        weights, activations = what != "activations", what != "weights"
        kinds = scheme if weights else None, inputs if activations else None
        return Plan(*kinds, edge, edge, self.dynamic, self.agents)


def corrects(correction: Correction, scheme: Scheme, what: What) -> bool:
    """Whether a correction changes such a row: 16 bits need none, and only integer weights are rounded to a grid."""
    by_output = correction.rounding == "output-error"
    return scheme.width < 16 and not (by_output and (what == "activations" or scheme.format is not None))


def chosen_corrections(correct_bias: bool, rounding: Rounding) -> tuple[Correction, ...]:
    """The corrections that these options ask for: biases alone, and with them the rounding if it is not to nearest."""
    asked = (BIAS,) if correct_bias else ()
    return asked if rounding == "nearest" else (*asked, Correction(correct_bias, rounding))


def sweep(policy: "TorchPolicy", wanted: WidthSweep, advance: Advance | None = None) -> WidthTable:
    """The policy in full precision, as trained (if with quantization), and in every reduced precision.

    Ctrl-C ends the table early: finished rows are kept.
    """
    check_range("episodes", wanted.episodes, 1, 10**7)
    check_network(policy)
    tell = advance or (lambda amount, doing: None)
    seen = Thinned(STATES)
    full = _played(policy, policy.network, wanted, tell, "float32", seen)
    states = seen.array()
    policy.notice(states, full[0])
    head = policy.outputs(states, policy.network)
    size = model_bytes(policy.played_network, Plan())
    row = _row(policy, "float32", 32, "none", full, full[0], head, head, size)
    rows = [dataclasses.replace(row, file_bytes=_file_bytes(policy, None, "weights", NOTHING))]
    failed = []
    try:
        for row in _narrow_rows(policy, wanted, tell, full[0], states, head):
            rows.append(row)
    except KeyboardInterrupt:
        count = plays(policy, wanted) // wanted.episodes
        failed.append(f"Interrupted: {len(rows)} of {count} rows are finished.")
    return WidthTable(
        policy.name,
        policy.env,
        wanted.episodes,
        wanted.seed,
        len(states),
        "dynamic" if wanted.dynamic else "calibrated",
        rows,
        weight_histograms(policy.network, policy.layer_names),
        failed,
        policy.algorithm,
        interrupted=bool(failed),
    )


def _narrow_rows(
    policy: "TorchPolicy",
    wanted: WidthSweep,
    tell: Advance,
    full: float,
    states: Array,
    head: Tensor,
) -> Iterator[Row]:
    if policy.trained is not None and policy.trained_bits is not None:
        bits = policy.trained_bits
        scheme = Scheme(bits, per_channel=True)
        stored = Plan(scheme, networks=policy.trained_agents)
        name, size = f"{bits} bits", model_bytes(policy.played_network, stored)
        played = _played(policy, policy.trained, wanted, tell, f"{name} (trained)")
        other = policy.outputs(states, policy.trained)
        row = _row(policy, name, bits, "trained", played, full, head, other, size)
        yield dataclasses.replace(row, file_bytes=_file_bytes(policy, scheme, "weights", NOTHING))
    ranges = calibrate(policy.network, lambda network: policy.head(network, states))
    visited = policy.visited() if any(how for *_, how in wanted.narrow) else None
    for width, what, how in wanted.narrow:
        assert width.scheme is not None
        plan = wanted.plan(width.scheme, what)
        run = None if visited is None else lambda network: policy.head(network, visited)
        network = quantized(policy.network, plan, _calibrated(ranges, plan), how, run)
        played = _played(policy, network, wanted, tell, f"{width.name}, {what}{', corrected' * bool(how)}")
        other, size = policy.outputs(states, network), model_bytes(policy.played_network, plan)
        row = _row(policy, width.name, width.bits, what, played, full, head, other, size)
        file = None if wanted.edges or wanted.agents else _file_bytes(policy, width.scheme, what, how)
        yield dataclasses.replace(row, corrected=how.bias, rounding=how.rounding, file_bytes=file)


def _file_bytes(policy: "TorchPolicy", scheme: Scheme | None, what: What, how: Correction) -> int | None:
    """Bytes of the file that `shoal export` writes for such a row; None if it has no precision for it or refuses."""
    one_agent = policy.trained is not None and policy.trained_agents is not None  # has one file per agent
    if one_agent or (found := _exported_as(scheme, what)) is None:
        return None
    try:
        options = ExportOptions(*found, correct_bias=how.bias, rounding=how.rounding)
        return predicted_bytes(policy.portable().check(), options, policy.export_facts())
    except UserError:  # a custom network can be quantized, but not every one can be exported
        return None


def _exported_as(scheme: Scheme | None, what: What) -> tuple[ExportPrecision, int | None] | None:
    """Precision and bits of the exported file that holds such weights."""
    if scheme is None:
        return "float32", None
    if scheme.format == "float16" and what == "weights":
        return "float16", None
    if scheme != Scheme(scheme.bits, per_channel=True) or what == "activations" or scheme.bits > 8:
        return None
    if scheme.bits == 8:
        return "int8", 8
    return ("packed", scheme.bits) if what == "weights" else None


def plays(policy: "TorchPolicy", wanted: WidthSweep) -> int:
    """How many episodes a sweep plays in all."""
    return wanted.episodes * (1 + (policy.trained is not None) + len(wanted.narrow))


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
    """The histogram of each layer."""
    layers = []
    for name, layer in zip(names, find_layers(network), strict=True):
        weight = layer.weight.detach().flatten().cpu().numpy()
        counts, edges = np.histogram(weight, BINS)
        low, high = float(edges[0]), float(edges[-1])
        mean, std = float(weight.mean()), float(weight.std())
        layers.append(WeightHistogram(name, list(layer.weight.shape), mean, std, low, high, counts.tolist()))
    return layers


def _played(
    policy: "TorchPolicy",
    network: nn.Module,
    wanted: WidthSweep,
    advance: Callable[[float, str], None],
    doing: str,
    seen: Thinned | None = None,
) -> tuple[float, float]:
    """Mean return and the half-width of its interval."""
    env = policy.make_env(min(wanted.episodes, policy.most_copies), wanted.seed)

    def act(observation: Array) -> Array:
        if seen is not None:
            seen.add(observation)
        return policy.actions(policy.outputs(observation, network))

    try:
        result = play(env, act, wanted.episodes, lambda count: advance(count, doing))
    finally:
        env.close()
    return result.mean, result.ci95


def _calibrated(ranges: Ranges, plan: Plan) -> Ranges | None:
    return None if plan.dynamic else ranges


def _row(
    policy: "TorchPolicy",
    name: str,
    bits: int,
    what: str,
    played: tuple[float, float],
    full: float,
    head: Tensor,
    other: Tensor,
    size: int,
) -> Row:
    equal = policy.equal(policy.actions(head), policy.actions(other))
    divergence = policy.divergence(head, other)
    return Row(
        name,
        bits,
        what,
        played[0],
        played[1],
        (full - played[0]) / abs(full) if full else None,
        float(equal.mean()),
        None if divergence is None else float(divergence.mean()),
        size + policy.overhead,
    )
