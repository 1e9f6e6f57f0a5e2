"""The tables and figures of QuaRL."""
