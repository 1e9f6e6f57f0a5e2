"""The baseline that the papers characterise, written plainly: the reference that the engine is compared with.

Read in this order: `replay` (an agent's list of tuples and its loops), `networks`, `agent` (one agent's update),
`maddpg`, `masac`, `team` (all agents behind the loop's interface), `world` (one mpe2 world), `training`.
The module docstrings say what is kept of the public code that the papers measured, and what is not.
"""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal_papers.reference.replay import AgentReplay, ListSampler, Replays
    from shoal_papers.reference.team import ReferenceTeam
    from shoal_papers.reference.training import build_parts
    from shoal_papers.reference.world import MpeWorld

SAMPLERS = ("uniform", "neighbor", "neighbor-v1", "neighbor-v2")
"""Its samplers; here, because they are checked before numba is imported."""

__all__ = ["AgentReplay", "ListSampler", "MpeWorld", "ReferenceTeam", "Replays", "build_parts"]

__getattr__ = lazy(
    "shoal_papers.reference",
    {
        "AgentReplay": "shoal_papers.reference.replay",
        "ListSampler": "shoal_papers.reference.replay",
        "MpeWorld": "shoal_papers.reference.world",
        "ReferenceTeam": "shoal_papers.reference.team",
        "Replays": "shoal_papers.reference.replay",
        "build_parts": "shoal_papers.reference.training",
    },
)
