"""The picture of a study."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import counted
from shoal.files import write_whole
from shoal.report.curve import COLOURS, FAINT_INK, INK, smooth
from shoal.report.panels import draw_panels
from shoal.report.phases import draw_growth, draw_inside_update, draw_neighbor, draw_shares
from shoal.studies.study import Study


def draw_study(study: Study, path: Path) -> Path:
    """Write the study's picture."""
    if study.picture == "shares":
        return draw_shares(study.data["rows"], path)
    if study.picture == "growth":
        return draw_growth(study.data["growth"], path)
    if study.picture == "inside-update":
        return draw_inside_update(study.data["rows"], path)
    if study.picture == "neighbor":
        return draw_neighbor(study.data["neighbor"], path)
    if study.picture == "panels":
        return draw_panels(study.title, study.data["panels"], path)
    return draw_rewards(study.data["curves"], path)


def draw_rewards(curves: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """A panel for every world and number of agents: mean over seeds, and a band from the worst to the best seed."""
    from matplotlib.figure import Figure

    panels: dict[tuple[str, int], dict[str, list[Mapping[str, Any]]]] = {}
    for one in curves:
        panels.setdefault((one["world"], one["agents"]), {}).setdefault(one["variant"], []).append(one)
    figure = Figure(figsize=(max(6.4, 4.6 * min(2, len(panels))), 3.4 * -(-len(panels) // 2)), layout="constrained")
    grid = figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, ((world, agents), variants) in zip(grid.flat, panels.items(), strict=False):
        for colour, (variant, seeds) in zip(COLOURS, variants.items(), strict=False):
            shortest = min(len(one["curve"]) for one in seeds)
            episodes = [line["episode"] for line in seeds[0]["curve"][:shortest]]
            returns = np.array(
                [smooth(np.array([line["return_mean"] for line in one["curve"][:shortest]])) for one in seeds]
            )  # (seeds, lines)
            axes.fill_between(episodes, returns.min(0), returns.max(0), color=colour, alpha=0.15, linewidth=0)
            axes.plot(episodes, returns.mean(0), color=colour, linewidth=1.4, label=variant)
        axes.set_title(f"{world}, {counted(agents, 'agent')}", fontsize=10, color=INK)
        axes.set_xlabel("episode", fontsize=9, color=FAINT_INK)
        axes.set_ylabel("return per agent", fontsize=9, color=FAINT_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.legend(fontsize=8, frameon=False)
    title = "Training return per agent: mean over seeds, band from the worst to the best seed"
    figure.suptitle(title, fontsize=11, color=INK)
    content = io.BytesIO()
    figure.savefig(content, dpi=130)
    return write_whole(path, content.getvalue())
