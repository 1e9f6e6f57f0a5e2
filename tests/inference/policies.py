"""Random policies for tests."""

from dataclasses import replace

import numpy as np

from shoal.inference import Conv2d, Grid, Head, Linear, Normaliser, Policy, Quantized
from shoal.inference.grid import value_range
from shoal.inference.layers import layer_codes


def random_policy(
    seed=0,
    agents=1,
    hidden=(16, 16),
    observation=(6,),
    action=(4,),
    head="argmax",
    squash="tanh",
    activation="relu",
    normalised=False,
    one_hot=0,
    network_of=(),
):
    """A policy with layers of random weights, its agents padded as Shoal's are."""
    rng = np.random.default_rng(seed)
    seen, acted = (tuple(np.resize(sizes, agents).tolist()) for sizes in (observation, action))
    owners = [network_of.index(c) for c in range(len(set(network_of)))] or range(agents)  # an agent of each network
    first = one_hot or max(seen)
    outputs = max(acted) * (2 if head == "gaussian" else 1)
    widths, layers = [first, *hidden, outputs], []
    for k in range(len(widths) - 1):
        scale = 1.5 / np.sqrt(widths[k])
        weight = (scale * rng.standard_normal((len(owners), widths[k], widths[k + 1]))).astype(np.float32)
        bias = (0.1 * rng.standard_normal((len(owners), widths[k + 1]))).astype(np.float32)
        last = k == len(widths) - 2
        for c, n in enumerate(owners):
            if k == 0 and not one_hot:
                weight[c, seen[n] :] = 0
            if last and head != "gaussian":
                weight[c, :, acted[n] :], bias[c, acted[n] :] = 0, 0
        layers.append(Linear(weight, bias, "none" if last else activation))
    ends = {}
    if head in ("box", "gaussian"):
        real = np.arange(max(acted))[None] < np.array(acted)[:, None]
        low = np.where(real, -1 - rng.random((agents, max(acted))), 0).astype(np.float32)
        high = np.where(real, 1 + rng.random((agents, max(acted))), 0).astype(np.float32)
        ends = {"squash": squash, "low": low, "high": high}
    norm = None
    if normalised:
        mean = rng.standard_normal((agents, max(seen))).astype(np.float32)
        var = (0.1 + rng.random((agents, max(seen)))).astype(np.float32)
        norm = Normaliser(mean, var, epsilon=0.02, clip=3.0)
    names = tuple(f"agent_{n}" for n in range(agents))
    sizes = (1,) * agents if one_hot else seen
    head = Head(head, **ends)
    return Policy(tuple(layers), head, sizes, acted, names, norm, one_hot=one_hot, network_of=tuple(network_of)).check()


def image_policy(seed=0, activation="relu"):
    """Two convolutions and two linear layers."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return (rng.standard_normal(shape) * 1.5 / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    layers = (
        Conv2d(draw(8, 2, 4, 4), draw(8, 1)[:, 0], (2, 2), (0, 0), activation),
        Conv2d(draw(6, 8, 3, 3), draw(6, 1)[:, 0], (1, 1), (1, 1), activation),
        Linear(draw(294, 16)[None] * 4, draw(16, 1).T, "relu"),
        Linear(draw(16, 5)[None] * 4, draw(5, 1).T, "none"),
    )
    return Policy(layers, Head("argmax"), (512,), (5,), ("agent",), image=(2, 16, 16), scale_image=True).check()


def few_bits(policy, x, bits=4):
    """The policy with weights and inputs of layers frozen to so many bits, as quantization-aware training leaves it."""
    layers = []
    for layer, seen in zip(policy.layers, policy.inputs_of_layers(x), strict=True):
        rows = [seen[agents].reshape(1, -1) for agents in policy.members]
        grid = Grid.of_range(*(np.stack(ends) for ends in zip(*map(value_range, rows), strict=True)), bits)
        layers.append(replace(layer, quantized=Quantized(layer_codes(layer, bits)[1], grid)))
    return replace(policy, layers=tuple(layers))


def observations(policy, batch=33, seed=1):
    """Raw observations (B, N, O), zero in the padding."""
    rng = np.random.default_rng(seed)
    if policy.one_hot:
        return rng.integers(policy.one_hot, size=(batch, policy.agents, 1)).astype(np.float32)
    if policy.image:
        return rng.integers(256, size=(batch, 1, policy.observation_size)).astype(np.float32)
    x = rng.standard_normal((batch, policy.agents, policy.observation_size)).astype(np.float32)
    return x * (np.arange(policy.observation_size)[None] < np.array(policy.observation_sizes)[:, None])
