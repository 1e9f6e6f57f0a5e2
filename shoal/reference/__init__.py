"""The baseline that the papers characterise, written plainly: the yardstick for the engine, never its rival.

Read in this order: `replay` (an agent's list of tuples and its loops), `networks`, `agent` (one agent's turn),
`maddpg`, `masac`, `team` (all agents behind the loop's interface), `world` (one mpe2 world), `training`.
What it keeps of the public code that the papers measured, and what not, is in the files' first lines.
"""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.reference.replay import AgentReplay, ListSampler, Replays
    from shoal.reference.team import ReferenceTeam
    from shoal.reference.training import build_parts
    from shoal.reference.world import MpeWorld

__all__ = ["AgentReplay", "ListSampler", "MpeWorld", "ReferenceTeam", "Replays", "build_parts"]

__getattr__ = lazy(
    "shoal.reference",
    {
        "AgentReplay": "shoal.reference.replay",
        "ListSampler": "shoal.reference.replay",
        "MpeWorld": "shoal.reference.world",
        "ReferenceTeam": "shoal.reference.team",
        "Replays": "shoal.reference.replay",
        "build_parts": "shoal.reference.training",
    },
)
