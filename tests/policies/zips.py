"""Zips as Stable-Baselines3 writes them: of tiny models that nobody trained, and of ones that nobody should open."""

import json
import zipfile

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3

from shoal.policies.stable_baselines import BaselinesPolicy


def playing(model, env):
    """A model in an environment."""
    return BaselinesPolicy(model, {"env": env})


NETS = {"net_arch": [12, 8]}


class Pictures(gymnasium.Env):
    """Tiny moving pictures: bytes (36, 36, 1); a reward for the choice that the first pixel asks for."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = Box(0, 255, (36, 36, 1), np.uint8)
    action_space = Discrete(3)

    def __init__(self, length=4):
        self.length = length

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        self.time += 1
        return self._look(), float(action == self.time % 3), self.time >= self.length, False, {}

    def _look(self):
        return self.np_random.integers(0, 256, (36, 36, 1), np.uint8)


gymnasium.register("TinyPictures-v0", Pictures)


class Lopsided(gymnasium.Env):
    """Two actions in a box that is not centred at 0; observations of three numbers."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Box(np.float32([-3, 0.5]), np.float32([1, 9]))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        self.time += 1
        return self._look(), float(action[0]), False, self.time >= 8, {}

    def _look(self):
        return self.np_random.normal(size=3).astype(np.float32)


gymnasium.register("Lopsided-v0", Lopsided)


def make(algorithm, env, policy="MlpPolicy", **settings):
    """A model with random weights, large enough that actions differ."""
    kinds = {"a2c": A2C, "ppo": PPO, "dqn": DQN, "ddpg": DDPG, "td3": TD3, "sac": SAC}
    if algorithm not in ("a2c", "ppo"):
        settings.setdefault("buffer_size", 10)
    settings.setdefault("policy_kwargs", dict(NETS))  # a copy: algorithms write into it
    model = kinds[algorithm](policy, env, device="cpu", seed=0, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            scale = 0.1 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def saved(model, path):
    """Its zip."""
    model.save(path)
    return path


def changed(path, to, data=None, tensors=None, drop=()):
    """A copy of a zip with other plain text or other tensors."""
    import io

    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "data" and data is not None:
                content = json.dumps(data(json.loads(content))).encode()
            if name == "policy.pth" and tensors is not None:
                buffer = io.BytesIO()
                torch.save(tensors(torch.load(io.BytesIO(content), weights_only=True)), buffer)
                content = buffer.getvalue()
            if name not in drop:
                new.writestr(name, content)
    return to


class Trap:
    """A pickle of it makes a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")
