"""Runs on disk, of teams and of classifiers: folder, checkpoints, log, settings, life cycle."""
