"""One policy at many widths: what it still gets, what it still does, and what it weighs.

Every row plays the same episodes from the same starts. Actions are compared on the same states: those that the policy
met in full precision, which are also what ranges of activations are calibrated on.
Shape letters: E copies, B rows, N agents, O observation, A action, U outputs.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.algorithms.team import threads_for
from shoal.envs.base import VectorEnv
from shoal.errors import UserError, check_range
from shoal.quantization.affine import Scheme
from shoal.quantization.layers import check_weights, find_layers
from shoal.quantization.ptq import Edge, Plan, Ranges, calibrate, model_bytes, quantized
from shoal.training.play import play

What = Literal["weights", "activations", "both"]
WHAT: tuple[What, ...] = ("weights", "activations", "both")
STATES = 4096
"""At most this many states are kept for comparing actions."""
BINS = 61


class Subject(Protocol):
    """A policy and where it plays."""

    name: str
    env: str
    network: nn.Module
    """What is quantized, in full precision."""
    trained: nn.Module | None
    """The same as quantization-aware training left it."""
    trained_bits: int | None
    trained_networks: tuple[int, ...] | None
    """Which agents were trained with these bits; None: all."""
    most_copies: int
    layer_names: tuple[str, ...]
    overhead: int
    """Bytes of what is not quantized and no parameter: the normaliser."""

    def make_env(self, copies: int, seed: int) -> VectorEnv:
        """Copies of its world, found to fit the policy."""
        ...

    def head(self, network: Any, observation: NDArray[np.float32]) -> Tensor:
        """(B, N, U): the network's outputs for raw observations (B, N, O)."""
        ...

    def actions(self, head: Tensor) -> NDArray[np.float32]:
        """(B, N, A): the most likely actions, in the world's units."""
        ...

    def equal(self, actions: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.bool_]:
        """(B, N): where the actions are as good as the same."""
        ...

    def divergence(self, head: Tensor, other: Tensor) -> Tensor | None:
        """(B, N): KL of the action distributions, from the first to the second; None where there are none."""
        ...


@dataclass(frozen=True)
class Precision:
    """A column entry of the table: how numbers are kept, under the name that was asked for."""

    name: str
    scheme: Scheme | None
    """None: float32."""

    @property
    def bits(self) -> int:
        """Bits of one number."""
        return 32 if self.scheme is None else self.scheme.width


@dataclass(frozen=True)
class Row:
    """What the policy comes to in one precision."""

    precision: str
    bits: int
    what: str
    """weights, activations, both; none: full precision; trained: as quantization-aware training left it."""
    return_mean: float
    return_ci95: float
    relative_error: float | None
    """(full precision - this) / |full precision|: above 0 it is worse."""
    equal_actions: float
    kl: float | None
    bytes: int


@dataclass(frozen=True)
class Found:
    """The table of a policy, and how its weights are spread."""

    subject: str
    env: str
    episodes: int
    seed: int
    states: int
    ranges: str
    rows: list[Row]
    layers: list[dict[str, Any]]
    failed: list[str]
    """Why rows are missing, a sentence each."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Sweep:
    """What the rows are."""

    precisions: tuple[Precision, ...]
    what: tuple[What, ...] = ("weights", "both")
    edges: Precision | None = None
    """Another precision for the first and the last layer."""
    dynamic: bool = False
    """Ranges of activations from each row as it comes, instead of from calibration."""
    episodes: int = 100
    seed: int = 1
    networks: tuple[int, ...] | None = None
    """Which agents of a team are quantized; None: all."""

    @property
    def narrow(self) -> list[tuple[Precision, What]]:
        """Every precision but the full one, with what has it."""
        return [(precision, what) for what in self.what for precision in self.precisions if precision.scheme]

    def plan(self, scheme: Scheme, what: What) -> Plan:
        """What is quantized in a row; activations have one scale a tensor, and a zero point in the standard style."""
        edge: Edge = (self.edges.scheme or "full") if self.edges else None
        inputs = dataclasses.replace(scheme, symmetric=False, per_channel=False)
        weights, activations = what != "activations", what != "weights"
        kinds = scheme if weights else None, inputs if activations else None
        return Plan(*kinds, edge, edge, self.dynamic, self.networks)


def sweep(subject: Subject, wanted: Sweep, advance: Callable[[float, str], None] | None = None) -> Found:
    """The policy in full precision, as it was trained if that was with quantization, and in every narrow precision.

    Ctrl-C ends the table early: the rows before it are kept.
    """
    check_range("--episodes", wanted.episodes, 1, 10**7)
    check_network(subject)
    tell = advance or (lambda amount, doing: None)
    seen = _States()
    full = _played(subject, subject.network, wanted, tell, "float32", seen)
    states = seen.array()
    head = _head(subject, subject.network, states)
    rows = [_row(subject, "float32", 32, "none", full, full[0], head, head, model_bytes(subject.network, Plan()))]
    failed = []
    try:
        for row in _narrow_rows(subject, wanted, tell, full[0], states, head):
            rows.append(row)
    except KeyboardInterrupt:
        count = plays(subject, wanted) // wanted.episodes
        failed.append(f"Interrupted: {len(rows)} of {count} rows are finished.")
    return Found(
        subject.name,
        subject.env,
        wanted.episodes,
        wanted.seed,
        len(states),
        "dynamic" if wanted.dynamic else "calibrated",
        rows,
        weight_histograms(subject.network, subject.layer_names),
        failed,
    )


def _narrow_rows(
    subject: Subject,
    wanted: Sweep,
    tell: Callable[[float, str], None],
    full: float,
    states: NDArray[np.float32],
    head: Tensor,
) -> Iterator[Row]:
    if subject.trained is not None and subject.trained_bits is not None:
        bits = subject.trained_bits
        stored = Plan(Scheme(bits, per_channel=True), networks=subject.trained_networks)
        name, size = f"{bits} bits", model_bytes(subject.network, stored)
        played = _played(subject, subject.trained, wanted, tell, f"{name} (trained)")
        other = _head(subject, subject.trained, states)
        yield _row(subject, name, bits, "trained", played, full, head, other, size)
    ranges = calibrate(subject.network, lambda network: subject.head(network, states))
    for precision, what in wanted.narrow:
        assert precision.scheme is not None
        plan = wanted.plan(precision.scheme, what)
        network = quantized(subject.network, plan, _calibrated(ranges, plan))
        played = _played(subject, network, wanted, tell, f"{precision.name}, {what}")
        other, size = _head(subject, network, states), model_bytes(subject.network, plan)
        yield _row(subject, precision.name, precision.bits, what, played, full, head, other, size)


def plays(subject: Subject, wanted: Sweep) -> int:
    """How many episodes a sweep plays in all."""
    return wanted.episodes * (1 + (subject.trained is not None) + len(wanted.narrow))


def check_network(subject: Subject) -> None:
    """Refuse weights that are no numbers, and layers that let nothing through."""
    check_weights(subject.network)
    for name, layer in zip(subject.layer_names, find_layers(subject.network), strict=True):
        axes = [axis for axis in range(layer.weight.dim()) if axis not in layer.networks]
        alive = layer.weight.detach().abs().amax(axes).flatten() > 0
        if not bool(alive.all()):
            whose = f" of network {int(torch.argmin(alive.int()))}" if layer.networks else ""
            raise UserError(
                f"Layer '{name}'{whose} has only zero weights: the policy does the same whatever it sees, "
                "in any precision; train it first."
            )


def weight_histograms(network: nn.Module, names: Sequence[str]) -> list[dict[str, Any]]:
    """How each layer's weights are spread: counts in bins between the smallest and the largest."""
    layers = []
    for name, layer in zip(names, find_layers(network), strict=True):
        weight = layer.weight.detach().flatten().cpu().numpy()
        counts, edges = np.histogram(weight, BINS)
        layers.append(
            {
                "layer": name,
                "shape": list(layer.weight.shape),
                "mean": float(weight.mean()),
                "std": float(weight.std()),
                "low": float(edges[0]),
                "high": float(edges[-1]),
                "counts": counts.tolist(),
            }
        )
    return layers


class _States:
    """States as they are met; when there are too many, every second one is let go, and from then on not taken."""

    def __init__(self) -> None:
        self.rows: list[NDArray[np.float32]] = []  # each (N, O)
        self.stride = self.met = 0

    def add(self, observation: NDArray[np.float32]) -> None:
        """Take what is due of (E, N, O)."""
        for row in observation:
            if self.met % max(self.stride, 1) == 0:
                self.rows.append(row.copy())
                if len(self.rows) > STATES:
                    self.rows, self.stride = self.rows[::2], 2 * max(self.stride, 1)
            self.met += 1

    def array(self) -> NDArray[np.float32]:
        """(B, N, O)."""
        return np.stack(self.rows)


def _played(
    subject: Subject,
    network: nn.Module,
    wanted: Sweep,
    advance: Callable[[float, str], None],
    doing: str,
    seen: _States | None = None,
) -> tuple[float, float]:
    """Mean return and the half-width of its interval."""
    env = subject.make_env(min(wanted.episodes, subject.most_copies), wanted.seed)

    def act(observation: NDArray[np.float32]) -> NDArray[np.float32]:
        if seen is not None:
            seen.add(observation)
        return subject.actions(_head(subject, network, observation))

    try:
        result = play(env, act, wanted.episodes, lambda count: advance(count, doing))
    finally:
        env.close()
    return result.mean, result.ci95


@torch.inference_mode()
def _head(subject: Subject, network: nn.Module, observation: NDArray[np.float32]) -> Tensor:
    weights = sum(parameter.numel() for parameter in network.parameters())
    with threads_for(len(observation) * weights):
        head = subject.head(network, observation)
    if not bool(torch.isfinite(head).all()):
        raise UserError("The policy gives NaN or infinity for a state that it meets: it cannot be compared.")
    return head


def _calibrated(ranges: Ranges, plan: Plan) -> Ranges | None:
    return None if plan.dynamic else ranges


def _row(
    subject: Subject,
    name: str,
    bits: int,
    what: str,
    played: tuple[float, float],
    full: float,
    head: Tensor,
    other: Tensor,
    size: int,
) -> Row:
    equal = subject.equal(subject.actions(head), subject.actions(other))
    divergence = subject.divergence(head, other)
    return Row(
        name,
        bits,
        what,
        played[0],
        played[1],
        (full - played[0]) / abs(full) if full else None,
        float(equal.mean()),
        None if divergence is None else float(divergence.mean()),
        size + subject.overhead,
    )
