"""A trained policy with torch weights: it can also be quantized and exported.

Shape letters: B rows, N agents, O observation, A action, U outputs.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal import __version__
from shoal.algorithms.team import threads_for
from shoal.envs.base import EnvSpec, VectorEnv
from shoal.errors import UserError, check_names
from shoal.inference.options import ExportOptions, ExportPrecision
from shoal.inference.policy import Policy
from shoal.policies.quantize_options import QuantizeOptions
from shoal.policies.trained import Array, TrainedPolicy
from shoal.quantization.quantizer import What
from shoal.training.evaluation import Act

if TYPE_CHECKING:
    from shoal.policies.quantize import WidthTable
    from shoal.quantization.export import Exported, Job

StatesFrom = Literal["replay", "played"]
STATES, VISITED, VISITED_IMAGES = 512, 4096, 256
"""Number of states for checking and calibrating an export; for corrections; the same where they are images, of which
each has many rows."""
VISITED_COPIES = 8  # copies of the world in which states for corrections are visited: few, so that episodes get long
CLOSE = 0.01  # boxes count as equal where every entry is within this share of the box's width


class TorchPolicy(TrainedPolicy):
    """A trained policy in torch.

    Attributes:
        spec: its world's agents, observations and actions.
        network: the network to quantize, in full precision.
        trained: the network with the quantizers of its training; None: trained in full precision.
        trained_bits: bits of its quantization-aware training.
        trained_agents: agents that were trained with quantization; None: all.
        layer_names: the name of each layer of the network.
        overhead: bytes besides the parameters: the normaliser.

    """

    spec: EnvSpec
    network: nn.Module
    trained: nn.Module | None
    trained_bits: int | None
    trained_agents: tuple[int, ...] | None = None
    layer_names: tuple[str, ...]
    overhead: int = 0

    @property
    def played_network(self) -> nn.Module:
        """The network without outputs that its most likely actions do not need."""
        return self.network

    @property
    def linear_only(self) -> bool:
        return not any(isinstance(part, nn.Conv2d) for part in self.network.modules())

    @abstractmethod
    def head(self, network: Any, observation: Array) -> Tensor:
        """(B, N, U): a network's outputs for the world's observations (B, N, O)."""

    @abstractmethod
    def actions(self, head: Tensor) -> Array:
        """(B, N, A): the most likely actions, in the world's units."""

    @abstractmethod
    def divergence(self, head: Tensor, other: Tensor) -> Tensor | None:
        """(B, N): KL(first || second) of the action distributions; None where there are none."""

    @abstractmethod
    def portable(self, sample: bool = False, each: bool = False) -> Policy:
        """The policy without torch, for engines and exported files; `each`: it will be split into one per agent.

        `sample`: sample choices instead of taking the most likely.
        """

    @abstractmethod
    def states(self, seed: int = 0) -> tuple[Array, StatesFrom]:
        """(B, N, O) states that it visited, and their source."""

    def notice(self, states: Array, return_mean: float | None = None) -> None:
        """Warn if the states (B, N, O) that it visited in full precision, or its mean return, do not look like those of
        its training."""

    def visited(self, seed: int = 0) -> Array:
        """(B, N, O): states that it visits in full precision with its most likely actions, for corrections."""
        # successive images are alike
        count, steps = (VISITED, VISITED) if self.linear_only else (VISITED_IMAGES, 2 * VISITED_IMAGES)

        def act(observation: Array) -> Array:
            return self.actions(self.outputs(observation, self.network))

        env, rng = self.make_env(VISITED_COPIES, seed), np.random.default_rng(seed)
        return collect_states(env, act, rng, steps // VISITED_COPIES, count)

    @torch.inference_mode()
    def outputs(self, observation: Array, network: nn.Module | None = None) -> Tensor:
        """(B, N, U): outputs for the world's observations, of the policy as trained or of another network."""
        network = network or self.trained or self.network
        with threads_for(len(observation) * sum(parameter.numel() for parameter in network.parameters())):
            head = self.head(network, observation)
        if not bool(torch.isfinite(head).all()):
            raise UserError("The policy outputs NaN or infinity for a state that it visits: it cannot be compared.")
        return head

    def export(
        self, path: str, precision: ExportPrecision = "float32", *, deterministic: bool = True, **options: Any
    ) -> "Exported":
        """Write an ONNX file that maps raw observations to the environment's actions, after checking it.

        Args:
            path: file to write.
            precision: float32, float16, int8, static-int8 or packed.
            deterministic: take the most likely choice; False: sample it, with uniform noise as a second input.
            options: the others of `ExportOptions`, such as `bits`.

        Returns:
            The results of checking the file against PyTorch.

        """
        named = (name for name in vars(ExportOptions()) if name not in ("sample", "each"))
        check_names("export()", options, ["path", "deterministic", *named])
        return self.export_files(Path(path), ExportOptions(precision, **options, sample=not deterministic))[0]

    def export_each(
        self, path: str, precision: ExportPrecision = "float32", *, deterministic: bool = True, **options: Any
    ) -> "list[Exported]":
        """Write one file per agent, with its name before the suffix of `path`; options are those of `export`."""
        return self.export_files(Path(path), ExportOptions(precision, **options, sample=not deterministic, each=True))

    def export_files(self, path: Path, options: ExportOptions) -> "list[Exported]":
        """Write the policy's files, or none if one of them does not play like PyTorch."""
        from shoal.quantization.export import write

        self.portable(options.sample, options.each)  # reports what is wrong before anything is played
        visited = self.visited() if options.correction else None
        states, source = self.states(options.seed)
        return write(self.export_jobs(path, states, options, visited), options, self.export_facts(source))

    def export_jobs(
        self, path: Path, states: Array, options: ExportOptions, visited: Array | None = None
    ) -> "list[Job]":
        """What is written: the policy in one file, or one per agent."""
        from shoal.quantization.export import Job, jobs_of_agents

        policy = self.portable(options.sample, options.each)

        def raw(states: Array) -> Array:
            """As the file takes a world's states: integers as such, not one-hot."""
            return states.argmax(-1)[..., None].astype(np.float32) if policy.one_hot else states

        job = Job(policy, path, raw(states), self.outputs(states).numpy(), None if visited is None else raw(visited))
        if not options.each:
            return [job]
        return jobs_of_agents(job, self.trained_agents[0] if self.trained is not None and self.trained_agents else None)

    def export_facts(self, states_from: StatesFrom = "played") -> dict[str, str]:
        """What an exported file says about where it comes from."""
        return {"shoal_version": __version__, "exported_from": self.name, "states_from": states_from}

    def quantize(
        self,
        bits: int | str | Sequence[int | str] = (8, 4),
        what: Sequence[What] = ("weights", "both"),
        *,
        advance: Callable[[float, str], None] | None = None,
        **options: Any,
    ) -> "WidthTable":
        """Returns, share of unchanged actions and bytes at low precision.

        Args:
            bits: one or more of: widths from 2 to 16, 32 for float32, number formats such as "fp16" and "E4M3".
            what: weights, activations or both.
            advance: called with the number of finished episodes.
            options: the others of `QuantizeOptions`, such as `episodes`.

        """
        from shoal.policies.quantize import WidthSweep, sweep

        check_names("quantize()", options, ["advance", *vars(QuantizeOptions())])
        named = (bits,) if isinstance(bits, int | str) else bits
        settings = QuantizeOptions(tuple(map(str, named)), tuple(what), **options)
        settings.check()
        return sweep(self, WidthSweep.of(settings), advance)


def collect_states(env: VectorEnv, act: Act, rng: np.random.Generator, steps: int, count: int = STATES) -> Array:
    """(B, N, O): states of `env` while `act` plays this many steps; closes the world."""
    with contextlib.closing(env):
        observation = env.reset()
        states = [observation.copy()]
        for _ in range(steps):
            observation = env.step(act(observation)).observation
            states.append(observation.copy())
    whole = np.concatenate(states)
    return whole[rng.choice(len(whole), min(count, len(whole)), replace=False)]


class Thinned:
    """Collects states, at most this many: whenever it is full, every second one is dropped and the stride doubles."""

    def __init__(self, most: int) -> None:
        self.most, self.states = most, list[Array]()  # each (N, O)
        self.stride, self.count = 1, 0

    def add(self, observation: Array) -> None:
        """Collect from (E, N, O) what the stride selects."""
        for state in observation:
            if self.count % self.stride == 0:
                self.states.append(state.copy())
                if len(self.states) > self.most:
                    self.states, self.stride = self.states[::2], 2 * self.stride
            self.count += 1

    def array(self) -> Array:
        """(B, N, O)."""
        return np.stack(self.states)


def equal_actions(actions: Array, others: Array, spec: EnvSpec) -> NDArray[np.bool_]:
    """(B, N): the same choice, or within a hundredth of the box's width in every entry."""
    if spec.action_low is None or spec.action_high is None:
        return np.asarray((actions == others).all(-1))
    return (np.abs(actions - others) <= CLOSE * (spec.action_high - spec.action_low)).all(-1)


def choices_kl(logits: Tensor, others: Tensor) -> Tensor:
    """KL of the categorical distributions of these logits (…, A), from the first to the second."""
    log_p, log_q = logits.double().log_softmax(-1), others.double().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def gaussians_kl(mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor) -> Tensor:
    """KL of one-dimensional Gaussians, entry by entry, from the first to the second."""
    mean, other_mean, wide = mean.double(), other_mean.double(), other_deviation.double()
    ratio = deviation.double() / wide
    return 0.5 * (ratio.square() + ((mean - other_mean) / wide).square() - 1) - ratio.log()
