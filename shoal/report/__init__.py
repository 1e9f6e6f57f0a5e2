"""Figures: learning curves, results and episodes."""

from shoal.report.curve import draw_curve, draw_curves, read_metrics
from shoal.report.watch import Film, draw_gif, draw_strip, record, record_frames

__all__ = ["Film", "draw_curve", "draw_curves", "draw_gif", "draw_strip", "read_metrics", "record", "record_frames"]
