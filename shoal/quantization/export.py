"""A trained team as a policy, and a policy as an ONNX file that is validated before it is written.

The check compares the file with PyTorch on real states. Its measure is the mean error of an action: for a box as a
fraction of its width; for a choice how far its output is below the best one's, as a fraction of the outputs' spread.
Shape letters: B batch rows, N agents, O observation, A action, U outputs.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from shoal.algorithms.base import BaseTeam
from shoal.algorithms.native import NativeTeam
from shoal.errors import UserError
from shoal.inference.correction import NOTHING, Correction, calibrated, corrected
from shoal.inference.file import PolicyFile, sealed
from shoal.inference.form import Form, make_form, weight_bytes
from shoal.inference.graph import TINY, Facts, build, set_facts
from shoal.inference.layers import Array, Conv2d, Linear
from shoal.inference.options import ExportOptions, Rounding
from shoal.inference.policy import MASKED, Draws, Exploration, Head, Policy
from shoal.inference.runtime import audit
from shoal.networks.layout import network_numbers
from shoal.system.files import write_whole
from shoal.system.processors import has_vnni

TOLERANCES: dict[str, float] = {"float32": 1e-5, "float16": 2e-3, "int8": 0.03, "static-int8": 0.05}
"""Largest mean error of an action; 2 / 2^bits for packed weights."""
FEW = 32  # states that are also computed in plain numpy, and one at a time
OTHER_SUMS, OTHER_CODES = 1e-4, 0.05
"""Mean errors of outputs relative to the largest: from another summation order, and where that changes codes."""


def from_team(team: BaseTeam, sample: bool = False, one_agent: bool = False) -> Policy:
    """The policies that a team acts with; `sample` draws choices instead of taking the most likely.

    Layers trained with quantization are frozen to their grids: for all agents, even if only `one_agent` was.
    """
    spec, arrays, frozen = team.spec, team.rollout_arrays(), None
    if not isinstance(team, NativeTeam):  # only here torch is imported
        from shoal.algorithms.team import Team

        assert isinstance(team, Team)
        if team.rollout_actors.quantizers is not None:
            from shoal.quantization.qat import frozen_layers

            frozen = frozen_layers(team.rollout_actors, one_agent)
    layers = []
    for k, (weight, bias) in enumerate(zip(arrays[::2], arrays[1::2], strict=True)):
        last = 2 * (k + 1) == len(arrays)
        numbers = weight.copy(), bias[:, 0].copy()
        layers.append(Linear(*numbers, "none" if last else "relu", frozen[k] if frozen else None))
    if spec.discrete:
        if sample and team.kind == "values":
            raise UserError("A DQN plays its best choice and has no probabilities to sample from.")
        head = Head("categorical" if sample else "argmax")
    else:
        if sample:
            raise UserError("Only choices can be sampled by an exported policy; boxes are played without noise.")
        kind = "gaussian" if team.kind == "gaussian" else "box"
        head = Head(kind, "tanh", spec.action_low, spec.action_high)  # type: ignore[arg-type]
    one_hot = spec.observation_size if spec.whole_numbers else 0
    seen = (1,) * spec.agents if one_hot else spec.observation_sizes
    exploration = Exploration(team.exploration, team.hard, team.kind == "values")
    of = tuple(network_numbers(spec, team.config.shared_actors).tolist())
    return Policy(
        tuple(layers), head, seen, spec.action_sizes, spec.agent_names, team.normalisation.normaliser, one_hot=one_hot,
        exploration=exploration, network_of=of if len(set(of)) < len(of) else (), choices=spec.choices,
        masked=spec.masked,
    )  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """A file that was written, and the results of its checks."""

    path: str
    precision: str
    bits: int
    bytes: int
    """Of the whole file."""
    weight_bytes: int
    """Of weights, scales, biases and normaliser alone."""
    float32_bytes: int
    """Of the same in full precision."""
    float32_file_bytes: int
    """Of the file in full precision."""
    states: int
    error: float
    """Mean error of an action, comparable with `tolerance`."""
    error_max: float
    tolerance: float
    agreement: float | None
    """Share of identical choices; None where actions are boxes."""
    alone_equal: bool
    """Whether states get the same actions alone and in a batch."""
    int8_share: float
    """Share of the multiplications that ONNX Runtime runs in 8 bits."""
    nodes: dict[str, int]
    """The nodes that multiply, as ONNX Runtime runs them."""
    states_from: str = "given"
    """Source of the states that it was checked on."""
    corrected: bool = False
    """Biases were corrected on visited states."""
    rounding: Rounding = "nearest"


class Job(NamedTuple):
    """One file to be written."""

    policy: Policy
    path: Path
    states: Array  # (B, N, O)
    outputs: NDArray[Any]  # (B, N, U), as PyTorch computes them for the states
    visited: Array | None = None  # (B, N, O): other states, on which it is corrected


def jobs_of_agents(whole: Job, frozen_agent: int | None = None) -> list[Job]:
    """One file per agent. `frozen_agent`: the only one that stays on its grids; None: all do."""
    policy, path = whole.policy, whole.path
    names = [re.sub(r"[^\w.-]", "-", agent) for agent in policy.agent_names]  # what a file name can have
    paths = [path.with_name(f"{path.stem}-{name}{path.suffix}") for name in names]
    if len(set(paths)) < len(paths):
        raise UserError("Two agents of the team would share a file: their names differ only in special characters.")
    jobs = []
    for n, own_path in enumerate(paths):
        alone = replace(policy.of_agent(n), metadata=policy.metadata)
        if frozen_agent not in (None, n):
            alone = replace(alone, layers=tuple(replace(layer, quantized=None) for layer in alone.layers))
        part = np.s_[:, n : n + 1, : alone.observation_size]
        visited = None if whole.visited is None else whole.visited[part].copy()
        outputs = whole.outputs[:, n : n + 1, : alone.action_size]
        jobs.append(Job(alone, own_path, whole.states[part].copy(), outputs, visited))
    return jobs


def write(jobs: list[Job], options: ExportOptions, facts: Facts) -> list[Exported]:
    """Write all files of an export, or none if one of them does not play like PyTorch."""
    results = [checked(job, options, facts) for job in jobs]
    for exported, content in results:
        write_whole(Path(exported.path), content, "the policy")
    return [exported for exported, _ in results]


def checked(job: Job, options: ExportOptions, facts: Facts) -> tuple[Exported, bytes]:
    """A policy's file as bytes, checked to play like the original; a `UserError` if it does not. Writes nothing."""
    original = policy = job.policy.check().played()
    refuse_dead_layers(policy)
    refuse_other_network(policy, job)
    precision, states, visited = options.precision, job.states, job.visited
    form = make_form(policy, precision, options.bits, options.single)
    correction = correction_of(policy, options) if visited is not None else NOTHING
    if precision == "static-int8":
        ranges_from = np.concatenate([states, visited]) if correction and visited is not None else states
        policy = calibrated(policy, ranges_from, form.bits)
    if correction and visited is not None:
        policy = corrected(policy, visited, form.bits, correction, by_rows=precision == "int8")
    if precision == "float16":
        largest = max(float(np.abs(layer.weight).max()) for layer in policy.layers)
        if largest > float(np.finfo(np.float16).max):
            raise UserError(
                f"The policy has a weight of {largest:.3g}, but float16 reaches only 65504; choose another precision."
            )
    model = build(policy, form)
    content = model.SerializeToString()
    errors = _compare(policy, form, content, job)
    counted = audit(content, _positions(policy))
    measured = {
        "error": errors["error"], "agreement": errors["agreement"], "int8_share": counted.share, "states": len(states),
    }  # fmt: skip
    if correction and visited is not None:
        measured |= {"corrected_on": len(visited)}
    written = _sealed(model, policy, form, facts, correction, measured)
    full = Form("float32", alone=options.single)
    sizes = len(written), weight_bytes(policy, form), weight_bytes(policy, full), file_bytes(original, full, facts)
    tolerance = TOLERANCES.get(precision, 2.0 ** (1 - form.bits)) if options.tolerance is None else options.tolerance
    exported = Exported(
        str(job.path), precision, form.stored_bits, *sizes, len(states), tolerance=tolerance, **errors,
        int8_share=counted.share, nodes=counted.nodes, states_from=facts.get("states_from", "given"),
        corrected=correction.bias, rounding=correction.rounding,
    )  # fmt: skip
    refuse_if_wrong(exported)
    return exported, written


def correction_of(policy: Policy, options: ExportOptions) -> Correction:
    """What is corrected: nothing of a policy trained with quantization, whose biases were learnt on its own grids."""
    return NOTHING if any(layer.quantized for layer in policy.layers) else options.correction


def predicted_bytes(policy: Policy, options: ExportOptions, facts: Facts) -> int:
    """Bytes of the file that `checked` makes, whatever the weights; not of static-int8."""
    form = make_form(policy, options.precision, options.bits)
    return file_bytes(policy, form, facts, correction_of(policy, options))


def file_bytes(policy: Policy, form: Form, metadata: Facts, correction: Correction = NOTHING) -> int:
    """Bytes of a policy's file in this form."""
    policy = policy.played()
    return len(_sealed(build(policy, form), policy, form, metadata, correction, {}))


def _sealed(
    model: ModelProto, policy: Policy, form: Form, metadata: Facts, correction: Correction, measured: Facts
) -> bytes:
    facts = {"scheme": ARITHMETIC[form.precision], "vnni": has_vnni(), **metadata}
    if correction:
        facts |= {"bias_corrected": correction.bias, "rounding": correction.rounding}
    set_facts(model, policy, form, facts, measured)
    return sealed(model.SerializeToString())


ARITHMETIC = {
    "float32": "float32 weights and arithmetic",
    "float16": "float16 weights, float32 arithmetic",
    "int8": "weights symmetric, one scale per output channel; layer inputs dynamic per row, 8 bits with a zero point",
    "static-int8": "weights symmetric, one scale per output channel; layer inputs on frozen grids with a zero point",
    "packed": "weights symmetric, one scale per output channel, packed; float32 arithmetic",
}


def refuse_dead_layers(policy: Policy) -> None:
    """Refuse a layer of zeros: the policy would give the same action for every state."""
    for k, layer in enumerate(policy.layers, 1):
        weights = layer.weight if isinstance(layer, Linear) else layer.weight[None]
        for agents, weight in zip(policy.members, weights, strict=True):
            if not weight.any():
                raise UserError(
                    f"Layer {k} of '{policy.agent_names[agents[0]]}' has only zero weights: the policy would act the "
                    "same in every state; train it first."
                )


def refuse_other_network(policy: Policy, job: Job) -> None:
    """Check that the described layers reproduce the original's outputs: it may compute more than they do."""
    if not np.isfinite(job.outputs).all():
        raise UserError("The original policy outputs NaN or infinity for a state that it visits: it is not exported.")
    expected = job.outputs[:FEW, :, : policy.action_size]
    legal = expected > MASKED / 2
    expected, outputs = expected[legal], policy.outputs(job.states[:FEW], np.float32)[legal]
    wrong = np.abs(outputs - expected).mean() / max(np.abs(expected).max(), TINY)
    if wrong > (OTHER_CODES if policy.grids else OTHER_SUMS):
        raise UserError(
            f"'{job.path}' was not written: the policy's layers in sequence give other outputs than PyTorch, so "
            "it computes something between them (a function, a branch) that cannot be exported."
        )


def refuse_if_wrong(exported: Exported) -> None:
    """Raise a `UserError` for an export that does not play like its original."""
    if not exported.error <= exported.tolerance:
        raise UserError(
            f"'{exported.path}' was not written: with {exported.precision} the actions are wrong by "
            f"{exported.error:.3g} on average, but at most {exported.tolerance:.3g} is allowed "
            "(`tolerance` allows more)."
        )
    if not exported.alone_equal:
        raise UserError(f"'{exported.path}' was not written: a state gets different actions alone and in a batch.")
    if exported.precision.endswith("int8") and exported.int8_share < 0.5:
        raise UserError(
            f"'{exported.path}' was not written: only {exported.int8_share:.0%} of its products would run in 8 bits."
        )


def _positions(policy: Policy) -> tuple[int, ...]:
    """The number of output positions of each convolution."""
    sides: tuple[int, ...] = (policy.image or ())[1:]
    positions = []
    for layer in policy.layers:
        if isinstance(layer, Conv2d):
            sides = layer.places(sides)
            positions.append(math.prod(sides))
    return tuple(positions)


def _compare(policy: Policy, form: Form, model: bytes, job: Job) -> dict[str, Any]:
    """Errors of the file's actions for the states, compared with the original's outputs."""
    file, states, outputs = PolicyFile(job.path, content=model), job.states, job.outputs
    noise = Draws(0).uniform((len(states), policy.agents, policy.action_size))
    few = min(FEW, len(states))
    alone = np.concatenate([file.act(states[b : b + 1], noise[b : b + 1]) for b in range(few)])
    actions = file.act(states, noise)
    if not policy.head.discrete and not np.isfinite(actions).all():
        raise UserError("The exported policy outputs NaN or infinity for a state that it visits; choose more bits.")
    expected = policy.act_on(outputs, noise)
    errors = _errors(policy, actions, expected, outputs, noise)
    together = actions[:few]
    if form.precision == "int8":
        equal = np.array_equal(alone, together)
    elif policy.head.discrete:  # up to the summation order of floating-point products of another shape
        equal = float((alone == together).mean()) > 0.95
    else:
        equal = np.allclose(alone, together, rtol=1e-3, atol=1e-3 * float(np.ptp(together) or 1))
    return {
        "error": float(errors.mean()),
        "error_max": float(errors.max()),
        "agreement": float((actions == expected).mean()) if policy.head.discrete else None,
        "alone_equal": equal,
    }


def _errors(
    policy: Policy, actions: NDArray[Any], expected: NDArray[Any], outputs: NDArray[Any], noise: Array
) -> NDArray[Any]:
    """(B, N): the error of each action, from 0 to 1."""
    if not policy.head.discrete:
        real = policy.mask == 0  # (N, A)
        if policy.head.low is not None and policy.head.high is not None:
            width = policy.head.high - policy.head.low
        else:
            width = np.ptp(expected, axis=0)
        width = np.where(real & (width > 0), width, 1)
        return (np.abs(actions - expected) / width * real).sum(-1) / real.sum(-1)
    outputs = outputs[..., : policy.action_size].astype(np.float64)
    if policy.head.kind == "categorical":
        outputs = outputs - np.log(-np.log(noise.astype(np.float64)))
    outputs = outputs + policy.mask
    lowest = np.where(outputs > MASKED / 2, outputs, np.inf).min(-1)
    best = outputs.max(-1)
    chosen = np.take_along_axis(outputs, actions[..., None], -1)[..., 0]
    spread = best - lowest
    return np.where(spread > 0, (best - chosen) / np.where(spread > 0, spread, 1), 0)


# ---- in words -------------------------------------------------------------------------------------------------------


def correction_words(bias: bool, rounding: str) -> str:
    """What was corrected, in words."""
    parts = ["bias"] * bias + ["rounding"] * (rounding != "nearest")
    return " and ".join(parts) or "–"


def no_smaller(precision: str, bits: int, file: int, weights: int, float32: int) -> str:
    """The sentence about a file that saves nothing."""
    name = f"{bits}-bit packed" if precision == "packed" else precision
    return (
        f"The {name} file ({file:,} bytes, {weights:,} of them weights) is not smaller than the float32 one "
        f"({float32:,} bytes): for a network this small, graph and metadata decide."
    )
