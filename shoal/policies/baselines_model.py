"""Stable-Baselines3 policies (A2C, PPO, DQN, DDPG, TD3, SAC) read from their zips without running any code in them.

A zip holds `policy.pth`, the tensors (read with torch's weights-only loader), and `data`, a JSON text that stores other
objects as base64 pickles with their plain fields beside them. The pickles are not opened: the architecture follows from
the tensors' names and shapes, and the activation function is named in plain text. What remains unknown (custom classes)
is refused by name; `trust` lets Stable-Baselines3 itself load the zip, which runs its code.
Shape letters: B rows, O observation, A action, C channels, U outputs.
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
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import UserError, counted
from shoal.inference.layers import BOUND, Activation, Array, Layer
from shoal.inference.policy import Head, Normaliser, Policy
from shoal.policies.baselines_zip import (
    Algorithm,
    algorithm_of,
    check_spaces,
    class_name,
    logged_returns,
    plain,
    read_parts,
    saw_normalised,
    saw_outside,
    space_bounds,
)
from shoal.quantization.affine import check_finite
from shoal.quantization.layers import check_weights, find_layers
from shoal.quantization.qat import LEAST_QAT_BITS, MOST_QAT_BITS, Qat, frozen_layers
from shoal.quantization.torch_engine import MODULES

ACTIVATIONS = {module.__name__: name for name, module in MODULES.items() if isinstance(module, type) and name != "none"}
"""Activation functions of `torch.nn` with their default parameters."""
GELU_TANH = "functools.partial(<class 'torch.nn.modules.activation.GELU'>, approximate='tanh')"
"""How a zip names the other form of GELU."""
Squash = Literal["tanh", "clip", "none"]
SQUASHED = ("ddpg", "td3", "sac")  # algorithms whose means go through tanh to the box
CLIPPED_MEANS = "actor.mu.0"
"""The last layer of SAC with gSDE, whose outputs are clipped; without clipping it is actor.mu."""
NATURE = (((8, 8), 4), ((4, 4), 2), ((3, 3), 1))
"""Kernels and strides of Stable-Baselines3's only convolutional network."""


@dataclass(frozen=True, eq=False)
class Model:
    """A Stable-Baselines3 policy: its network, and how to interpret the outputs."""

    path: str
    algorithm: Algorithm
    network: nn.Sequential
    """(B, I) or (B, C, height, width) to (B, A): logits, Q values or means."""
    names: tuple[str, ...]
    """Stable-Baselines3's name of each layer of the network."""
    log_std: Tensor | None = None
    """(A,) for a Gaussian policy; None for others, or if its deviations depend on the state."""
    squash: Squash = "none"
    """How the means of a box are bounded: DDPG, TD3 and SAC squash them, A2C and PPO clip them."""
    scale_image: bool = False
    normaliser: Normaliser | None = None
    trained_bits: int | None = None
    """Bits that QatCallback trained it with."""
    trained_ranges: Mapping[str, tuple[float, float]] | None = None
    action_bounds: NDArray[np.float64] | None = None
    """(2, A): lowest and highest actions of the box that it was trained with, as far as the zip has them."""
    saw_normalised: bool | None = None
    """Whether its training used VecNormalize; None: the zip does not say."""
    saw_outside: bool = False
    """The last observations of its training are outside its observation space."""
    logged_returns: tuple[float, ...] = ()
    """Of the last training episodes, as far as the zip has them."""
    seen: tuple[int, ...] | None = None
    """(I,) or (C, height, width), if the model's own code defines it; None: from its first layer."""

    @property
    def inputs(self) -> int | None:
        """Length of an observation; None for an image, whose size only the environment knows."""
        return self._shape[0] if len(self._shape) == 1 else None

    @property
    def channels(self) -> int | None:
        """C, for images."""
        return self._shape[0] if len(self._shape) == 3 else None

    @property
    def _shape(self) -> tuple[int, ...]:
        """(I,), or three numbers for images, of which the first is C."""
        return self.seen or tuple(find_layers(self.network)[0].weight.shape[1:])

    @property
    def actions(self) -> int:
        """A."""
        return find_layers(self.network)[-1].weight.shape[0]

    @property
    def discrete(self) -> bool:
        """Whether actions are choices."""
        return self.squash == "none"


def read_zip(path: Path | str, trust: bool = False, normaliser: Normaliser | None = None) -> Model:
    """Read the policy in a zip: from its tensors alone, or with `trust` by Stable-Baselines3's own loader."""
    path = Path(path)
    data, tensors = read_parts(path)
    algorithm = algorithm_of(path, data, tensors)
    check_spaces(path, data)
    if trust:
        from shoal.policies.baselines_trusted import load_trusted

        model = load_trusted(path, algorithm)
    else:
        model = _built(path, algorithm, data, tensors)
    check_weights(model.network)
    if model.log_std is not None:
        check_finite(f"'log_std' in '{path}'", model.log_std)
        if model.log_std.shape != (model.actions,):
            raise UserError(
                f"'log_std' in '{path}' has the shape {tuple(model.log_std.shape)}, but its model's actions have "
                f"({model.actions},): it is damaged."
            )
    model = replace(
        model, normaliser=normaliser, saw_normalised=saw_normalised(data, algorithm), saw_outside=saw_outside(data),
        logged_returns=logged_returns(data), action_bounds=space_bounds(data, "action_space"),
        **_trained_quantized(path, data),
    )  # fmt: skip
    if normaliser is not None and model.inputs != (size := normaliser.mean.shape[1]):
        seen = "images" if model.inputs is None else counted(model.inputs, "number")
        raise UserError(
            f"The normaliser is for observations of {counted(size, 'number')}, but the model in '{path}' sees {seen}."
        )
    return model


def to_policy(
    model: Model,
    low: Array | None,
    high: Array | None,
    image: tuple[int, int, int] | None = None,
    one_hot: bool = False,
) -> Policy:
    """The model described without torch, for engines and export; `low` and `high` (1, A) are its action bounds.

    `one_hot`: the observation is one integer below this, which the network takes one-hot.
    """
    size = int(np.prod(image)) if image else model.inputs
    assert size is not None
    head = Head("argmax") if model.discrete else Head("box", model.squash, low, high)
    return Policy(
        _described(model, image or (size,)), head, (1 if one_hot else size,), (model.actions,), ("agent",),
        model.normaliser, image, model.scale_image, size if one_hot else 0,
        metadata={"algorithm": model.algorithm, "source": model.path},
    ).check()  # fmt: skip


# The architecture, from names and shapes ------------------------------------------------------------------------------


def _built(path: Path, algorithm: Algorithm, data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Model:
    module = str(plain(data, "policy_class").get("__module__", ""))
    if not module.startswith("stable_baselines3."):
        known = f"a custom class of '{module}'" if module else "not named in plain text"
        raise UserError(
            f"The policy class in '{path}' is {known}, so its layers cannot be inferred from tensors; "
            "`trust=True` runs its code."
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
            raise UserError(f"Layer '{name}' in '{path}' is of a kind that cannot be inferred from its tensors.")
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
            layers.append(nn.ReLU() if ".linear." in name else MODULES[activation]())  # the one after the convolutions
    if algorithm == "sac" and names[-1] == CLIPPED_MEANS:  # also the only layer of a TD3 without hidden ones
        if (bound := settings.get("clip_mean", BOUND)) != BOUND:
            raise UserError(
                f"The model in '{path}' clips its mean actions to ±{bound} (clip_mean), but only {BOUND} and 0 can be "
                "read without running the zip's code; `trust=True` runs it, but it cannot be exported."
            )
        layers.append(MODULES["clip-2"]())
    _check_widths(path, names, tensors)
    return Model(
        str(path), algorithm, nn.Sequential(*layers).eval(), tuple(names),
        log_std=None if data.get("use_sde") else tensors.get("log_std"),
        squash=squash_of(algorithm, "log_std" in tensors, str(settings.get("squash_output")) == "True"),
        scale_image=bool(convolutions) and str(settings.get("normalize_images", True)) == "True",
    )  # fmt: skip


def squash_of(algorithm: Algorithm, gaussian: bool, squashed: bool) -> Squash:
    """How an algorithm bounds its means; `squashed`: the policy's own setting, which only Gaussian ones have."""
    if algorithm in SQUASHED or (gaussian and squashed):
        return "tanh"
    return "clip" if gaussian else "none"


def _filled(layer: nn.Linear | nn.Conv2d, weight: Tensor, bias: Tensor) -> nn.Module:
    with torch.no_grad():
        layer.weight.copy_(weight)
        assert layer.bias is not None
        layer.bias.copy_(bias)
    return layer


def _activation(path: Path, algorithm: Algorithm, settings: Mapping[str, Any]) -> Activation:
    """The activation function that the settings name in plain text, or the algorithm's default."""
    default = "Tanh" if algorithm in ("a2c", "ppo") else "ReLU"
    name = class_name(settings["activation_fn"]) if "activation_fn" in settings else default
    if name == GELU_TANH:
        return "gelu-tanh"
    short = name.removeprefix("torch.nn.modules.activation.")
    if short not in ACTIVATIONS:
        raise UserError(
            f"The model in '{path}' has the activation function {re.sub(' at 0x[0-9a-f]+', '', name)}, but only "
            f"{', '.join(ACTIVATIONS)} with their default parameters are known without running the zip's code; "
            "`trust=True` runs it, but it cannot be exported."
        )
    return ACTIVATIONS[short]


def _layer_names(path: Path, algorithm: Algorithm, tensors: Mapping[str, Tensor]) -> list[str]:
    """The layers from observation to action by name, in order."""
    prefixes = {
        "dqn": ("q_net.features_extractor.", "q_net.q_net."),
        "ddpg": ("actor.features_extractor.", "actor.mu."),
        "td3": ("actor.features_extractor.", "actor.mu."),
        "sac": ("actor.features_extractor.", "actor.latent_pi."),
    }.get(algorithm, ("features_extractor.", "mlp_extractor.policy_net."))
    names: list[str] = []
    for prefix in prefixes:
        layers = {name.rpartition(".")[0] for name in tensors if name.startswith(prefix)}
        if strange := [
            name for name in layers if not re.fullmatch(r"((cnn|linear)\.)?[0-9]{1,4}", name.removeprefix(prefix))
        ]:
            raise UserError(
                f"The model in '{path}' has the layer '{min(strange)}' of a custom class, which cannot be read from "
                "tensors; `trust=True` runs its code."
            )
        names += sorted(layers, key=lambda name: (".linear." in name, int(name.rpartition(".")[2])))
    if algorithm in ("a2c", "ppo"):
        names.append("action_net")
    if algorithm == "sac":
        names.append(CLIPPED_MEANS if f"{CLIPPED_MEANS}.weight" in tensors else "actor.mu")
    if any(f"{name}.weight" not in tensors for name in names):
        raise UserError(f"'policy.pth' in '{path}' lacks the weights of a layer.")
    return names


def _check_features(
    path: Path, convolutions: list[str], tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> None:
    """Refuse a feature extractor other than the one that the tensors' shapes imply."""
    named = class_name(settings.get("features_extractor_class", ""))
    known = ("", *(f"stable_baselines3.common.torch_layers.{name}" for name in ("NatureCNN", "FlattenExtractor")))
    kernels = [tuple(tensors[f"{name}.weight"].shape[2:]) for name in convolutions]
    if named not in known or (kernels and kernels != [kernel for kernel, _ in NATURE]):
        raise UserError(
            f"The model in '{path}' has the feature extractor {named or 'of a custom class'}, which cannot be inferred "
            "from tensors; `trust=True` runs its code."
        )


def _check_widths(path: Path, names: list[str], tensors: Mapping[str, Tensor]) -> None:
    """Refuse layers that do not fit together: some are missing."""
    flat = [name for name in names if tensors[f"{name}.weight"].dim() == 2]
    for before, after in itertools.pairwise(flat):
        given, taken = tensors[f"{before}.weight"].shape[0], tensors[f"{after}.weight"].shape[1]
        if given != taken:
            raise UserError(
                f"The layers of the model in '{path}' do not fit: '{before}' gives {counted(given, 'number')}, "
                f"'{after}' takes {taken}."
            )


# Trained with quantization --------------------------------------------------------------------------------------------


def _trained_quantized(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Bits and ranges that QatCallback stored in the JSON, if it was used and quantization was on."""
    stored = plain(data, "shoal_qat")
    try:
        if not stored.get("on"):
            return {}
        stale = stored["learn"] != data.get("start_time")
        bits, ranges = int(stored["bits"]), {str(k): (float(a), float(b)) for k, (a, b) in stored["ranges"].items()}
        if bits not in range(LEAST_QAT_BITS, MOST_QAT_BITS + 1) or not all(
            -inf < a <= 0 <= b < inf for a, b in ranges.values()
        ):
            raise ValueError("out of range")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UserError(
            f"The quantization that the model in '{path}' was trained with cannot be read: 'shoal_qat' is damaged."
        ) from None
    if stale:
        raise UserError(
            f"The model in '{path}' was trained for {bits} bits and then again without QatCallback, so its ranges do "
            "not fit its weights: train it with the callback, or `del model.shoal_qat` before it is saved."
        )
    return {"trained_bits": bits, "trained_ranges": ranges}


def trained_network(model: Model) -> nn.Module | None:
    """A copy of the network with the quantizers that it was trained with; None for full precision."""
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


def _described(model: Model, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    """The network's layers without torch, in execution order; `shape` is that of one observation."""
    trained, sites = trained_network(model), {site.module: site for site in find_layers(model.network)}
    frozen = {} if trained is None else dict(zip(sites, frozen_layers(trained) or (), strict=True))
    layers: list[Layer] = []
    for part in _order(model.network, torch.zeros(1, *shape)):
        if part in sites and sites[part].plain and not isinstance(part, nn.Conv1d):
            layers.append(replace(sites[part].portable(), activation="none", quantized=frozen.get(part)))
        elif layers and (activation := _known(part)) is not None:
            layers[-1] = replace(layers[-1], activation=activation)
        elif not isinstance(part, nn.Flatten | nn.Identity | nn.Sequential):
            raise UserError(f"The model in '{model.path}' has a part {part} that cannot be exported.")
    return tuple(layers)


def _order(network: nn.Module, observation: Tensor) -> list[nn.Module]:
    """The leaf modules in execution order."""
    ran: list[nn.Module] = []
    leaves = [part for part in network.modules() if not list(part.children())]
    hooks = [part.register_forward_hook(lambda part, given, gave: ran.append(part)) for part in leaves]
    with torch.no_grad():
        network(observation)
    for hook in hooks:
        hook.remove()
    return ran


def _known(part: nn.Module) -> Activation | None:
    """The activation function, if it is supported, parameters included."""
    shown = re.sub("(, )?inplace=True", "", part.extra_repr())
    for name, make in MODULES.items():
        if name != "none" and type(part) is type(module := make()) and shown == module.extra_repr():
            return name
    return None
