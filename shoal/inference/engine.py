"""The interface of inference engines, and choosing the fastest one by a short measurement."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError, check_choice, check_range
from shoal.inference.layers import Array, Conv2d
from shoal.inference.policy import Actions, Draws, Policy

EngineName = Literal["auto", "numba", "native", "onnx"]
EnginePrecision = Literal["auto", "float32", "float16", "int8"]
KINDS: tuple[tuple[str, str], ...] = (
    ("numba", "float32"), ("onnx", "float32"), ("onnx", "float16"), ("native", "int8"), ("onnx", "int8"),
)  # fmt: skip
"""Every engine with each precision it supports."""
NUMBA_LARGEST = 1_000_000  # parameters; beyond this its plain loops are so slow that measuring them wastes time
NATIVE_INPUTS = 2**16  # of a layer: sums of 255 · 127 stay within 32 bits
NO_NOISE = np.zeros((0, 1, 0), np.float32)
SECONDS, LEAST, NEAR = 0.05, 5, 1.05
"""When choosing an engine: seconds, minimum calls, and the ratio of times that counts as equal."""


class Engine(Protocol):
    """Runs a policy: `act` maps raw observations (B, N, O) to the environment's actions.

    The returned array belongs to the engine: the next call with the same batch size overwrites it.
    """

    name: str
    precision: str

    @property
    def nbytes(self) -> int:
        """Bytes of the weights as the engine stores them."""

    def act(self, observation: Array, noise: Array | None = None) -> Actions:
        """Choices (B, N), or boxes (B, N, A); a sampling policy takes noise (B, N, A), or draws its own."""

    def load(self, policy: Policy) -> None:
        """Replace the weights by others of the same shapes."""


def check_observation(policy: Policy, observation: NDArray[Any]) -> None:
    """Raise a `UserError` unless the observation is (B, N, O) with at least one row."""
    n, size = policy.agents, policy.observation_size
    if observation.ndim != 3 or observation.shape[1:] != (n, size) or not len(observation):
        raise UserError(
            f"The observation has the shape {observation.shape}, but the policy takes (batch, {n}, {size}): "
            "batch, agents, observation."
        )


def check_noise(policy: Policy, noise: NDArray[Any], batch: int, size: int | None = None) -> None:
    """Raise a `UserError` unless the noise is (B, N, A), or (B, N, size)."""
    expected = (batch, policy.agents, policy.action_size if size is None else size)
    if noise.shape != expected:
        raise UserError(f"The noise has the shape {noise.shape}, but the policy takes {expected}.")


class CompiledEngine(ABC):
    """What engines in compiled code share: one call plays a batch, into arrays that are kept for its size."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._draws = Draws()
        self._actions: dict[int, tuple[NDArray[np.int64], Array]] = {}

    @abstractmethod
    def play(self, observation: Array, noise: Array, choices: NDArray[np.int64], boxes: Array) -> None:
        """Write the actions for float32 observations in C order; noise is empty if the policy samples none."""

    def act(self, observation: Array, noise: Array | None = None) -> Actions:
        """The environment's actions for raw observations (B, N, O)."""
        policy, batch = self.policy, len(observation)
        choices, boxes = self._actions.get(batch) or self._new_actions(observation)
        if observation.dtype != np.float32 or not observation.flags.c_contiguous:
            observation = np.ascontiguousarray(observation, np.float32)
        if observation.shape[1:] != (policy.agents, policy.observation_size):
            check_observation(policy, observation)
        if policy.head.kind != "categorical":
            noise = NO_NOISE
        elif noise is None:
            noise = self._draws.uniform((batch, policy.agents, policy.action_size))
        else:
            check_noise(policy, noise, batch)
            noise = np.ascontiguousarray(noise, np.float32)
        self.play(observation, noise, choices, boxes)
        return choices if policy.head.discrete else boxes

    def _new_actions(self, observation: Array) -> tuple[NDArray[np.int64], Array]:
        """Choices (B, N) and boxes (B, N, A), those empty that the policy does not have."""
        policy, batch = self.policy, len(observation)
        check_observation(policy, observation)
        choices = np.zeros((batch if policy.head.discrete else 0, policy.agents), np.int64)
        boxes = np.zeros((0 if policy.head.discrete else batch, policy.agents, policy.action_size), np.float32)
        self._actions[batch] = choices, boxes
        return choices, boxes


def refuse_grids(policy: Policy, engine: str) -> None:
    """Raise a `UserError` for a policy with frozen input grids, which only ONNX Runtime supports."""
    if policy.grids:
        raise UserError(f"The {engine} engine does not support frozen input grids, but the policy has them; use onnx.")


def frame_of(policy: Policy) -> tuple[NDArray[Any], NDArray[Any], float, NDArray[Any], NDArray[Any]]:
    """Mean and deviation (N, O) of observations, their clip, low and high (N, A); neutral where the policy has none."""
    n, size = policy.agents, policy.observation_size
    mean, deviation, clip = np.zeros((n, size)), np.ones((n, size)), np.inf
    if (norm := policy.normaliser) is not None:
        mean, deviation, clip = norm.mean.astype(float), norm.deviation, norm.clip
    ends = policy.head.low, policy.head.high
    low, high = (np.zeros((n, policy.action_size)) if end is None else end for end in ends)
    return mean, deviation, clip, low, high


def fitting(old: Policy, new: Policy) -> Policy:
    """The new policy, ready to play; a `UserError` if its weights do not fit in place of the old one's."""
    new = new.check().played()
    if _shapes(old) != _shapes(new):
        raise UserError("The new weights belong to a policy with different layers; create a new engine for it.")
    return new


def _shapes(policy: Policy) -> tuple[Any, ...]:
    """What is the same for all versions of a policy's weights."""
    layers = [
        (layer.weight.shape, layer.activation, (layer.stride, layer.padding) if isinstance(layer, Conv2d) else ())
        for layer in policy.layers
    ]
    sizes = policy.observation_sizes, policy.action_sizes, policy.one_hot, policy.image
    return layers, policy.head.kind, policy.network_of, policy.masked, *sizes


def besides_weights(policy: Policy) -> tuple[Any, ...]:
    """All that acting depends on besides weights, to be compared: normaliser, action bounds, input grids."""
    head, norm = policy.head, policy.normaliser
    arrays = [head.low, head.high, *((norm.mean, norm.var) if norm else ())]
    arrays += [array for grid in policy.grids for array in (grid.scale, grid.zero_point)]
    settings = head.squash, policy.scale_image, norm and (norm.epsilon, norm.clip), [grid.bits for grid in policy.grids]
    return *settings, [None if array is None else array.tobytes() for array in arrays]


def make_engine(
    policy: Policy, name: EngineName = "auto", precision: EnginePrecision = "float32", threads: int = 1, batch: int = 1
) -> Engine:
    """An engine for this policy, optimised for batches of this size (it accepts any).

    "auto" for the name, the precision or both measures the candidates and takes the fastest.
    """
    check_choice("The engine", name, ("auto", "numba", "native", "onnx"))
    check_choice("The precision", precision, ("auto", "float32", "float16", "int8"))
    check_range("threads", threads, 1, 1024)
    check_range("batch", batch, 1, 2**20)
    policy.check()
    if policy.choices:
        raise UserError("Engines support one choice or one box per agent, but the policy has several choices, or both.")
    wanted = [kind for kind in KINDS if name in ("auto", kind[0]) and precision in ("auto", kind[1])]
    if not wanted:
        raise UserError(f"The engine '{name}' does not support the precision '{precision}'; the onnx engine does.")
    if len(wanted) > 1:
        runs = {"numba": runs_in_numba(policy), "native": runs_in_native(policy), "onnx": True}
        wanted = [kind for kind in wanted if runs[kind[0]]]
    engines = [_make(policy, kind, threads, batch) for kind in wanted]
    return engines[0] if len(engines) == 1 else fastest(engines, policy, batch)


def runs_in_numba(policy: Policy) -> bool:
    """Whether the numba kernel is a candidate at all."""
    return policy.linear_only and policy.parameters <= NUMBA_LARGEST and not policy.grids


def runs_in_native(policy: Policy) -> bool:
    """Whether the native int8 engine is a choice at all."""
    widest = max(layer.weight.shape[1] for layer in policy.layers)
    return policy.linear_only and widest <= NATIVE_INPUTS and not policy.grids


def _make(policy: Policy, kind: tuple[str, str], threads: int, batch: int) -> Engine:
    if kind[0] == "numba":
        from shoal.inference.numba_engine import NumbaEngine

        return NumbaEngine(policy)
    if kind[0] == "native":
        from shoal.inference.native_engine import NativeEngine

        return NativeEngine(policy)
    from shoal.inference.onnx_engine import OnnxEngine

    return OnnxEngine(policy, kind[1], threads, batch)


def _calls(call: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of consecutive calls, at least one."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def fastest(engines: list[Engine], policy: Policy, batch: int, seconds: float = SECONDS) -> Engine:
    """The engine with the fastest call, or an earlier one that is about as fast.

    Engines take turns of many consecutive calls until the time is up, so each runs with its own weights in the caches.
    The fastest call counts, not the median: other programs can only make a call slower.
    """
    observation = np.random.default_rng(0).random((batch, policy.agents, policy.observation_size), np.float32)
    times: list[list[float]] = [[] for _ in engines]
    end = time.perf_counter() + seconds
    turn = seconds / (3 * len(engines))
    while time.perf_counter() < end or len(times[0]) < LEAST:
        for engine, seconds_of in zip(engines, times, strict=True):
            call = partial(engine.act, observation)
            call()
            call()
            seconds_of += _calls(call, turn)
    close = NEAR * min(map(min, times))
    return next(engine for engine, seconds_of in zip(engines, times, strict=True) if min(seconds_of) <= close)
