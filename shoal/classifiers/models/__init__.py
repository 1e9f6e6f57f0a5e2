"""Image classifiers in the papers' form, as plain torch modules: (B, C, side, side) images to (B, classes) logits."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from shoal.classifiers.data.images import LEAST_SIDE, MOST_SIDE
from shoal.classifiers.models.mlp import Mlp
from shoal.classifiers.models.resnet import ResNet
from shoal.classifiers.models.transformer import RowTransformer
from shoal.classifiers.models.vgg import Vgg
from shoal.errors import check_choice, check_range
from shoal.seeding import stream_seed

MODELS: Mapping[str, Callable[[int, int, int, float], nn.Module]] = {
    "resnet20": partial(ResNet, 3, (16, 32, 64)),
    "resnet8": partial(ResNet, 1, (16, 32, 64)),
    "wide-resnet": partial(ResNet, 1, (64, 128, 256)),
    "vgg": Vgg,
    "mlp": Mlp,
    "transformer": RowTransformer,
}
"""Builders by name: (channels, side, classes, dropout) -> module."""


def make_model(name: str, channels: int, side: int, classes: int, seed: int = 0, dropout: float = 0.0) -> nn.Module:
    """A classifier with initial weights from `seed`; torch's global generator is neither used nor advanced.

    Args:
        name: one of `MODELS`.
        channels: channels of the images.
        side: height and width of the images.
        classes: number of classes.
        seed: random seed of the initial weights.
        dropout: probability with which `mlp`, `vgg` and `transformer` drop hidden units; ResNets have no dropout.

    """
    check_choice("model", name, list(MODELS))
    check_range("channels", channels, 1, 64)
    check_range("side", side, LEAST_SIDE, MOST_SIDE)
    check_range("classes", classes, 2, 1000)
    check_range("dropout", dropout, 0, 0.9)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "initial weights"))
        return MODELS[name](channels, side, classes, dropout)
