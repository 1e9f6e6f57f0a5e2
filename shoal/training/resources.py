"""What a run takes of the machine: device, threads and memory."""

import dataclasses
import os
from typing import TYPE_CHECKING

from shoal.algorithms.base import heads, network_weights
from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.native.maddpg import CHUNK, copies_of_weights
from shoal.networks.layout import network_numbers
from shoal.runs.threads import PRODUCTS_PER_THREAD, set_torch_threads
from shoal.system.memory import check_fits
from shoal.system.processors import check_threads, usable_processors
from shoal.training.config import TrainConfig

if TYPE_CHECKING:
    import torch

SAVED, TORCH, REFERENCE, SCHEME = 9, 10, 17, 18
"""How often all weights of a team are in memory while a checkpoint is saved: beside what learns in native code, and in
all with torch, in the reference, and in a scheme. Measured by peak memory, with two layers of 600 to 3000 neurons, as
8.6, 10.0, 16.5 and 18.0 at most; schemes differ (bf16 11.4, bm8 18.0)."""


def use_threads(config: TrainConfig, spec: EnvSpec) -> int:
    """Set the number of threads: as configured, or torch's by the size of the work and numba's to all there are.

    Returns the number of threads that wait for each other: torch's, or 1 where native code learns.

    Torch's threads wait for each other after every operation, which is slow if another program occupies a CPU; numba's
    split whole steps and mini-batches. The default does not depend on the current load, so it is reproducible.
    """
    import numba

    if config.threads is not None:
        check_threads(config.threads)
    numba.set_num_threads(min(config.threads or usable_processors(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    if config.update == "native":
        return 1
    threads = config.threads or default_threads(config, spec)
    set_torch_threads(threads)
    return threads


def native_threads(config: TrainConfig) -> int:
    """Threads of the native update: as configured, or all; none of them is ever waited for."""
    return config.threads or usable_processors()


def default_threads(config: TrainConfig, spec: EnvSpec) -> int:
    """One thread per `PRODUCTS_PER_THREAD` of an update, at least one, at most as many CPUs as the process may use."""
    set_by_user = os.environ.get("OMP_NUM_THREADS", "")
    most = min(usable_processors(), int(set_by_user)) if set_by_user.isdecimal() else usable_processors()
    if config.device != "cpu":
        return max(1, most)
    actors, critics = network_weights(spec, dataclasses.replace(config, share="none"))
    minibatches = 1 if config.minibatch == "shared" else spec.agents
    if config.shared_critics and config.critic == "joint" and minibatches == 1:  # one first layer per kind
        joint = spec.agents * (spec.observation_size + spec.action_size)
        critics -= (spec.agents - len(set(spec.kinds))) * heads(config) * joint * config.critic_layers[0]
    products = 6 * config.batch * (minibatches * actors + critics)  # about six per weight and row
    return max(1, min(most, products // PRODUCTS_PER_THREAD))


def make_device(name: str) -> "torch.device":
    """The torch device of this name, if it exists and works."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"`device` '{name}' is not a torch device; use e.g. cpu, cuda or cuda:1.") from None
    try:
        torch.zeros(1, device=device).cpu()
        torch.Generator(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(";")[0].rstrip(".")[:120]
        raise UserError(f"`device` '{name}' cannot be used here ({reason}); 'cpu' always works.") from None
    return device


def update_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Approximate peak memory of acting and updating, without the world and the ring.

    It is reached when a checkpoint is saved: all that learning takes, and the state as arrays and as serialized bytes.
    """
    passed = spec.agents * (2 * sum(config.hidden) + spec.observation_size + 8 * spec.action_size)  # actors, one row
    seen = 5 * spec.agents * spec.observation_size  # by the policies; the world keeps four steps of views
    act = config.copies * (passed + seen)
    weights = network_weights(spec, config)
    if config.update != "torch" and config.why_torch(spec) is None:
        each = copies_of_weights(spec, config, native_threads(config))
        stored = sum((SAVED + copies) * numbers for copies, numbers in zip(each, weights, strict=True))
        learn = native_rows(config, spec)
    else:
        copies = TORCH if config.scheme is None else SCHEME
        if config.implementation == "reference":
            copies = REFERENCE
        stored = copies * sum(weights)
        # numbers of the mini-batches: inputs, hidden layers with gradients, noise, actions
        joint = spec.agents * (spec.observation_size + spec.action_size)
        rows = config.batch * (1 if config.minibatch == "shared" else spec.agents)
        per_row = 3 * sum(config.critic_layers) + 4 * (config.atoms or 0)
        learn = rows * (2 * joint + passed) + spec.agents * heads(config) * config.batch * per_row
        if config.critic == "pooled":  # every critic's embeddings of all agents, and their gradients
            shared = config.shared_critics and config.minibatch == "shared"
            critics = len(set(network_numbers(spec, shared))) * heads(config)
            learn += 3 * critics * spec.agents * config.batch * config.critic_layers[0]
        if config.qat_bits is not None:
            learn *= 3  # inputs and their quantized values are kept, too
    return 4 * (int(stored) + max(learn, act))


def native_rows(config: TrainConfig, spec: EnvSpec) -> int:
    """Numbers that a native update has of its mini-batches: the rows, and activations of one chunk for every thread."""
    joint = spec.agents * (spec.observation_size + spec.action_size)
    kept = 3 if config.others == "current" else 2  # rows, next rows, and those with redrawn actions
    minibatches = 1 if config.minibatch == "shared" else spec.agents
    chunk = 3 * sum(config.hidden) + 3 * heads(config) * sum(config.critic_layers) + joint
    if config.critic == "pooled":  # embeddings of all agents and their gradients
        chunk += 3 * heads(config) * spec.agents * config.critic_layers[0]
    return minibatches * config.batch * kept * joint + native_threads(config) * CHUNK * chunk


def check_update_memory(config: TrainConfig, spec: EnvSpec) -> int:
    """Refuse an update that does not fit in memory; returns its bytes."""
    if config.device != "cpu":
        return 0
    needed = update_bytes(config, spec)
    check_fits(
        f"An update of {counted(spec.agents, 'agent')}",
        needed,
        lambda usable: "train fewer `agents` or `copies`, or with smaller `hidden` layers or a smaller `batch`",
    )
    return needed


def most_samples(config: TrainConfig, spec: EnvSpec) -> int | None:
    """Upper bound of the samples that the run can produce; None: unknown."""
    length = spec.episode_length  # no episode is longer
    return None if length is None else (config.episodes + 2 * config.copies) * length
