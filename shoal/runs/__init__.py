"""What a run on disk is, whoever trains it."""
