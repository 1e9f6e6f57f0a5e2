"""Quantization-aware training of Stable-Baselines3 models: a callback for `learn`.

    model = PPO("MlpPolicy", "CartPole-v1")
    model.learn(100_000, callback=QatCallback(bits=4, delay=0.5))
    model.save("ppo4")

The saved zip holds the ranges as plain numbers, so `shoal quantize` reads them without running code.
"""

from typing import Any

try:
    from stable_baselines3.common.callbacks import BaseCallback
except ImportError:
    from shoal.errors import UserError, install

    raise UserError(f"QatCallback needs Stable-Baselines3; {install('sb3')}.") from None

from shoal.quantization.qat import Qat

KEY = "shoal_qat"  # the model's attribute, and its key in the zip
CRITICS = {"critic", "critic_target", "value_net", "vf_features_extractor"}  # parts of policies that belong to critics
TARGETS = {f"policy.{part}_target": f"policy.{part}" for part in ("q_net", "actor", "critic")}
"""Stable-Baselines3's names of target networks, each with its online network."""


class QatCallback(BaseCallback):
    """Quantization-aware training of all linear and convolutional layers of a model's policy, targets included."""

    def __init__(self, bits: int = 8, delay: float = 0.5, critics: bool = True) -> None:
        """`delay`: share of the steps after which quantization starts; ranges are observed from the start.

        `critics`: quantize the critics as well, as in the paper.
        """
        super().__init__()
        self.bits, self.delay, self.critics = bits, delay, critics
        self.qat: Qat | None = None

    def _on_training_start(self) -> None:
        if self.qat is None:  # a second `learn` continues with the ranges of the first
            self.qat = Qat({"policy": self.model.policy}, self.bits, self.delay, wanted=self._wanted, targets=TARGETS)
            before = getattr(self.model, KEY, None)
            if before and before["bits"] == self.bits:  # a loaded model that was trained with this callback
                if before["on"]:
                    self.qat.on.fill_(1)
                for name, (low, high) in before["ranges"].items():
                    if (layer := self.qat.layers.get(f"policy.{name}")) is not None:
                        layer.set_range(low, high)
        self.keep()

    def _wanted(self, name: str) -> bool:
        return self.critics or CRITICS.isdisjoint(name.split("."))

    def _on_step(self) -> bool:
        assert self.qat is not None
        total: Any = self.model._total_timesteps
        self.qat.progress(self.num_timesteps / max(total, 1))
        return True

    def _on_rollout_start(self) -> None:
        assert self.qat is not None
        self.qat.keep_weights(True)

    def _on_rollout_end(self) -> None:
        assert self.qat is not None
        self.qat.keep_weights(False)
        self.keep()

    def _on_training_end(self) -> None:
        self._on_rollout_end()  # missing if a rollout was aborted

    def keep(self) -> None:
        """Store bits and ranges on the model as plain numbers, to be saved with it."""
        assert self.qat is not None
        ranges = {
            name.removeprefix("policy."): [float(layer.low), float(layer.high)]
            for name, layer in self.qat.layers.items()
            if layer.seen
        }
        call = self.model.start_time  # a later `learn` without this callback makes the stored ranges stale
        setattr(self.model, KEY, {"bits": self.bits, "on": bool(self.qat.on), "learn": call, "ranges": ranges})
