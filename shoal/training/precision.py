"""A run's precision: quantization-aware training put onto the engine's team."""

from shoal.algorithms.team import Team
from shoal.quantization.qat import Qat
from shoal.training.config import TrainConfig


def train_quantized(team: Team, config: TrainConfig) -> Qat | None:
    """Let the team compute through quantizers, if the run is one of that kind; their state goes with the weights."""
    if config.qat_bits is None:
        return None
    critics = config.qat_critics and config.qat_agent is None
    networks = {name: network for name, network in team.networks.items() if critics or "critics" not in name}
    qat = Qat(networks, config.qat_bits, config.quant_delay, config.qat_agent, targets=team.targets)
    team.extra = {f"qat.{name}": value for name, value in qat.state().items()}
    return qat
