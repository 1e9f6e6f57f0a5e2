"""Bytes of the ring, of the networks and of an update at its peak, and how often policies are queried in one."""

import tracemalloc
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile  # not torch.profiler's, which imports a compiler

from shoal.algorithms.native import NativeTeam
from shoal.algorithms.team import Team
from shoal.training.clock import PhaseClock
from shoal.training.loop import Training


@dataclass(frozen=True)
class Footprint:
    """Memory of an implementation, and its policy queries."""

    replay: int
    """Bytes of the full ring, or of the lists and all that is in them."""
    networks: int
    """Bytes of all networks, targets included, with their gradients and Adam's moments."""
    update_peak: int
    """Most bytes that one update holds beyond these at a time: numpy's, Python's and torch's, each at its own peak."""
    policy_calls: int
    """Mini-batches for which an agent's policy was queried for next actions in one update."""
    policy_reads: int
    """Of these, those that one agent's learning asked of another's policy: N (N - 1) in the papers."""


def footprint(training: Training) -> Footprint:
    """Measured in one update of its own, because the counting slows it down."""
    if training.updates == 0:
        training.update()  # what is allocated once is not the update's
    weights, moments = training.team.weights(), training.team.optimizer_state()
    targets = training.team.targets
    learned = sum(array.nbytes for name, array in weights.items() if name.partition(".")[0] not in targets)
    runner = training.team.runner if isinstance(training.team, NativeTeam) else None
    networks = learned + sum(array.nbytes for array in (*weights.values(), *moments.values()))
    if runner is not None:
        networks = runner.network_bytes  # its gradients are the update's
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    with profile(profile_memory=True) as profiler:
        calls = policy_calls(training)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = getattr(training.ring, "sample_nbytes", 0)  # from one update to the next
    if runner is not None:
        kept += runner.working_bytes
    peak = most - before + kept + torch_peak(profiler)
    replay = int(cast(Any, training.ring).nbytes)
    return Footprint(replay, networks, peak, calls, calls - training.env.spec.agents)


def torch_peak(profiler: profile) -> int:
    """The most bytes that torch held on the CPU at a time, beyond those it held at the start."""
    held = most = 0
    for event in sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns()):  # type: ignore[union-attr]
        if event.name() == "[memory]" and event.device_type() == torch.autograd.DeviceType.CPU:
            held += event.nbytes()
            most = max(most, held)
    return most


def policy_calls(training: Training) -> int:
    """Update once, and count the mini-batches for which agents' policies are queried for next actions."""
    if isinstance(training.team, NativeTeam):
        training.update()
        return training.team.algorithm.minibatches * training.env.spec.agents
    clock = training.clock = PhaseClock()
    rows = 0

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal rows
        if clock.phase == "target Q: next action":
            rows += output.shape[:-1].numel()

    team: Any = training.team
    if isinstance(team, Team):  # all agents' actors at once
        policies = [network for name, network in team.networks.items() if name.endswith("actors")]
    else:  # the reference
        policies = [policy for agent in team.agents for policy in (agent.actor, agent.target_actor)]
    hooks = [policy.register_forward_hook(count) for policy in policies]
    training.update()
    for hook in hooks:
        hook.remove()
    return rows // training.config.batch
