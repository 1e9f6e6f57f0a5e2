"""PyTorch as an engine: the baseline for the others."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from shoal.inference.engine import check_noise, check_observation, fitting, refuse_grids
from shoal.inference.layers import BOUND, Activation, Array, Conv2d, Linear
from shoal.inference.policy import Actions, Draws, Policy
from shoal.networks.stacked import by_network

MODULES: dict[Activation, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "leaky-relu": nn.LeakyReLU,
    "sigmoid": nn.Sigmoid,
    "none": nn.Identity,
    "mish": nn.Mish,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "gelu-tanh": partial(nn.GELU, approximate="tanh"),
    "clip-2": partial(nn.Hardtanh, -BOUND, BOUND),
}


class StackedLinear(nn.Module):
    """One batched product for all agents, or one for each network that several share: (N, B, I) to (N, B, U)."""

    def __init__(self, layer: Linear, members: list[list[int]]) -> None:
        super().__init__()
        networks, inputs, outputs = layer.weight.shape
        self.weight = nn.Parameter(torch.empty(networks, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(networks, 1, outputs))
        self.members = members if len(members) < sum(map(len, members)) else None

    def forward(self, x: Tensor) -> Tensor:
        if self.members is None:
            return torch.baddbmm(self.bias, x, self.weight)
        return by_network(x, self.members, self.weight, self.bias)


def network(policy: Policy) -> nn.Sequential:
    """The layers as usually written: Linear, Conv2d and activations in sequence; stacked layers for several agents."""
    parts: list[nn.Module] = []
    image = policy.image is not None
    for layer in policy.layers:
        if isinstance(layer, Conv2d):
            outputs, channels, *kernel = layer.weight.shape
            part: nn.Module = nn.Conv2d(channels, outputs, (kernel[0], kernel[1]), layer.stride, layer.padding)
        else:
            if image:
                parts.append(nn.Flatten())
                image = False
            part = nn.Linear(*layer.weight.shape[1:]) if policy.agents == 1 else StackedLinear(layer, policy.members)
        parts += [part] if layer.activation == "none" else [part, MODULES[layer.activation]()]
    whole = nn.Sequential(*parts).requires_grad_(False)
    fill(whole, policy)
    return whole


def fill(network: nn.Sequential, policy: Policy) -> None:
    refuse_grids(policy, "torch")
    numbers = (array for layer in policy.layers for array in (layer.played_weight, layer.bias))
    for parameter, array in zip(network.parameters(), numbers, strict=True):
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        parameter.copy_(tensor[0].T if parameter.dim() == 2 else tensor.view(parameter.shape))  # Linear: outputs first


class TorchEngine:
    """A policy in PyTorch, full precision."""

    name, precision = "torch", "float32"

    def __init__(self, policy: Policy) -> None:
        """Build the network and copy the policy's parameters."""
        self.network = network(policy.played())
        self._draws = Draws()
        self._take(policy.played())

    @property
    def nbytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.network.parameters())

    @torch.inference_mode()
    def act(self, observation: Array, noise: Array | None = None) -> Actions:
        policy = self.policy
        check_observation(policy, observation)
        if policy.normaliser is None and not policy.one_hot and not policy.scale_image:
            x = torch.from_numpy(observation).transpose(0, 1)
        else:
            x = torch.from_numpy(policy.network_input(observation, np.float32))
        if policy.image is not None:
            x = x.unflatten(-1, policy.image)
        x = self.network(x[0])[None] if policy.agents == 1 else self.network(x)
        x = x.transpose(0, 1)[..., : policy.action_size]
        if policy.head.discrete:
            return self._choose(torch.from_numpy(policy.apply_masks(x.numpy(), observation)), noise)
        if policy.head.squash == "tanh":
            return torch.addcmul(self._middle, self._half, x.tanh()).numpy()
        return policy.act_on(x.numpy())

    def _choose(self, logits: Tensor, noise: Array | None) -> Actions:
        policy = self.policy
        if policy.padded:
            logits = logits + self._mask
        if policy.head.kind == "categorical":
            if noise is None:
                noise = self._draws.uniform(tuple(logits.shape))
            check_noise(policy, noise, len(logits))
            logits = logits - torch.from_numpy(noise).log().neg().log()
        return logits.argmax(-1).numpy()

    def load(self, policy: Policy) -> None:
        policy = fitting(self.policy, policy)
        fill(self.network, policy)
        self._take(policy)

    def _take(self, policy: Policy) -> None:
        """Adopt everything of a policy but its layers."""
        self.policy = policy
        self._mask = torch.from_numpy(policy.mask)
        low, high = policy.head.low, policy.head.high
        if low is not None and high is not None:
            self._middle, self._half = torch.from_numpy((high + low) / 2), torch.from_numpy((high - low) / 2)
