"""A small VGG: pairs of 3×3 convolutions with max pooling between them."""

from torch import Tensor, nn

WIDTHS = (32, 64, 128)
HIDDEN = 128


class Vgg(nn.Module):
    """Two 3×3 convolutions of 32, 64 and 128 channels each, with batch normalisation; then two linear layers.

    The slides train VGG16, which has 13 convolutions of up to 512 channels.
    """

    def __init__(self, channels: int, side: int, classes: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for width in WIDTHS:
            for _ in range(2):
                layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        left = side // 2 ** len(WIDTHS)
        self.classify = nn.Sequential(
            nn.Flatten(),
            nn.Linear(before * left**2, HIDDEN),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(HIDDEN, classes),
        )
        for module in self.features:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.classify(self.features(x))
        return logits
