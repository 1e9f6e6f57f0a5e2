"""The baseline that the papers characterise, written plainly: the reference that the engine is compared with.

Read in this order: `replay` (an agent's list of tuples and its loops), `agent` (networks, and one agent's update),
`algorithms` (MADDPG and MASAC), `team` (all agents behind the loop's interface), `world` (one mpe2 world), `training`.
The module docstrings say what is kept of the public code that the papers measured, and what is not.
"""

SAMPLERS = ("uniform", "neighbor", "neighbor-v1", "neighbor-v2")
"""Its samplers; here, because they are checked before numba is imported."""
