"""A seeded source of the noise that policies need, on any device."""

from collections.abc import Mapping

import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.networks import NoiseSource
from shoal.networks.arrays import to_arrays, to_tensors


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


def random_state(sources: Mapping[str, NoiseSource]) -> dict[str, NDArray]:
    """The states of these generators, by name."""
    return to_arrays({name: _generator(source).get_state() for name, source in sources.items()})


def load_random_state(sources: Mapping[str, NoiseSource], state: Mapping[str, NDArray]) -> None:
    """Continue from what `random_state` returned."""
    given = to_tensors(state)
    for name, source in sources.items():
        _generator(source).set_state(given[name])


def _generator(source: NoiseSource) -> torch.Generator:
    assert isinstance(source, Noise)
    return source.generator
