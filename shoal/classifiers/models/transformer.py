"""A two-layer transformer encoder that reads an image row by row."""

import torch
from torch import Tensor, nn

WIDTH, HEADS, HIDDEN, LAYERS = 64, 4, 128, 2


class RowTransformer(nn.Module):
    """Each row of the image, with all its channels, is a token; the logits come from the mean over all tokens."""

    def __init__(self, channels: int, side: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Linear(channels * side, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(side, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.classify = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        rows = x.transpose(1, 2).flatten(2)  # (B, H, C·W)
        logits: Tensor = self.classify(self.encoder(self.embed(rows) + self.position).mean(1))
        return logits
