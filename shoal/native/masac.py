"""MASAC as a program: the same text as `algorithms/masac.py`, recorded agent by agent instead of computed.

What differs from MADDPG: two critics per agent, of which the smaller value counts; no target policies, but for the TF2
variant; entropies in targets and in the actors' loss; a temperature per agent, fixed or learned.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from shoal.envs.base import EnvSpec
from shoal.inference.policy import LOG_STD_HIGH, LOG_STD_LOW
from shoal.native.maddpg import ENTROPY, MADDPG, NEXT, OWN
from shoal.native.operations import Rows
from shoal.native.program import Span

if TYPE_CHECKING:
    from shoal.algorithms.config import LearnConfig

ENDS = (LOG_STD_LOW, LOG_STD_HIGH)


class MASAC(MADDPG):
    """A team's networks in native memory, and the program of an update."""

    losses = ("q", "p", "entropy")
    heads = 2

    def __init__(
        self, spec: EnvSpec, config: "LearnConfig", hard: bool, dtype: type = np.float32,
        target_entropy: tuple[float, ...] = (),
    ) -> None:  # fmt: skip
        """`target_entropy` of each agent, where temperatures are learned."""
        self.head_width = 1 if spec.discrete else 2
        self.tf2, self.target_entropy = config.variant == "tf2", target_entropy
        self.policy_heads, self.has_target_actors = 1 if self.tf2 else 2, self.tf2
        self.joint_targets = self.tf2  # of the mean entropy
        super().__init__(spec, config, hard, dtype)

    def _make_networks(self) -> None:
        super()._make_networks()
        if self.tf2:
            self.rollout_actors = self.target_actors
        program, n = self.program, self.spec.agents
        value = max(self.config.entropy, 1e-8)
        self.log_alpha = program.array(np.full(n, math.log(value)))
        self.alpha = program.array(np.full(n, value if self.config.learn_entropy else self.config.entropy))
        self.alpha_mean, self.alpha_square = program.zeros(n), program.zeros(n)
        self.entropy = program.zeros(n * self.batch, stride=1)
        self.kept_entropy = program.own_rows(1)
        self.whole_entropy, self.whole_weight = program.alias(self.entropy), program.alias(self.weight)
        self.mean_entropy = program.own(n)

    def record_derived(self) -> None:
        """Also the temperatures, where their logarithms are learned."""
        super().record_derived()
        for i in range(self.spec.agents if self.config.learn_entropy else 0):
            with self.program.span() as span:
                self.program.exponential(self.alpha + i, self.log_alpha + i)
            self.program.piece(span, alone=True)

    def next_actions(self, i: int, m: int) -> Span:
        """Actions of the policy of agent i for the next observations of mini-batch m, and its entropy if it is its own.

        In the TF2 variant actions are the target policy's and the entropy the online policy's.
        """
        program, own = self.program, m == self.own(i)
        with program.span("target Q: next action") as span:
            span.every_chunk()
            observation = self.observation(self.next_joint, i, m)
            if self.tf2:
                self.sample(
                    self.action, self.outputs(self.target_actors, observation, i)[-1], i, self.stream(NEXT, i, m)
                )
                if own:
                    self.policy_entropy(self.kept_entropy, self.outputs(self.actors, observation, i)[-1], i)
            else:
                head = self.outputs(self.actors, observation, i)[-1]
                self.sample_with_entropy(self.action, self.kept_entropy, head, i, self.stream(NEXT, i, m))
            span.publish()
            program.copy(self.played(self.next_joint, i, m), self.action, self.presence(self.next_alive, i, m))
            if own:
                program.copy(Rows(self.entropy + i * self.batch, 1, 1), self.kept_entropy)
        return span

    def before_targets(self, i: int) -> None:
        """In the TF2 variant, by a broadcast slip, the mean entropy of the mini-batch."""
        if self.tf2:
            at = i * self.batch
            self.program.clear(self.mean_entropy + i, 1)
            entropy = Rows(self.whole_entropy + at, 1, 1)
            self.program.weighted_sum(self.mean_entropy + i, entropy, self.whole_weight + at, count=self.batch)

    def back_up(self, target: Rows, next_q: list[Rows], i: int) -> None:
        """r + gamma (the smaller Q' + temperature * entropy of the agent's own policy)."""
        entropy = Rows(self.mean_entropy + i, 0, 1) if self.tf2 else Rows(self.entropy + i * self.batch, 1, 1)
        self.program.back_up(target, self.rewards(i), self.bootstrap + i * self.batch, *next_q, entropy, self.alpha + i)

    def fresh_action(self, head: Rows, i: int) -> list[Rows]:
        """An action of the current policy, and what its gradient needs: a soft sample and probabilities, or noise."""
        action, entropy = self.program.scratch(self.spec.action_size), self.program.vector()
        other, probability = self.sample_with_entropy(action, entropy, head, i, self.stream(OWN, i))
        return [action, other, probability, entropy]

    def to_head(self, out: Rows, gradient: Rows, fresh: list[Rows], head: Rows, i: int, loss: int) -> None:
        """The gradient of a policy's head: that of its action, and of its entropy, which it keeps up."""
        program, weight, alpha = self.program, self.weight + i * self.batch, self.alpha + i
        action, other, probability, entropy = fresh
        size, width = self.spec.action_sizes[i], self.spec.action_size
        program.weighted_sum(loss + 1, entropy, weight)
        program.weighted_sum(loss + 3, entropy, weight, alpha)
        if self.config.learn_entropy:
            program.weighted_sum(loss + 2, entropy, weight, minus=self.target_entropy[i])
        if self.spec.discrete:
            program.choices_backward(out, gradient, other, head, size, weight, 0.0, loss)
            program.choice_entropy_backward(out, probability, head, size, weight, alpha)
        else:
            program.gaussian_backward(out, gradient, action, other, head, width, size, *ENDS, weight, alpha)

    def step_temperature(self, i: int, tail: int) -> None:
        """One step of the logarithm of agent i's temperature, so that its entropy meets the target."""
        program = self.program
        program.subtract(Rows(self.loss + self.spec.agents + i, 1, 1), Rows(tail, 1, 1), Rows(tail + 3, 1, 1))
        if self.config.learn_entropy:
            places = (self.log_alpha + i, tail + 2, self.alpha_mean + i, self.alpha_square + i)
            program.adam(*places, program.rate_factor, 1, 0.0, self.config.learning_rate)
            program.exponential(self.alpha + i, self.log_alpha + i)

    # ---- policies ----------------------------------------------------------------------------------------------------

    def sample(self, action: Rows, head: Rows, i: int, stream: int, soft: Rows | None = None) -> None:
        if self.spec.discrete:
            super().sample(action, head, i, stream, soft)
        else:
            self.sample_with_entropy(action, self.program.vector(), head, i, stream)

    def sample_with_entropy(self, action: Rows, entropy: Rows, head: Rows, i: int, stream: int) -> tuple[Rows, Rows]:
        """Actions and the entropy of their policy: exact for choices, minus the log-probability for boxes.

        Returns soft samples and probabilities of choices; of boxes the noise, and nothing of use.
        """
        program, width, size = self.program, self.spec.action_size, self.spec.action_sizes[i]
        other, probability = program.scratch(width), program.scratch(width)
        if self.spec.discrete:
            super().sample(action, head, i, stream, other)
            program.choice_entropy(entropy, probability, head, size)
        else:
            program.gaussian(action, other, entropy, head, width, size, stream, *ENDS)
        return other, probability

    def policy_entropy(self, entropy: Rows, head: Rows, i: int) -> None:
        """The entropy of the online policy: exact for choices, which need no sample; boxes need one."""
        scratch = self.program.scratch(self.spec.action_size)
        if self.spec.discrete:
            self.program.choice_entropy(entropy, scratch, head, self.spec.action_sizes[i])
        else:
            self.sample_with_entropy(scratch, entropy, head, i, self.stream(ENTROPY, i, self.own(i)))
