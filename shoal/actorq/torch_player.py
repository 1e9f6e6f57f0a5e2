"""An actor's player in PyTorch: the very networks and noise of the loop without actors, so the very same actions."""

import time

import numpy as np
import torch

from shoal.actorq.broadcast import from_payload, shapes
from shoal.actorq.player import Play
from shoal.actorq.versions import Bytes
from shoal.envs.base import EnvSpec
from shoal.inference.layers import Array
from shoal.inference.policy import Policy
from shoal.networks.actors import Actors, Noise
from shoal.networks.layout import Kind, initial_random


class TorchPlayer:
    """As `EnginePlayer`, with stacked actors in float32."""

    def __init__(self, policy: Policy, play: Play, spec: EnvSpec, seed: int) -> None:
        torch.set_num_threads(1)
        assert policy.exploration is not None
        kinds: dict[str, Kind] = {"argmax": "categorical", "box": "deterministic", "gaussian": "gaussian"}
        kind = "values" if policy.exploration.values else kinds[policy.head.kind]
        hidden = [outputs for _, _, outputs in shapes(policy)[:-1]]
        hard = policy.exploration.one_hot
        self.actors = Actors(spec, hidden, kind, initial_random(0), hard, bool(policy.network_of)).requires_grad_(False)
        self.policy, self.bits = policy, play.bits
        self.noise = Noise(seed, torch.device("cpu"))
        self.to_world = spec.to_world

    @torch.inference_mode()
    def act(self, observation: Array, deviation: float) -> Array:
        """Noisy actions (E, N, A)."""
        head = self.actors(torch.from_numpy(observation).transpose(0, 1))
        return self.actors.explore(head, self.noise, deviation).transpose(0, 1).contiguous().numpy()

    def load(self, payload: Bytes) -> float:
        """Copy other numbers over the present ones."""
        start = time.perf_counter()
        # torch takes no array that is read-only, as one is that all actors of a node share
        numbers = torch.from_numpy(np.require(from_payload(self.policy, payload, self.bits), requirements="W"))
        passed = time.perf_counter() - start
        at = 0
        for parameter in self.actors.flat:
            parameter.copy_(numbers[at : at + parameter.numel()].view(parameter.shape))
            at += parameter.numel()
        return passed
