"""What may help a training that has diverged."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shoal.training.loop import Training

LARGE_RETURN = 1e6
"""A larger return explains why training diverges: networks and losses are in float32."""


def remedy(training: "Training") -> str:
    """Smaller rewards where returns are very large, else a smaller learning rate."""
    returns = [abs(value) for episode in training.last for value in episode.agents]
    returns += np.abs(training.collector.state()[0].get("returns.sums", np.zeros(1))).ravel().tolist()
    if (largest := max(returns)) > LARGE_RETURN:
        return f"returns are as large as {largest:.1e}: scale down the rewards of {training.config.env}"
    return f"a smaller --learning-rate than {training.config.learning_rate} may help"
