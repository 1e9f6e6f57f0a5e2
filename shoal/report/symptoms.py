"""The problem that a run's log shows, in one sentence, and a picture of its diagnoses.

The numbers are explained in docs/returns.md, the thresholds in docs/advice.md.
"""

from pathlib import Path

import numpy as np

from shoal.report.curve import GROUP, Metrics, curve_title, lines_of, points
from shoal.report.panels import draw_figure
from shoal.results.figure import Figure, Panel, Series
from shoal.runs.folder import DIAGNOSIS, METRICS

IN_A_ROW = 3  # latest diagnoses that must all show a problem of Q values or policies
FAR = 10.0  # diverged Q values: error in multiples of the largest actual returns, or of 1
SAME = 0.995  # collapsed policy: least share of states with the same action
PARTS, LEAST_LINES = 10, 5  # parts of the log, and the fewest lines in each
SOME, CLEAR = 2.0, 4.0  # differences of two parts' mean returns, in standard errors: possible and clear progress

PANELS: dict[tuple[str, str], dict[str, str]] = {
    ("Q values and actual returns", "discounted return"): {"predicted": "q/predicted", "actual": "q/actual"},
    ("errors of Q values", "root mean square"): {"return error": "q/error", "TD error": "q/td_error"},
    ("gradient norms", "after clipping"): {"actors": "gradient/actors", "critics": "gradient/critics"},
    ("entropy of the policies", "nats"): {"policies": "policy/entropy"},
    ("states with the same action", "share"): {"policies": "policy/same_action"},
    ("clipped gradients, at most", "share"): {
        "actors": "gradient/actors_clipped", "critics": "gradient/critics_clipped",
    },
}  # fmt: skip
"""Title and unit of each panel, and its curves by label."""
WIDE = 100.0  # ratio of the largest to the smallest error above which their axis is logarithmic


def diagnosis_figure(metrics: Metrics | str | Path, title: str = "") -> Figure:
    """The diagnoses in a run's log; panels without data are left out."""
    lines, panels = lines_of(metrics), []
    for (name, unit), keys in PANELS.items():
        curves = [(label, *points(lines, key)) for label, key in keys.items()]
        series = [Series(label, y.tolist(), at=x.tolist()) for label, x, y in curves if len(x)]
        if series:
            values = np.concatenate([y for *_, y in curves])
            log = name.startswith("errors") and values.max() > WIDE * values.min() > 0
            panels.append(Panel(name, unit, series, "episodes", log=bool(log)))
    return Figure("diagnosis", title, panels, columns=3)


def draw_run_diagnosis(run: Path) -> Path | None:
    """Write the picture into a run's folder, if its log has diagnoses (those of earlier versions have none)."""
    figure = diagnosis_figure(run / METRICS, curve_title(run))
    return draw_figure(figure, run / DIAGNOSIS) if figure.panels else None


def symptom(metrics: Metrics | str | Path) -> str | None:
    """The first problem found: Q values diverge, policies have collapsed, returns do not improve."""
    lines = lines_of(metrics)
    return _diverging(lines) or _collapsed(lines) or _no_better(lines)


def _diverging(lines: Metrics) -> str | None:
    errors, actual = points(lines, "q/error")[1], points(lines, "q/actual_rms")[1]
    if len(errors) < IN_A_ROW or errors[-IN_A_ROW:].min() <= FAR * max(1.0, actual.max()):
        return None
    return f"The Q values diverge: their error is {errors[-1]:,.3g}, for returns of about {actual[-1]:,.3g}."


def _collapsed(lines: Metrics) -> str | None:
    key = "policy/same_action"
    agents = {name.removeprefix(f"{key}/agent/"): name for line in lines for name in line if f"{key}/agent/" in name}
    latest = {agent: points(lines, name)[1][-IN_A_ROW:] for agent, name in (agents or {"": key}).items()}
    fallen = [agent for agent, shares in latest.items() if len(shares) == IN_A_ROW and shares.min() >= SAME]
    if not fallen:
        return None
    shown = ", ".join(fallen[:3]) + (", …" if len(fallen) > 3 else "")
    whose = "The policies have" if len(fallen) == len(latest) else f"The policies of {shown} have"
    return f"{whose} collapsed: each has the same most likely action in nearly all states."


def _no_better(lines: Metrics) -> str | None:
    """Compare the parts of the log since the first update; None for groups that learn against each other."""
    if len({name for line in lines for name in line if name.startswith(GROUP)}) > 1:
        return None
    before, since = ([line for line in lines if bool(line.get("updates")) is learned] for learned in (False, True))
    episodes, returns = points(since, "return_mean")
    if len(returns) < PARTS * LEAST_LINES:
        return None
    parts = np.array_split(returns, PARTS)
    means = np.array([part.mean() for part in parts])
    noise = np.sqrt(np.median([part.var(ddof=1) for part in parts]))
    error = noise * np.sqrt(2 * PARTS / len(returns))  # of a difference
    first = int(np.argmax(means >= means.max() - SOME * error))  # the first part that no other is better than
    best, last = means.max(), means[-1]
    end = f"{episodes[sum(map(len, parts[: first + 1])) - 1]:,.0f}"
    if last < best - CLEAR * error:
        return f"The training return has fallen since about episode {end}: from {best:,.4g} to {last:,.4g}."
    untrained = points(before, "return_mean")[1]
    if len(untrained) >= LEAST_LINES and best < untrained.mean() + CLEAR * noise / np.sqrt(len(untrained)):
        before_it = f"before the first update it was {untrained.mean():,.4g}"
        return f"Nothing has been learned: the training return is {last:,.4g}; {before_it}."
    if first < PARTS // 2:
        return f"No improvement since about episode {end}: the training return has stayed near {last:,.4g}."
    return None
