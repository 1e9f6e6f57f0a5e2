"""Hints that a Stable-Baselines3 model was trained with VecNormalize, whose file was not given.

VecNormalize is not part of a zip. Without it the model still plays, quantizes and exports, but sees other observations
than in its training. Nothing proves that it is missing, so these are warnings, and at most one is given.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from shoal.policies.trained import Array
from shoal.quantization.layers import find_layers
from shoal.quantization.normaliser import normaliser_beside
from shoal.quantization.stable_baselines import Model

LARGEST_MEDIAN = 10.0
"""Median size of the first layer's pre-activations; in a trained network it is about 1, and tanh saturates at 5."""
LEAST_EPISODES, MOST_EPISODES = 5, 20
"""Training episodes that a return is compared with: the last ones, since earlier ones may have been learning still."""
DEVIATIONS, SHARE = 2.0, 0.25
"""How far below their mean a return must be: so many standard deviations, plus this share of the mean."""
GIVE = "if it was trained with VecNormalize, pass its file with `normaliser=FILE`."


class MissingNormaliser:
    """Warns once, at the first hint."""

    def __init__(self, model: Model, env: str, warn: Callable[[str], None]) -> None:
        self.model, self.env, self._warn = model, env, warn
        self.silent = model.normaliser is not None or model.channels is not None or model.saw_normalised is False

    def check_files(self) -> None:
        """Look for a normaliser beside the zip, and at what the zip says about its training."""
        path = self.model.path
        if (beside := normaliser_beside(Path(path), self.env)) is not None:
            self._say(f"'{beside}' is not used: if '{path}' was trained with it, pass it with `normaliser=FILE`.")
        elif self.model.saw_normalised:
            self._say(
                f"'{path}' was trained with VecNormalize, whose statistics are not in the zip: unless it left "
                "observations as they were (norm_obs=False), pass its file with `normaliser=FILE`."
            )
        elif self.model.saw_outside:
            self._say(f"'{path}' saw observations outside the environment's bounds at the end of its training: {GIVE}")

    def check_states(self, states: Array) -> None:
        """Compare states (B, 1, O) with the scale that the first layer is made for."""
        first = find_layers(self.model.network)[0]
        if self.silent or tuple(first.weight.shape[1:]) != states.shape[2:]:  # a custom model's own order of layers
            return
        with torch.no_grad():
            inputs = torch.nn.functional.linear(torch.from_numpy(states[:, 0]), first.weight, first.bias)
        if (median := float(inputs.abs().median())) > LARGEST_MEDIAN:
            self._say(
                f"Observations of {self.env} are out of scale for the first layer of '{self.model.path}' "
                f"(median pre-activation ±{median:.3g}): {GIVE}"
            )

    def check_return(self, mean: float) -> None:
        """Compare a mean return with those of the last training episodes."""
        logged = np.array(self.model.logged_returns[-MOST_EPISODES:])
        if len(logged) < LEAST_EPISODES:
            return
        before = float(logged.mean())
        if mean < before - DEVIATIONS * float(logged.std()) - SHARE * abs(before):
            self._say(
                f"'{self.model.path}' returns {mean:.4g} in {self.env}, but {before:.4g} at the end of its training: "
                f"{GIVE}"
            )

    def _say(self, sentence: str) -> None:
        if not self.silent:
            self._warn(sentence)
        self.silent = True
