"""The precision that a run is configured with: full, quantization-aware training, or a low-precision scheme."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.precision import FULL, Precision
from shoal.algorithms.team import Team
from shoal.errors import UserError
from shoal.networks.actors import Actors
from shoal.quantization.qat import Qat
from shoal.seeding import stream_seed
from shoal.training.config import TrainConfig


def make_precision(team: Team, config: TrainConfig) -> Precision:
    """Apply the run's precision to a new team of the engine."""
    precision: Precision = FULL
    if config.qat_bits is not None:
        precision = QatPrecision(team, config)
    elif config.scheme is not None:
        precision = SchemePrecision(team, config)
    team.use(precision)
    return precision


class QatPrecision(Precision):
    """Quantization-aware training: the networks compute through quantizers, whose ranges are saved with the weights."""

    def __init__(self, team: Team, config: TrainConfig) -> None:
        assert config.qat_bits is not None
        critics = config.qat_critics and config.qat_agent is None
        networks = {name: one for name, one in team.networks.items() if critics or isinstance(one, Actors)}
        self.qat = Qat(networks, config.qat_bits, config.quant_delay, config.qat_agent, targets=team.targets)

    def progress(self, done: float) -> None:
        self.qat.progress(done)

    def state(self) -> dict[str, Tensor]:
        return {f"qat.{name}": value for name, value in self.qat.state().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.state().items():  # which the layers look at
            tensor.copy_(state_of(state, name, tensor.shape))


class SchemePrecision(Precision):
    """A scheme: its MAC units, casts, loss scales and updates in every update; acting stays in float32.

    Each network has its own loss scale.
    """

    dense = True

    def __init__(self, team: Team, config: TrainConfig) -> None:
        from shoal.numerics.schemes.loss_scale import parse_loss_scale
        from shoal.numerics.schemes.run import SchemeRun
        from shoal.numerics.schemes.scheme import parse_scheme

        assert config.scheme is not None
        seed = stream_seed(config.seed, "stochastic rounding")
        self.run = SchemeRun(parse_scheme(config.scheme), parse_loss_scale(config.loss_scale), seed)
        known = {
            f"{network}.{name}": parameter
            for network, module in team.networks.items()
            for name, parameter in module.named_parameters()
        }
        self.names = {id(parameter): name for name, parameter in known.items()}
        self.whole = config.scheme_networks == "all"
        self.run.begin(known, {name: one for name, one in known.items() if one.requires_grad})
        if not self.whole:
            for network, module in team.networks.items():
                if network.removeprefix("target_") != config.scheme_networks:
                    continue
                for method in ("forward", "of_own_action"):
                    if (plain := getattr(module, method, None)) is not None:
                        setattr(module, method, _inside(self.run.context, plain))

    def learning(self) -> AbstractContextManager[object]:
        return self.run.context() if self.whole else nullcontext()

    def of(self, network: str, parameters: Sequence[Tensor]) -> Precision:
        return _NetworkPrecision(self, network, [self.names[id(parameter)] for parameter in parameters])

    def state(self) -> dict[str, Tensor]:
        return {f"scheme.{name}": value for name, value in self.run.state().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        from shoal.numerics.schemes.run import part_of

        state_of(state, "scheme.mac.calls", torch.Size([1]))
        self.run.load_state(part_of(state, "scheme."))

    def metrics(self) -> dict[str, float]:
        return self.run.metrics()


class _NetworkPrecision(Precision):
    """A scheme as the optimizer of one network sees it."""

    def __init__(self, whole: SchemePrecision, network: str, names: list[str]) -> None:
        self.run, self.network, self.names = whole.run, network, names

    def scaled(self, loss: Tensor) -> Tensor:
        self._finite = bool(loss.detach().isfinite())
        return self.run.scaled(self.network, loss)

    def accept(self, gradients: list[Tensor]) -> bool:
        return self.run.accept(self.network, dict(zip(self.names, gradients, strict=True)), self._finite)

    def step(self, parameters: list[Tensor], moments: list[Tensor], step: Callable[[], None]) -> None:
        self.run.apply(dict(zip(self.names, parameters, strict=True)), lambda: moments, step)


def _inside(context: Callable[[], AbstractContextManager[object]], function: Callable[..., Any]) -> Callable[..., Any]:
    """A network's forward pass, and so its backward pass, run in the emulation while it learns."""

    def inside(*args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():  # acting
            return function(*args, **kwargs)
        with context():
            return function(*args, **kwargs)

    return inside


def state_of(state: Mapping[str, Tensor], name: str, shape: torch.Size) -> Tensor:
    """The named tensor of a saved state; a `UserError` if it is missing or has another shape."""
    if name not in state or state[name].shape != shape:
        raise UserError(f"The weights lack '{name}' of shape {tuple(shape)}: they are from a run in another precision.")
    return state[name]
