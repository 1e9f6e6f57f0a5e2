"""A trained policy as one ONNX file, or one per agent, each checked against PyTorch before any is written."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal import __version__
from shoal.errors import UserError
from shoal.inference.correction import NOTHING, Correction, Rounding
from shoal.inference.form import CODED, ExportPrecision
from shoal.inference.policy import Policy
from shoal.policies.trained import Array
from shoal.quantization.export import Exported, checked, each_agent, file_bytes, make_form, raw_states
from shoal.system.files import write_whole

if TYPE_CHECKING:
    from shoal.policies.torch_policy import StatesFrom, TorchPolicy


@dataclass(frozen=True)
class Wanted:
    """Options of an export; `TorchPolicy.export` documents them."""

    precision: ExportPrecision = "float32"
    bits: int | None = None
    single: bool = False
    sample: bool = False
    tolerance: float | None = None
    seed: int = 0
    each: bool = False
    """One file per agent."""
    correct_bias: bool = True
    rounding: Rounding = "nearest"

    @property
    def correction(self) -> Correction:
        """What is corrected: only codes are."""
        coded = self.precision in CODED
        if not coded and self.rounding != "nearest":
            raise UserError(f"--rounding {self.rounding} is for int8, static-int8 and packed, not {self.precision}.")
        return Correction(self.correct_bias and coded, self.rounding)


class Job(NamedTuple):
    """One file to be written."""

    policy: Policy
    path: Path
    states: Array  # (B, N, O)
    outputs: NDArray[np.floating]  # (B, N, U), as PyTorch computes them for the states
    visited: Array | None = None
    """(B, N, O): other states, on which it is corrected."""


def export(trained: "TorchPolicy", path: str | Path, wanted: Wanted) -> list[Exported]:
    """Write the policy's files, or none if one of them does not play like PyTorch."""
    trained.portable(wanted.sample, wanted.each)  # reports what is wrong before anything is played
    visited = trained.visited() if wanted.correction else None
    states, source = trained.states(wanted.seed)
    return write(make_jobs(trained, Path(path), states, wanted, visited), wanted, trained.name, source)


def make_jobs(
    trained: "TorchPolicy", path: Path, states: Array, wanted: Wanted, visited: Array | None = None
) -> list[Job]:
    """The policy in one file, or one per agent."""
    policy = trained.portable(wanted.sample, wanted.each)
    outputs, states = trained.outputs(states).numpy(), raw_states(policy, states)
    visited = None if visited is None else raw_states(policy, visited)
    if not wanted.each:
        return [Job(policy, path, states, outputs, visited)]
    only = trained.trained_agents[0] if trained.trained is not None and trained.trained_agents else None
    names = [path.with_name(f"{path.stem}-{file_name(agent)}{path.suffix}") for agent in policy.agent_names]
    if len(set(names)) < len(names):
        raise UserError("Two agents of the team would share a file: their names differ only in special characters.")
    return [
        Job(
            alone,
            names[n],
            states[:, n : n + 1, : alone.observation_size].copy(),
            outputs[:, n : n + 1, : alone.action_size],
            None if visited is None else visited[:, n : n + 1, : alone.observation_size].copy(),
        )
        for n, alone in enumerate(each_agent(policy, only))
    ]


def predicted_bytes(trained: "TorchPolicy", wanted: Wanted) -> int:
    """Bytes of the file that `export` would write; not of static-int8, nor with one file per agent."""
    policy = trained.portable().check()
    form = make_form(policy, wanted.precision, wanted.bits)
    learnt = any(layer.quantized for layer in policy.layers)
    return file_bytes(policy, form, _facts(trained.name, "played"), NOTHING if learnt else wanted.correction)


def _facts(exported_from: str, states_from: "StatesFrom") -> dict[str, str]:
    return {"shoal_version": __version__, "exported_from": exported_from, "states_from": states_from}


def write(jobs: list[Job], wanted: Wanted, exported_from: str, states_from: "StatesFrom") -> list[Exported]:
    """Write all files of an export, once all are checked against PyTorch."""
    facts = _facts(exported_from, states_from)
    how = wanted.bits, wanted.single, wanted.tolerance, facts, wanted.correction
    found = [
        checked(job.policy, job.path, wanted.precision, job.states, job.outputs, *how, job.visited) for job in jobs
    ]
    for job, (_, content) in zip(jobs, found, strict=True):
        write_whole(job.path, content, "the policy")
    return [replace(exported, states_from=states_from) for exported, _ in found]


def file_name(agent: str) -> str:
    """An agent's name without characters that a file name cannot have."""
    return "".join(letter if letter.isalnum() or letter in "_-." else "-" for letter in agent)
