"""A multilayer perceptron."""

from torch import Tensor, nn

HIDDEN = 128


class Mlp(nn.Module):
    """Two hidden layers with ReLU."""

    def __init__(self, channels: int, side: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * side**2, HIDDEN), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(HIDDEN, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.layers(x)
        return logits
