"""Residual networks in their CIFAR form: a 3×3 stem, three stages of basic blocks, and no pooling before the end."""

import torch.nn.functional as F
from torch import Tensor, nn


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
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        x = F.relu(self.norm(self.stem(x)))
        x = self.stages(x)
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
        """ReLU of the sum of both branches."""
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        x = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(x)) + shortcut)
