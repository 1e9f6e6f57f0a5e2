"""Options of the commands that load a trained policy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from shoal.errors import UserError
from shoal.system.streams import say

if TYPE_CHECKING:
    from shoal.policies.torch_policy import TorchPolicy


@dataclass(frozen=True)
class PolicyArguments:
    """A trained policy, and where it plays."""

    policy: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN-OR-ZIP")]
    """Run folder, or Stable-Baselines3 zip (A2C, PPO, DQN, DDPG, TD3, SAC)."""
    checkpoint: str = "last"
    """Run: newest weights (last), those with the best evaluation (best), or the episode of a snapshot."""
    env: str = ""
    """Environment to play in; empty: the policy's own. A zip needs one, e.g. CartPole-v1."""
    normaliser: str = ""
    """Zip: observation normaliser (VecNormalize) as .npz or .safetensors; .pkl only with --trust."""
    trust: bool = False
    """Allow third-party code: Stable-Baselines3 loads a zip itself (custom classes need that), and a run or file may
    play in the environment that it names (gym:MODULE:NAME, pettingzoo:MODULE). An environment in --env is trusted, and
    that of a run that you trained on this machine."""

    def load(self, verb: str) -> "TorchPolicy":
        """The policy in PyTorch; `verb` is what the command does with it, which takes a run or a zip."""
        from shoal.policies import load
        from shoal.policies.torch_policy import TorchPolicy

        policy = load(
            self.policy, self.env, normaliser=self.normaliser, checkpoint=self.checkpoint, trust=self.trust, warn=say
        )
        if not isinstance(policy, TorchPolicy):
            raise UserError(f"'{self.policy}' is an exported file; {verb} the run or the zip that it was made from.")
        return policy
