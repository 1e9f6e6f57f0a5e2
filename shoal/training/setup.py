"""Checks and setup before a run starts: settings, threads, device and memory."""

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba.core import event

from shoal.algorithms.config import option
from shoal.algorithms.teams import heads, network_weights
from shoal.envs import ADAPTERS, make_env
from shoal.envs.base import EnvSpec, Step
from shoal.errors import UserError, counted
from shoal.memory import check_fits
from shoal.native.engine import why_unusable
from shoal.native.maddpg import copies_of_weights
from shoal.processors import check_threads, usable_processors
from shoal.replay import Ring, make_sampler
from shoal.replay.ring import PARALLEL_BYTES
from shoal.training.config import StoredConfig, TrainConfig, read_config
from shoal.training.evaluation import build_env

LOOPS, NATIVE = 55, 70
"""Functions compiled for worlds and replay, and for the native update."""
PRODUCTS_PER_THREAD = 1_000_000_000
"""Multiplications of an update from which one more thread pays off. With fewer, a second thread saves less than a
third of the time on an idle machine, and costs up to nine tenths of the speed if another program occupies one of the
CPUs (`shoal bench steady`)."""


def stored_config(asked: Mapping[str, Any], folder: Path) -> TrainConfig:
    """The settings of the run in this folder, on the hardware that was asked for; other differences are refused."""
    stored = read_config(folder)
    check_kept(asked, stored, folder)
    hardware = {name: asked.get(name, getattr(stored, name)) for name in ("threads", "cluster", "env_workers")}
    return dataclasses.replace(stored, out=str(folder), **hardware)


def check_kept(asked: Mapping[str, Any], stored: StoredConfig, folder: Path) -> None:
    """Refuse to resume with other settings than the run's, except for those that may change."""
    for name, value in asked.items():
        kept = getattr(stored, name)
        if name == "update" and value == "auto":  # whatever the run has
            continue
        if name not in stored.result_independent | stored.changeable and value != kept:
            raise UserError(
                f"{option(name)} is {value}, but the run in '{folder}' has {kept}: a resumed run keeps its settings."
            )


def use_threads(config: TrainConfig, spec: EnvSpec) -> None:
    """Set the number of threads: as configured, or torch's by the size of the work and numba's to all there are.

    Torch's threads wait for each other after every operation, which is slow if another program occupies a CPU; numba's
    split whole steps and mini-batches. The default does not depend on the current load, so it is reproducible.
    """
    import numba

    if config.threads is not None:
        check_threads(config.threads)
    numba.set_num_threads(min(config.threads or usable_processors(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    # beside native code torch has little to do, and its threads would spin for a while after every operation
    set_torch_threads(1 if config.update == "native" else config.threads or default_threads(config, spec))


def native_threads(config: TrainConfig) -> int:
    """Threads of the native update: as configured, or all; none of them is ever waited for."""
    return config.threads or usable_processors()


def set_torch_threads(count: int) -> None:
    """Set the number of torch's threads permanently.

    Starting numba's threads sets OpenMP's number of threads, which torch shares, so they are started first.
    """
    import numba

    numba.get_num_threads()  # starts them
    torch.set_num_threads(count)


def default_threads(config: TrainConfig, spec: EnvSpec) -> int:
    """One thread per `PRODUCTS_PER_THREAD` of an update, at least one, at most as many CPUs as the process may use."""
    set_by_user = os.environ.get("OMP_NUM_THREADS", "")
    most = min(usable_processors(), int(set_by_user)) if set_by_user.isdecimal() else usable_processors()
    if config.device != "cpu":
        return max(1, most)
    return max(1, min(most, update_products(config, spec) // PRODUCTS_PER_THREAD))


def update_products(config: TrainConfig, spec: EnvSpec) -> int:
    """Approximate number of multiplications of an update of all agents: about six per weight and row."""
    actors, critics = network_weights(spec, config)
    minibatches = 1 if config.minibatch == "shared" else spec.agents
    return 6 * config.batch * (minibatches * actors + critics)


def make_device(name: str) -> torch.device:
    """The torch device of this name, if it exists and works."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device '{name}' is not a torch device; use e.g. cpu, cuda or cuda:1.") from None
    try:
        torch.zeros(1, device=device).cpu()
        torch.Generator(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(";")[0].rstrip(".")[:120]
        raise UserError(f"--device '{name}' cannot be used here ({reason}); 'cpu' always works.") from None
    return device


def update_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Approximate peak memory of acting and updating, without the world and the ring.

    Each network with its target, its gradients and Adam's two moments, their serialized bytes in a checkpoint (in all
    12.6 times the weights, measured with layers of 2000 and 3000 neurons), and the activations of a mini-batch: inputs,
    hidden layers with their gradients, noise and actions. Native code has the networks in its own memory, too.
    """
    n = spec.agents
    joint = n * (spec.observation_size + spec.action_size)
    hidden = sum(config.hidden)
    minibatches = 1 if config.minibatch == "shared" else n
    rows = minibatches * config.batch
    seen = n * (2 * hidden + spec.observation_size + 8 * spec.action_size)  # an actor's pass over one row
    critics = n * heads(config) * config.batch * (3 * sum(config.critic_layers) + 4 * (config.atoms or 0))
    update = rows * (2 * joint + seen) + critics
    if config.qat_bits is not None:
        update *= 3  # every layer's input and its quantized value are kept for the gradients, too
    act = config.copies * (seen + 5 * n * spec.observation_size)  # the world keeps four steps of views
    copies = 13.0
    if config.update != "torch" and config.why_torch() is None:
        copies += copies_of_weights(n, config.batch, native_threads(config))
    return 4 * (int(copies * sum(network_weights(spec, config))) + max(update, act))


def check_update_memory(config: TrainConfig, spec: EnvSpec) -> int:
    """Refuse an update that does not fit in memory; returns its bytes."""
    if config.device != "cpu":
        return 0
    needed = update_bytes(config, spec)
    check_fits(
        f"An update of {counted(spec.agents, 'agent')}",
        needed,
        lambda usable: "train fewer --agents or --copies, or with smaller --hidden layers or a smaller --batch",
    )
    return needed


def most_samples(config: TrainConfig, spec: EnvSpec) -> int | None:
    """Upper bound of the samples that the run can produce; None: unknown."""
    length = spec.episode_length  # no episode is longer
    return None if length is None else (config.episodes + 2 * config.copies) * length


class _Compiled(event.Listener):
    """Counts the functions that numba has compiled."""

    count = 0

    def on_start(self, event: Any) -> None:
        """Nothing to count yet."""

    def on_end(self, event: Any) -> None:
        """One more."""
        self.count += 1


@contextlib.contextmanager
def told_if_long(
    tell: Callable[[str], None], functions: int, seconds: float = 2.0, every: float = 5.0
) -> Iterator[None]:
    """Tell the user why they wait if compiling takes long, and then how far it is, of about so many functions."""
    over, compiled = threading.Event(), _Compiled()

    def report() -> None:
        if not over.wait(seconds):
            tell("Compiling native code for this machine; it is cached for later runs.")
        while not over.wait(every):
            tell(f"Compiled {compiled.count} of about {functions} functions.")

    thread = threading.Thread(target=report, daemon=True)
    with event.install_listener("numba:compile", compiled):
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def functions_to_compile(config: TrainConfig) -> int:
    """About how many functions `compile_loops` compiles where nothing is cached."""
    return LOOPS if config.update == "torch" or config.why_torch() else LOOPS + NATIVE


def compile_loops(config: TrainConfig) -> None:
    """Compile the numba kernels that the run will call, or load them from the cache, before the clock starts."""
    if config.update != "torch" and config.why_torch() is None:
        why_unusable()
    foreign = config.env.startswith(ADAPTERS)  # has no kernels, and may have side effects
    twin = make_env("cooperative-navigation", 1) if foreign else build_env(config, 1, 0, stagger=False)
    spec = twin.spec
    twin.step(np.zeros((1, spec.agents, spec.action_size), np.float32))
    sampler = make_sampler(config.sampler, config.neighbors, config.include_center)
    ring = Ring(spec, 1, 2 * sampler.needs, config.storage)
    seen = np.zeros((1, spec.agents, spec.observation_size), np.float32)
    none, flags = np.zeros((1, spec.agents), np.float32), np.zeros((1, spec.agents), bool)
    step = Step(seen, none, flags, np.zeros(1, bool), ~flags, np.zeros(1, bool), seen)
    ring.begin(seen)
    for _ in range(sampler.needs):
        ring.add(np.zeros((1, spec.agents, spec.action_size), np.float32), step)
    large = PARALLEL_BYTES // ring.layout.sample_bytes + 1  # small batches are gathered by one thread, others by all
    for rows in (1, min(large, config.batch)):
        ring.sample(sampler, rows, np.random.default_rng(0), n_step=config.n_step)
