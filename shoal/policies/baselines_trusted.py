"""Stable-Baselines3 policies loaded by its own loader, which unpickles the zip and runs the code in it.

The network is split into the steps of Stable-Baselines3's forward pass: features, latent policy, action. A custom
policy may do something else, so both are compared on the same observations.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from shoal.errors import UserError, install
from shoal.policies.baselines_model import SQUASHED, Model, squash_of
from shoal.policies.baselines_zip import Algorithm
from shoal.quantization.layers import find_layers

try:
    import stable_baselines3
    from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space, preprocess_obs
    from stable_baselines3.common.torch_layers import MlpExtractor
except ImportError:
    raise UserError(f"`trust=True` needs Stable-Baselines3; {install('sb3')}.") from None

OBSERVATIONS = 64  # number of observations to compare the policy and its network on


class Latent(nn.Module):
    """The actor's branch of a custom extractor."""

    def __init__(self, extractor: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor

    def forward(self, features: Tensor) -> Tensor:
        """The input of the action layer."""
        extractor: Any = self.extractor
        return extractor.forward_actor(features)


def load_trusted(path: Path, algorithm: Algorithm) -> Model:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parts of the zip that acting does not need
            loaded = getattr(stable_baselines3, algorithm.upper()).load(path, device="cpu")
        policy = loaded.policy.eval()
        parts = _parts(policy, algorithm)
    except Exception as error:  # third-party code may raise anything
        raise UserError(f"Stable-Baselines3 cannot load '{path}': {_reason(error)}.") from error
    network = nn.Sequential(*parts.values()).eval()
    log_std = getattr(policy, "log_std", None)
    space = policy.observation_space
    image = is_image_space(space)
    model = Model(
        str(path), algorithm, network, _names(network, list(parts)),
        log_std=None if log_std is None or loaded.use_sde else log_std.detach(),
        squash=squash_of(algorithm, log_std is not None, getattr(policy, "squash_output", False)),
        scale_image=image and policy.normalize_images,
        seen=tuple(space.shape) if image else (get_flattened_obs_dim(space),),
    )  # fmt: skip
    try:
        same = _computes(policy, model)
    except Exception as error:
        raise UserError(f"The policy in '{path}' cannot be run: {_reason(error)}.") from error
    if not same:
        raise UserError(
            f"The policy in '{path}' computes its actions in a custom way: its layers in sequence give "
            "others, so they do not describe it."
        )
    return model


def _parts(policy: Any, algorithm: Algorithm) -> dict[str, nn.Module]:
    """The consecutive parts between observation and action, by Stable-Baselines3's names."""
    if algorithm == "dqn":
        return {"q_net.features_extractor": policy.q_net.features_extractor, "q_net.q_net": policy.q_net.q_net}
    if algorithm == "sac":
        return {f"actor.{name}": getattr(policy.actor, name) for name in ("features_extractor", "latent_pi", "mu")}
    if algorithm in ("ddpg", "td3"):
        means = policy.actor.mu[:-1]  # without the last Tanh: it is the squash
        return {"actor.features_extractor": policy.actor.features_extractor, "actor.mu": means}
    parts: dict[str, nn.Module] = {"features_extractor": policy.pi_features_extractor}
    if type(policy.mlp_extractor) is MlpExtractor:
        parts["mlp_extractor.policy_net"] = policy.mlp_extractor.policy_net  # may be empty
    else:
        parts["mlp_extractor"] = Latent(policy.mlp_extractor)
    return parts | {"action_net": policy.action_net}


def _names(network: nn.Module, keys: list[str]) -> tuple[str, ...]:
    """Stable-Baselines3's name of each layer."""
    names = []
    for layer in find_layers(network):
        part, *rest = layer.name.split(".")
        rest = rest[1:] if keys[int(part)] == "mlp_extractor" else rest  # after `extractor`
        names.append(".".join([keys[int(part)], *rest]))
    return tuple(names)


@torch.no_grad()
def _computes(policy: Any, model: Model) -> bool:
    """Whether the network reproduces the policy: its distribution or values, and its most likely action."""
    space = policy.observation_space
    observation, _ = policy.obs_to_tensor(_observations(space))
    outputs = model.network(preprocess_obs(observation, space, normalize_images=policy.normalize_images))
    if model.algorithm == "dqn":
        expected = policy.q_net(observation)
    elif model.algorithm in SQUASHED:
        expected = policy.actor._predict(observation, deterministic=True)
    else:
        distribution = policy.get_distribution(observation).distribution
        expected = distribution.logits if model.discrete else distribution.mean
    played = policy._predict(observation, deterministic=True)
    if model.discrete:
        same = bool((outputs.argmax(-1) == played.flatten()).float().mean() > 0.95)
        return same and _close(outputs if model.algorithm == "dqn" else outputs.log_softmax(-1), expected)
    actions = outputs.tanh() if model.squash == "tanh" else outputs
    return _close(actions if model.algorithm in SQUASHED else outputs, expected) and _close(actions, played)


def _observations(space: Any) -> np.ndarray:
    """Samples of a space, but not its extremes, where networks overflow."""
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        drawn = np.random.default_rng(0).standard_normal((OBSERVATIONS, *space.shape))
        return drawn.clip(space.low, space.high).astype(space.dtype)
    space.seed(0)
    return np.stack([space.sample() for _ in range(OBSERVATIONS)])


def _close(one: Tensor, other: Tensor) -> bool:
    """Equal up to float32 summation order."""
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.std())))


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
