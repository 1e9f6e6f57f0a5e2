"""Policies of Stable-Baselines3 (A2C, PPO, DQN, DDPG) out of their zips, without running anything that is in them.

A zip holds `policy.pth`, the tensors (read with torch's weights-only loader), and `data`, a JSON text in which whatever
JSON does not know is a pickle in base64 with its plain fields beside it. The pickles are not opened: the architecture
is that of the tensors' names and shapes, and the activation function is named in plain text. What is left unknown that
way (custom classes) is refused by name; `trust` lets Stable-Baselines3 itself load the zip, and with it run its code.
Shape letters: B rows, O observation, A action, C channels, U units.
"""

import copy
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.inference.policy import Activation, Array, Conv2d, Head, Layer, Linear, Normaliser, Policy
from shoal.quantization.affine import check_finite
from shoal.quantization.baselines_zip import Algorithm, algorithm_of, check_spaces, class_name, plain, read_parts
from shoal.quantization.layers import check_weights, find_layers
from shoal.quantization.qat import LEAST_BITS, MOST_BITS, Qat, frozen_layers

ACTIVATIONS: dict[str, tuple[type[nn.Module], Activation]] = {
    "ReLU": (nn.ReLU, "relu"),
    "Tanh": (nn.Tanh, "tanh"),
    "ELU": (nn.ELU, "elu"),
    "LeakyReLU": (nn.LeakyReLU, "leaky-relu"),
    "Sigmoid": (nn.Sigmoid, "sigmoid"),
}
NATURE = (((8, 8), 4), ((4, 4), 2), ((3, 3), 1))
"""Kernels and strides of the one convolutional network that Stable-Baselines3 has."""


@dataclass(frozen=True, eq=False)
class Model:
    """A policy of Stable-Baselines3: a network from scaled observations to what its head means."""

    path: str
    algorithm: Algorithm
    network: nn.Sequential
    """(B, I) or (B, C, height, width) to (B, A): logits, Q values or means."""
    names: tuple[str, ...]
    """What Stable-Baselines3 calls each layer of the network."""
    log_std: Tensor | None = None
    """(A,) of a Gaussian policy; None where the policy is another one, or its deviations depend on the state."""
    squash: Literal["tanh", "clip", "none"] = "none"
    """What is done to a box's means: DDPG's are squashed, those of A2C and PPO clipped."""
    scale_image: bool = False
    normaliser: Normaliser | None = None
    trained_bits: int | None = None
    """Bits that our callback trained it with."""
    trained_ranges: Mapping[str, tuple[float, float]] | None = None
    notes: tuple[str, ...] = ()
    """What a person should know about it."""

    @property
    def inputs(self) -> int | None:
        """Numbers of an observation; None of an image, whose size only the environment knows."""
        first = find_layers(self.network)[0].weight
        return None if first.dim() == 4 else first.shape[1]

    @property
    def channels(self) -> int | None:
        """C of an image."""
        first = find_layers(self.network)[0].weight
        return first.shape[1] if first.dim() == 4 else None

    @property
    def actions(self) -> int:
        """A."""
        return find_layers(self.network)[-1].weight.shape[0]

    @property
    def discrete(self) -> bool:
        """Whether actions are choices."""
        return self.squash == "none"

    def check_normaliser(self) -> None:
        """Refuse a normaliser of observations of another size."""
        if self.normaliser is not None and self.inputs != (size := self.normaliser.mean.shape[1]):
            seen = "images" if self.inputs is None else f"{self.inputs} numbers"
            raise UserError(
                f"The normaliser is of observations of {size} numbers, but the model in '{self.path}' sees {seen}."
            )


def read_zip(path: Path | str, trust: bool = False, normaliser: Normaliser | None = None) -> Model:
    """The policy in a zip: from its tensors alone, or with `trust` through Stable-Baselines3's own loader."""
    path = Path(path)
    data, tensors = read_parts(path)
    algorithm = algorithm_of(path, data, tensors)
    check_spaces(path, data)
    model = _load_trusted(path, algorithm, data) if trust else _built(path, algorithm, data, tensors)
    check_weights(model.network)
    notes: tuple[str, ...] = ()
    if normaliser is None and (beside := path.parent / "vecnormalize.pkl").exists():
        notes = (
            f"'{beside}' lies beside the zip, which does not say whether it belongs to it; --normaliser takes it.",
        )
    model = replace(model, normaliser=normaliser, notes=notes, **_trained_quantized(path, data))
    model.check_normaliser()
    return model


def to_policy(
    model: Model,
    low: Array | None,
    high: Array | None,
    image: tuple[int, int, int] | None = None,
    one_hot: bool = False,
) -> Policy:
    """The model described without torch, for engines and export; `low` and `high` (1, A) are the ends of its box.

    `one_hot`: what its network sees so is one whole number, and the policy takes that.
    """
    size = int(np.prod(image)) if image else model.inputs
    assert size is not None
    head = Head("argmax") if model.discrete else Head("box", model.squash, low, high)
    return Policy(
        _described(model),
        head,
        (1 if one_hot else size,),
        (model.actions,),
        ("agent",),
        model.normaliser,
        image,
        model.scale_image,
        size if one_hot else 0,
        metadata={"algorithm": model.algorithm, "source": model.path},
    ).check()


# The architecture, from names and shapes ------------------------------------------------------------------------------


def _built(path: Path, algorithm: Algorithm, data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Model:
    module = str(plain(data, "policy_class").get("__module__", ""))
    if not module.startswith("stable_baselines3."):
        known = f"the custom class of '{module}'" if module else "not named in plain text"
        raise UserError(
            f"The policy in '{path}' is {known}, whose layers cannot be known from tensors; --trust runs its code."
        )
    settings = plain(data, "policy_kwargs")
    activation = _activation(path, algorithm, settings)
    names = _layer_names(path, algorithm, tensors)
    layers: list[nn.Module] = []
    convolutions = [name for name in names if tensors[f"{name}.weight"].dim() == 4]
    _check_features(path, convolutions, tensors, settings)
    for name in names:
        weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
        if bias is None or weight.dim() not in (2, 4) or not weight.numel() or bias.shape != weight.shape[:1]:
            raise UserError(f"Layer '{name}' in '{path}' is of a kind that cannot be known from its tensors.")
        for tensor, kind in ((weight, "weight"), (bias, "bias")):
            check_finite(f"'{name}.{kind}' in '{path}'", tensor)
        if name in convolutions:
            kernel, stride = NATURE[convolutions.index(name)]
            layers += [_filled(nn.Conv2d(weight.shape[1], weight.shape[0], kernel, stride), weight, bias), nn.ReLU()]
            continue
        if layers and name == names[len(convolutions)]:
            layers.append(nn.Flatten())
        layers.append(_filled(nn.Linear(weight.shape[1], weight.shape[0]), weight, bias))
        if name != names[-1]:
            layers.append(nn.ReLU() if ".linear." in name else activation())  # the one behind the convolutions
    _check_widths(path, names, tensors)
    sde = bool(data.get("use_sde"))
    box = algorithm == "ddpg" or "log_std" in tensors
    squash: Literal["tanh", "clip", "none"] = "none" if not box else "clip"
    if algorithm == "ddpg" or (box and str(settings.get("squash_output")) == "True"):
        squash = "tanh"
    return Model(
        str(path), algorithm, nn.Sequential(*layers).eval(), tuple(names),
        log_std=None if sde or "log_std" not in tensors else tensors["log_std"], squash=squash,
        scale_image=bool(convolutions) and str(settings.get("normalize_images", True)) == "True",
    )  # fmt: skip


def _filled(layer: nn.Linear | nn.Conv2d, weight: Tensor, bias: Tensor) -> nn.Module:
    with torch.no_grad():
        layer.weight.copy_(weight)
        assert layer.bias is not None
        layer.bias.copy_(bias)
    return layer


def _activation(path: Path, algorithm: Algorithm, settings: Mapping[str, Any]) -> type[nn.Module]:
    """The activation function that the settings name in plain text, or the algorithm's own."""
    default = "Tanh" if algorithm in ("a2c", "ppo") else "ReLU"
    name = class_name(settings["activation_fn"]) if "activation_fn" in settings else default
    short = name.removeprefix("torch.nn.modules.activation.")
    if short not in ACTIVATIONS:
        raise UserError(
            f"The model in '{path}' has the activation function {name}, which cannot be known from tensors; "
            f"known are {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[short][0]


def _layer_names(path: Path, algorithm: Algorithm, tensors: Mapping[str, Tensor]) -> list[str]:
    """The layers from the observation to the action, by their names, in order."""
    prefixes = {
        "dqn": ("q_net.features_extractor.", "q_net.q_net."),
        "ddpg": ("actor.features_extractor.", "actor.mu."),
    }.get(algorithm, ("features_extractor.", "mlp_extractor.policy_net."))
    names: list[str] = []
    for prefix in prefixes:
        found = {name.rpartition(".")[0] for name in tensors if name.startswith(prefix)}
        if strange := [
            name for name in found if not re.fullmatch(r"((cnn|linear)\.)?[0-9]{1,4}", name.removeprefix(prefix))
        ]:
            raise UserError(
                f"The model in '{path}' has the layer '{min(strange)}' of a custom class, which cannot be known from "
                "tensors; --trust runs its code."
            )
        names += sorted(found, key=lambda name: (".linear." in name, int(name.rpartition(".")[2])))
    if algorithm in ("a2c", "ppo"):
        names.append("action_net")
    if any(f"{name}.weight" not in tensors for name in names):
        raise UserError(f"'policy.pth' in '{path}' lacks the weights of a layer.")
    return names


def _check_features(
    path: Path, convolutions: list[str], tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> None:
    """Refuse a feature extractor that is not the one that the tensors' shapes stand for."""
    named = class_name(settings.get("features_extractor_class", ""))
    known = (
        "",
        "stable_baselines3.common.torch_layers.NatureCNN",
        "stable_baselines3.common.torch_layers.FlattenExtractor",
    )
    kernels = [tuple(tensors[f"{name}.weight"].shape[2:]) for name in convolutions]
    if named not in known or (kernels and kernels != [kernel for kernel, _ in NATURE]):
        raise UserError(
            f"The model in '{path}' has the feature extractor {named or 'of a custom class'}, which cannot be known "
            "from tensors; --trust runs its code."
        )


def _check_widths(path: Path, names: list[str], tensors: Mapping[str, Tensor]) -> None:
    """Refuse layers that do not fit onto each other: some are missing."""
    flat = [name for name in names if tensors[f"{name}.weight"].dim() == 2]
    for before, after in itertools.pairwise(flat):
        given, taken = tensors[f"{before}.weight"].shape[0], tensors[f"{after}.weight"].shape[1]
        if given != taken:
            raise UserError(
                f"The layers of the model in '{path}' do not fit: '{before}' gives {given} numbers, "
                f"'{after}' takes {taken}."
            )


# With trust -----------------------------------------------------------------------------------------------------------


def _load_trusted(path: Path, algorithm: Algorithm, data: Mapping[str, Any]) -> Model:
    """The same through Stable-Baselines3, which unpickles and runs what is in the zip."""
    try:
        import stable_baselines3
    except ImportError:
        raise UserError("--trust needs Stable-Baselines3; pip install 'shoal[sb3]'.") from None
    try:
        policy = getattr(stable_baselines3, algorithm.upper()).load(path, device="cpu").policy
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
        raise UserError(f"Stable-Baselines3 cannot load '{path}': {reason}.") from error
    if algorithm == "dqn":
        parts = {"q_net.features_extractor": policy.q_net.features_extractor, "q_net.q_net": policy.q_net.q_net}
    elif algorithm == "ddpg":
        means = policy.actor.mu[:-1]  # without the last Tanh: it is the squash
        parts = {"actor.features_extractor": policy.actor.features_extractor, "actor.mu": means}
    else:
        latent = getattr(policy.mlp_extractor, "policy_net", None)  # perhaps without a layer
        latent = _Latent(policy.mlp_extractor) if latent is None else latent
        parts = {"features_extractor": policy.pi_features_extractor, "mlp_extractor.policy_net": latent}
        parts["action_net"] = policy.action_net
    network = nn.Sequential(*parts.values()).eval()
    keys = list(parts)
    names = tuple(
        ".".join([keys[int(layer.name.partition(".")[0])], *layer.name.split(".")[1:]])
        for layer in find_layers(network)
    )
    log_std = getattr(policy, "log_std", None)
    squash: Literal["tanh", "clip", "none"] = "none" if log_std is None else "clip"
    if algorithm == "ddpg" or (log_std is not None and policy.squash_output):
        squash = "tanh"
    return Model(
        str(path), algorithm, network, names,
        log_std=None if log_std is None or data.get("use_sde") else log_std.detach(),
        squash=squash, scale_image=len(policy.observation_space.shape) == 3 and policy.normalize_images,
    )  # fmt: skip


class _Latent(nn.Module):
    """A custom extractor's way to the actor."""

    def __init__(self, extractor: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor

    def forward(self, features: Tensor) -> Tensor:
        """What the action layer sees."""
        extractor: Any = self.extractor
        return extractor.forward_actor(features)


# Trained with quantization --------------------------------------------------------------------------------------------


def _trained_quantized(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Bits and ranges that our callback left in the plain text, if it was there and quantization was on."""
    found = plain(data, "shoal_qat")
    try:
        if not found.get("on"):
            return {}
        stale = found["learn"] != plain(data, "start_time")
        bits, ranges = int(found["bits"]), {str(k): (float(a), float(b)) for k, (a, b) in found["ranges"].items()}
        if bits not in range(LEAST_BITS, MOST_BITS + 1) or not all(
            -inf < a <= 0 <= b < inf for a, b in ranges.values()
        ):
            raise ValueError("out of range")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UserError(
            f"The quantization that the model in '{path}' was trained with cannot be read: 'shoal_qat' is damaged."
        ) from None
    if stale:
        raise UserError(
            f"The model in '{path}' was trained for {bits} bits and then again without QatCallback, so its ranges are "
            "not those of its weights: train it with the callback, or `del model.shoal_qat` before it is saved."
        )
    return {"trained_bits": bits, "trained_ranges": ranges}


def trained_network(model: Model) -> nn.Module | None:
    """A copy of the network that rounds as it was trained to; None where the model is full precision."""
    if model.trained_bits is None or model.trained_ranges is None:
        return None
    network = copy.deepcopy(model.network)
    qat = Qat({"network": network}, model.trained_bits, delay=0)
    for name, fake in zip(model.names, qat.layers.values(), strict=True):
        if name not in model.trained_ranges:
            raise UserError(f"The range that layer '{name}' of '{model.path}' was trained with is missing.")
        low, high = model.trained_ranges[name]
        fake.set_range(low, high)
    qat.freeze()
    return network


def _described(model: Model) -> tuple[Layer, ...]:
    """The network's layers without torch."""
    activations = dict(ACTIVATIONS.values())
    trained = trained_network(model)
    frozen = None if trained is None else frozen_layers(trained)
    layers: list[Layer] = []
    for part in model.network.modules():
        quantized = frozen[len(layers)] if frozen and len(layers) < len(frozen) else None
        if isinstance(part, nn.Linear):
            weight, bias = part.weight.detach().numpy().T[None], part.bias.detach().numpy()[None]
            layers.append(Linear(np.ascontiguousarray(weight), bias, "none", quantized))
        elif isinstance(part, nn.Conv2d):
            assert part.bias is not None and isinstance(part.padding, tuple)
            weight, bias = part.weight.detach().numpy(), part.bias.detach().numpy()
            stride, padding = (part.stride[0], part.stride[1]), (part.padding[0], part.padding[1])
            layers.append(Conv2d(weight, bias, stride, padding, "none", quantized))
        elif type(part) in activations and layers:
            layers[-1] = replace(layers[-1], activation=activations[type(part)])
        elif not isinstance(part, nn.Sequential | nn.Flatten) and not list(part.children()):
            raise UserError(
                f"The model in '{model.path}' has a part {type(part).__name__} that no exported file knows."
            )
    return tuple(layers)
