"""Stacked networks without torch: which entries of their layers are real, the names of their arrays, initial weights.

Actors are arrays (C, in, out); of critics the first layer is (J, C, H), so that one product serves all of them.
Shape letters: C networks in the stack (one per agent, or one per critic), I inputs, U outputs, H hidden units,
N agents, O observation, A action, J joint.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import EnvSpec
from shoal.seeding import stream_seed

Kind = Literal["categorical", "deterministic", "gaussian", "values"]
"""How a policy's outputs are actions: logits of choices, a point of the box, a Gaussian, or Q values."""
Widths = list[NDArray[np.bool_]]
"""(C, I) of every layer from the inputs to the outputs: which entries of each network are not padding."""
Random = np.random.RandomState  # the source of initial weights: numpy has promised never to change its stream


def network_numbers(spec: EnvSpec, shared: bool) -> NDArray[np.int64]:
    """(N,): the number of each agent's network in its stack, where agents of one kind share one or each has its own."""
    return np.array(spec.kinds if shared else range(spec.agents))


def actor_widths(spec: EnvSpec, hidden: Sequence[int], outputs_per_action: int = 1, shared: bool = False) -> Widths:
    """One actor per agent, or per kind of agent; its outputs are blocks of actions."""
    first = np.unique(network_numbers(spec, shared), return_index=True)[1]  # agent of each network
    inputs = real_entries(spec.observation_sizes, spec.observation_size)[first]  # (C, O)
    outputs = np.tile(real_entries(spec.action_sizes, spec.action_size)[first], (1, outputs_per_action))
    return [inputs, *(np.ones((len(first), width), np.bool_) for width in hidden), outputs]


def critic_widths(spec: EnvSpec, hidden: Sequence[int], heads: int, outputs: int = 1, shared: bool = False) -> Widths:
    """`heads` critics per agent, or per kind of agent, all heads of the first one first.

    Each sees all observations, then all actions.
    """
    observations = real_entries(spec.observation_sizes, spec.observation_size).ravel()
    joint = np.concatenate([observations, real_entries(spec.action_sizes, spec.action_size).ravel()])  # (J,)
    critics = heads * len(set(network_numbers(spec, shared)))
    return [np.tile(joint, (critics, 1)), *(np.ones((critics, width), np.bool_) for width in (*hidden, outputs))]


def pooled_widths(
    spec: EnvSpec, hidden: Sequence[int], heads: int, outputs: int = 1, shared: bool = False
) -> tuple[Widths, Widths]:
    """`heads` critics per agent, or per kind of agent, that pool embeddings: the embeddings', of each critic one per
    kind of agent, and those of the layers behind them, which see an agent's own embedding and the mean of all."""
    first = np.unique(spec.kinds, return_index=True)[1]  # agent of each kind
    sizes = ((spec.observation_sizes, spec.observation_size), (spec.action_sizes, spec.action_size))
    own = np.hstack([real_entries(*size)[first] for size in sizes])  # (K, I)
    critics = heads * len(set(network_numbers(spec, shared)))
    rest = [np.ones((critics, width), np.bool_) for width in (2 * hidden[0], *hidden[1:], outputs)]
    return [np.tile(own, (critics, 1)), np.ones((critics * len(own), hidden[0]), np.bool_)], rest


def real_entries(sizes: Sequence[int], width: int) -> NDArray[np.bool_]:
    """(N, width): True for the first `size` entries of each row."""
    return np.arange(width)[None, :] < np.array(sizes)[:, None]


def actor_names(layers: int) -> list[str]:
    """Weight, bias, weight, bias, …"""
    return [name for k in range(layers) for name in (f"weights.{k}", f"biases.{k}")]


def critic_names(layers: int) -> list[str]:
    """Weight, bias, weight, bias, …"""
    return ["first", "first_bias", *(f"rest.{name}" for name in actor_names(layers - 1))]


def initial_random(seed: int) -> Random:
    """The source of a team's initial weights."""
    return Random(stream_seed(seed, "initial weights") % 2**32)


def initial_layers(widths: Widths, random: Random) -> list[NDArray[np.float32]]:
    """Weight (C, in, out), bias (C, 1, out), weight, bias, …, drawn layer by layer, network by network."""
    arrays = []
    for before, after in pairwise(widths):
        weight = np.stack([xavier(*real, random) for real in zip(before, after, strict=True)])
        arrays += [weight, np.zeros((len(after), 1, after.shape[1]), np.float32)]
    return arrays


def xavier(real_in: NDArray[np.bool_], real_out: NDArray[np.bool_], random: Random) -> NDArray[np.float32]:
    """(I, U) Xavier-uniform weights between the real inputs and outputs; zero where either is padding.

    Only the real block is drawn, with its own fans: padding changes neither scale nor random stream. The numbers are
    those of `torch.rand` with a generator of the same seed: 24 bits each.
    """
    fan_in, fan_out = int(real_in.sum()), int(real_out.sum())
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    block = random.randint(0, 2**24, (fan_in, fan_out), dtype=np.uint32).astype(np.float32)
    block *= np.float32(2**-24)
    block *= np.float32(2 * bound)
    block -= np.float32(bound)
    weight = np.zeros((len(real_in), len(real_out)), np.float32)
    weight[np.ix_(real_in, real_out)] = block
    return weight
