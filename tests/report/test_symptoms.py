"""What a log says about a training that goes wrong."""

import numpy as np
import pytest

from shoal.report.symptoms import diagnosis_figure, draw_run_diagnosis, symptom
from shoal.training.config import TrainConfig

RNG = np.random.default_rng(0)
WELL = {"q/error": 2.0, "q/actual_rms": 10.0, "policy/same_action/agent/a": 0.4, "policy/same_action/agent/b": 0.9}


def log(returns, untrained=0, noise=1.0, **more):
    """One line per return; the first so many before the first update."""
    returns = np.asarray(returns, float) + noise * RNG.standard_normal(len(returns))
    return [
        {"episode": 100 * k + 100, "updates": max(0, k + 1 - untrained), "return_mean": value} | more
        for k, value in enumerate(returns.tolist())
    ]


RISING = -200 + 100 * (1 - np.exp(-np.arange(100) / 50))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], None),
        (log([-10] * 40), None),  # too few lines to say anything
        (log(RISING, **WELL), None),
        (log(RISING, untrained=5), None),
        (log(RISING[::-1]), "The training return has fallen since about episode 1,000: from"),
        (log([-200] * 100, untrained=20), "Nothing has been learned: the training return is -"),
        (log([-200] * 20 + [-150] * 80, untrained=20), "No improvement since about episode 2,800: the training"),
        (log([*np.linspace(-200, -150, 25), *[-150] * 75]), "No improvement since about episode "),
        (log([-200] * 100, **{"return/group/red": 1.0, "return/group/blue": -1.0}), None),
        (log(RISING, **WELL | {"q/error": 99.0}), None),
        (log(RISING, **WELL | {"q/error": 101.0}), "The Q values diverge: their error is 101, for returns of about 1"),
        (log(RISING, **{"q/error": 9.0, "q/actual_rms": 0.01}), None),  # networks that have just begun
        (log(RISING, **WELL)[:-1] + log(RISING[-1:], **WELL | {"q/error": 1e9}), None),  # only once
        (log(RISING, **WELL | {"policy/same_action/agent/a": 1.0}), "The policies of a have collapsed: each has"),
        (log(RISING, **{"policy/same_action": 1.0}), "The policies have collapsed: each has the same"),
        (log(RISING, **{"policy/same_action": 0.99}), None),
        ([{"episode": None, "return_mean": "x", "updates": None}, {}], None),
    ],
)
def test_symptoms(lines, said):
    found = symptom(lines)
    assert found is None if said is None else found is not None and found.startswith(said), found


def test_false_alarms_are_rare():
    """Curves that still rise, with much noise."""
    assert sum(symptom(log(RISING, noise=5)) is not None for _ in range(50)) <= 1


def test_figure_has_what_the_log_has():
    lines = log(RISING, **{"q/predicted": 1.0, "q/actual": 2.0, "q/error": 3.0, "policy/same_action": 0.5})
    lines[0]["q/error"] = 3000.0
    panels = diagnosis_figure(lines).panels
    assert [panel.title for panel in panels] == [
        "Q values and actual returns",
        "errors of Q values",
        "states with the same action",
    ]
    assert [[series.label for series in panel.series] for panel in panels] == [
        ["predicted", "actual"],
        ["return error"],
        ["policies"],
    ]
    assert [panel.log for panel in panels] == [False, True, False]
    assert panels[0].series[0].at[:2] == [100.0, 200.0] and panels[0].series[1].values[:2] == [2.0, 2.0]


def test_no_picture_of_a_log_without_diagnoses(tmp_path):
    (tmp_path / "config.json").write_text(TrainConfig().to_json())
    (tmp_path / "metrics.jsonl").write_text('{"episode": 100, "return_mean": -3.0}\n')
    assert draw_run_diagnosis(tmp_path) is None and not (tmp_path / "diagnosis.png").exists()
