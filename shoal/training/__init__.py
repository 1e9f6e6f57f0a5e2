"""The training of a team: collector, learner, the loop that joins them, evaluation, and what a run shows and saves."""
