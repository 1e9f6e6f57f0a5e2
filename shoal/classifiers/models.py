"""Image classifiers in the papers' form, as plain torch modules: (B, C, side, side) images to (B, classes) logits."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.classifiers.images import LEAST_SIDE, MOST_SIDE
from shoal.errors import check_choice, check_range
from shoal.seeding import stream_seed

HIDDEN = 128  # hidden units of the MLP's layers, of a VGG's and of the transformer's feed-forward layers
VGG_WIDTHS = (32, 64, 128)
TOKEN, HEADS, LAYERS = 64, 4, 2  # size of the transformer's tokens, its attention heads and layers


class ResNet(nn.Module):
    """2 + 6 · `blocks` layers; the second and third stage halve the side, and usually double the channels.

    With (16, 32, 64) channels, 3 blocks per stage make ResNet-20 and 1 makes ResNet-8. The sums of a stage of `c`
    channels have K = 9 · c terms.
    """

    def __init__(
        self, blocks: int, widths: tuple[int, int, int], channels: int, side: int, classes: int, dropout: float
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        stages, before = [], widths[0]
        for number, width in enumerate(widths):
            first = BasicBlock(before, width, stride=1 if number == 0 else 2)
            stages.append(nn.Sequential(first, *(BasicBlock(width, width) for _ in range(blocks - 1))))
            before = width
        self.stages = nn.Sequential(*stages)
        self.classify = nn.Linear(before, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.norm(self.stem(x))))
        return self.classify(x.mean((2, 3)))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut without parameters (option A of the paper).

    Where the shape changes, the shortcut keeps every second row and column and pads with channels of zeros: nothing
    is multiplied, so that all products of a ResNet but those of the stem and the last layer are 3×3 convolutions.
    """

    def __init__(self, before: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.stride, self.added = stride, width - before

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        x = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(x)) + shortcut)


class Vgg(nn.Module):
    """Two 3×3 convolutions of 32, 64 and 128 channels each, with batch normalisation; then two linear layers.

    The slides train VGG16, which has 13 convolutions of up to 512 channels.
    """

    def __init__(self, channels: int, side: int, classes: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for width in VGG_WIDTHS:
            for _ in range(2):
                layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classify = nn.Sequential(
            nn.Flatten(),
            nn.Linear(before * (side // 2 ** len(VGG_WIDTHS)) ** 2, HIDDEN), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(HIDDEN, classes),
        )  # fmt: skip
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


def init_convolutions(model: nn.Module) -> None:
    """Draw the weights of all convolutions as for layers with ReLU."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)


class Mlp(nn.Module):
    """A multilayer perceptron: two hidden layers with ReLU."""

    def __init__(self, channels: int, side: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * side**2, HIDDEN), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(HIDDEN, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class RowTransformer(nn.Module):
    """Each row of the image, with all its channels, is a token; the logits come from the mean over all tokens."""

    def __init__(self, channels: int, side: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Linear(channels * side, TOKEN)
        self.position = nn.Parameter(0.02 * torch.randn(side, TOKEN))
        layer = nn.TransformerEncoderLayer(TOKEN, HEADS, HIDDEN, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(TOKEN), enable_nested_tensor=False)
        self.classify = nn.Linear(TOKEN, classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(1, 2).flatten(2)  # (B, H, C·W)
        return self.classify(self.encoder(self.embed(rows) + self.position).mean(1))


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

    `dropout`: probability with which `mlp`, `vgg` and `transformer` drop hidden units; ResNets have no dropout.
    """
    check_choice("model", name, list(MODELS))
    check_range("channels", channels, 1, 64)
    check_range("side", side, LEAST_SIDE, MOST_SIDE)
    check_range("classes", classes, 2, 1000)
    check_range("dropout", dropout, 0, 0.9)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "initial weights"))
        return MODELS[name](channels, side, classes, dropout)
