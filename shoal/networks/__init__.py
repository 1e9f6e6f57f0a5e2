"""Stacked per-agent networks: actors and critics."""
