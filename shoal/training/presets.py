"""Settings by name: what `--preset tuned` puts in place of settings that are not given, by algorithm and world.

Those of `--preset papers`, the default, are in `algorithms/config.py`. The tuned ones were found on seeds 11 to 13, by
1,000 evaluation episodes each; docs/results/learning.md has results on other seeds.
"""

from typing import Any

TEAM: dict[str, Any] = {
    "share": "all", "critic": "pooled", "entities": "distance", "n_step": 3, "update_every": 12,
}  # fmt: skip
TUNED: dict[tuple[str, str], dict[str, Any]] = {
    ("maddpg", "cooperative-navigation"): {
        **TEAM, "critic_hidden": (64, 64, 64), "batch": 512, "learning_rate": 0.002,
    },
    ("maddpg", "predator-prey"): {**TEAM, "batch": 256, "learning_rate": 0.001},
}  # fmt: skip
"""By algorithm and world."""
