"""A seeded source of the noise that policies need, on any device."""

import torch
from torch import Tensor


class Noise:
    """Called with a kind and a shape; every draw moves the one generator on."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def __call__(self, kind: str, shape: tuple[int, ...]) -> Tensor:
        """Standard Gumbel ("gumbel"), standard normal ("normal"), or uniform noise in [0, 1) ("uniform")."""
        empty = torch.empty(shape, device=self.device)
        if kind == "uniform":
            return empty.uniform_(generator=self.generator)
        if kind == "gumbel":
            # by uniform numbers, never 0 or 1: quicker than by exponential ones
            return empty.uniform_(generator=self.generator).clamp_(min=2**-25).log_().neg_().log_().neg_()
        return empty.normal_(generator=self.generator)
