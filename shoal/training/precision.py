"""The precision that a run is configured with: full, quantization-aware training, or an emulated MAC unit."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.algorithms.precision import FULL, Precision
from shoal.algorithms.team import Team
from shoal.errors import UserError
from shoal.networks import JointCritics
from shoal.quantization.qat import Qat
from shoal.seeding import stream_seed
from shoal.training.config import TrainConfig

if TYPE_CHECKING:
    from shoal.numerics import Emulation


def make_precision(team: Team, config: TrainConfig) -> Precision:
    """Apply the run's precision to a new team of the engine."""
    precision: Precision = FULL
    if config.qat_bits is not None:
        precision = QatPrecision(team, config)
    elif config.mac is not None:
        precision = MacPrecision(config.mac, config.seed)
    team.use(precision)
    return precision


class QatPrecision(Precision):
    """Quantization-aware training: the networks compute through quantizers, whose ranges are saved with the weights."""

    def __init__(self, team: Team, config: TrainConfig) -> None:
        assert config.qat_bits is not None
        critics = config.qat_critics and config.qat_agent is None
        networks = {name: one for name, one in team.networks.items() if critics or not isinstance(one, JointCritics)}
        self.qat = Qat(networks, config.qat_bits, config.quant_delay, config.qat_agent, targets=team.targets)

    def progress(self, done: float) -> None:
        """Switch quantization on after its delay."""
        self.qat.progress(done)

    def state(self) -> dict[str, Tensor]:
        """Whether it is on, and the ranges of all layers' inputs."""
        return {f"qat.{name}": value for name, value in self.qat.state().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy into the tensors that the layers look at."""
        for name, own in self.state().items():
            own.copy_(state_of(state, name, own.shape))


class MacPrecision(Precision):
    """Every product of an update, forward and backward, goes through a MAC unit; acting stays in float32."""

    dense = True

    def __init__(self, unit: str, seed: int) -> None:
        from shoal.numerics import emulate

        self.emulation: Emulation = emulate(unit, seed=stream_seed(seed, "stochastic rounding"))

    def learning(self) -> AbstractContextManager[object]:
        """Run the step in the emulation."""
        return self.emulation

    def state(self) -> dict[str, Tensor]:
        """All counters: the number of the next product determines the random bits of stochastic rounding."""
        return {f"mac.{name}": torch.tensor(numbers) for name, numbers in self.emulation.state().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from these counters."""
        state_of(state, "mac.calls", torch.Size([1]))
        held = {name: numbers for name, numbers in state.items() if name.startswith("mac.")}
        self.emulation.load_state({name.removeprefix("mac."): held[name].tolist() for name in held})

    def figures(self) -> dict[str, float]:
        """MACs so far, and their event counts."""
        names = ("macs", "saturated", "overflowed", "underflowed")
        return {f"mac/{name}": getattr(self.emulation, name) for name in names}


def state_of(state: Mapping[str, Tensor], name: str, shape: torch.Size) -> Tensor:
    """The named tensor of a saved state; a `UserError` if it is missing or has another shape."""
    if name not in state or state[name].shape != shape:
        raise UserError(f"The weights lack '{name}' of shape {tuple(shape)}: they are from a run in another precision.")
    return state[name]
