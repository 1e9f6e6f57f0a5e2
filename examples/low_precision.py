"""Train an unmodified PyTorch model through an 8-bit MAC unit, and in float32 for comparison.

    python examples/low_precision.py --steps 400

Every product of the forward and the backward pass has E5M2 operands and is summed in an E6M5 accumulator, bit by bit as
in hardware. The data are two synthetic spirals.
"""

import math

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from shoal.numerics import low_precision


def spirals(points: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (B, 2) on two intertwined spirals with some noise, and which spiral (B,) each is on."""
    random = torch.Generator().manual_seed(seed)
    label = torch.arange(points) % 2
    radius = torch.rand(points, generator=random).sqrt()
    angle = 1.5 * math.pi * radius + math.pi * label
    place = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return place + 0.02 * torch.randn(points, 2, generator=random), label


def train(scheme: str, steps: int, seed: int = 0) -> float:
    """Train a small classifier in a scheme; its accuracy on new points, computed in the scheme as well."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    training = low_precision(model, optimizer, scheme, loss_scale="dynamic")
    for step in range(steps):
        points, labels = spirals(128, seed=1 + step)
        with training:
            loss = F.cross_entropy(model(points), labels)
        training.step(loss)  # scales the loss, and skips the step if a gradient overflows
    points, labels = spirals(1_000, seed=0)
    with training.evaluating():
        accuracy = (model(points).argmax(1) == labels).float().mean().item()
    print(f"{scheme}: {accuracy:.1%} correct; loss scale {training.scale:g}, {training.skipped} steps skipped")
    return accuracy


def main(steps: int = 400, scheme: str = "E5M2:5+E6M5") -> tuple[float, float]:
    """Accuracy in float32 and in low precision.

    Args:
        steps: training steps.
        scheme: a MAC unit or a training scheme, such as hfp8 or bf16.

    """
    return train("float32", steps), train(scheme, steps)


if __name__ == "__main__":
    tyro.cli(main)
