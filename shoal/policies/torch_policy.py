"""A trained policy whose weights are at hand in torch: it can also be quantized and exported.

Shape letters: B rows, N agents, O observation, A action, U outputs.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.algorithms.team import threads_for
from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.inference.form import Precision
from shoal.inference.policy import Policy
from shoal.policies.trained import Array, TrainedPolicy
from shoal.quantization.affine import Style
from shoal.training.config import TrainConfig

if TYPE_CHECKING:
    from shoal.policies.widths import What, WidthTable
    from shoal.quantization.export import Exported

StatesFrom = Literal["replay", "played"]


class TorchPolicy(TrainedPolicy):
    """A trained policy in torch.

    Attributes:
        config: the settings of its world; of a run all of its settings.
        spec: what its world asks of its agents.
        network: what is quantized, in full precision.
        trained: the same as quantization-aware training left it; None: it was trained in full precision.
        trained_bits: the bits that it was trained for.
        trained_agents: which agents were trained for these bits; None: all.
        layer_names: what each layer of the network is called.
        overhead: bytes of what is neither quantized nor a parameter: the normaliser.

    """

    config: TrainConfig
    spec: EnvSpec
    network: nn.Module
    trained: nn.Module | None
    trained_bits: int | None
    trained_agents: tuple[int, ...] | None = None
    layer_names: tuple[str, ...]
    overhead: int = 0

    @property
    def env(self) -> str:
        """The name of its world."""
        return self.config.env

    @property
    def linear_only(self) -> bool:
        """Whether it has no convolutions."""
        return not any(isinstance(part, nn.Conv2d) for part in self.network.modules())

    @abstractmethod
    def head(self, network: Any, observation: Array) -> Tensor:
        """(B, N, U): a network's outputs for the world's observations (B, N, O)."""

    @abstractmethod
    def actions(self, head: Tensor) -> Array:
        """(B, N, A): the most likely actions, in the world's units."""

    @abstractmethod
    def divergence(self, head: Tensor, other: Tensor) -> Tensor | None:
        """(B, N): KL of the action distributions, from the first to the second; None where there are none."""

    @abstractmethod
    def portable(self, sample: bool = False, each: bool = False) -> Policy:
        """The policy described without torch, as engines run it and files hold it.

        Args:
            sample: draw choices by their probabilities instead of taking the most likely.
            each: the agents will be taken apart.

        """

    @abstractmethod
    def states(self, seed: int = 0) -> tuple[Array, StatesFrom]:
        """(B, N, O) states of its world that it met, and where they are from."""

    @torch.inference_mode()
    def outputs(self, observation: Array, network: nn.Module | None = None) -> Tensor:
        """(B, N, U) for the world's observations, as the policy was trained, or of another network in its place."""
        network = network or self.trained or self.network
        with threads_for(len(observation) * sum(parameter.numel() for parameter in network.parameters())):
            head = self.head(network, observation)
        if not bool(torch.isfinite(head).all()):
            raise UserError("The policy gives NaN or infinity for a state that it meets: it cannot be compared.")
        return head

    def equal(self, actions: Array, others: Array) -> NDArray[np.bool_]:
        """(B, N): where the actions are as good as the same."""
        from shoal.policies.compare import equal_actions

        return equal_actions(actions, others, self.spec)

    def export(
        self,
        path: str,
        precision: Precision = "float32",
        *,
        bits: int | None = None,
        single: bool = False,
        sample: bool = False,
        tolerance: float | None = None,
        seed: int = 0,
    ) -> "Exported":
        """Write an ONNX file that maps raw observations to the environment's actions, once it is checked.

        Args:
            path: file to write.
            precision: float32, float16, int8, static-int8 or packed.
            bits: bits of the weights, where the precision has a choice.
            single: for one state at a time: int8 products are then fused.
            sample: draw choices by their probabilities, with uniform noise as a second input.
            tolerance: largest mean error of an action, as a share of its range; None: by precision.
            seed: decides the states that it is checked with.

        Returns:
            What was found out when the file was checked against PyTorch.

        """
        from shoal.policies.export import Wanted, export

        return export(self, path, Wanted(precision, bits, single, sample, tolerance, seed))[0]

    def export_each(self, path: str, precision: Precision = "float32", **options: Any) -> "list[Exported]":
        """One file per agent, its name put before the ending of `path`; options are those of `export`."""
        from shoal.policies.export import Wanted, export

        return export(self, path, Wanted(precision, **options, each=True))

    def quantize(
        self,
        bits: Sequence[int | str] = (8, 4),
        what: "Sequence[What]" = ("weights", "both"),
        *,
        style: Style = "standard",
        episodes: int = 100,
        seed: int = 1,
        advance: Callable[[float, str], None] | None = None,
    ) -> "WidthTable":
        """What the policy still gets in few bits, and how many of its actions stay the same.

        Args:
            bits: widths from 2 to 16, 32 for float32, or number formats such as "fp16" and "E4M3".
            what: weights, activations or both.
            style: standard: integer codes, one scale per output channel; paper: QuaRL's formula.
            episodes: episodes of each row; all rows play the same ones.
            seed: decides where the episodes start.
            advance: told of every episode that ends.

        """
        from shoal.policies.widths import Sweep, named_width, sweep

        widths = tuple(named_width(str(word), style) for word in bits)
        return sweep(self, Sweep(widths, tuple(what), episodes=episodes, seed=seed), advance)
