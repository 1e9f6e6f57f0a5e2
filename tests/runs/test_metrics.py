"""Reading the log of a run; tests/report/test_curve.py has damaged ones."""

import json

from shoal.runs import metrics
from shoal.runs.metrics import read_metrics


def test_large_logs_are_subsampled_with_last_line_and_evaluations(tmp_path, monkeypatch):
    log = tmp_path / "metrics.jsonl"
    lines = [{"episode": k, **({"evaluate/return_mean": 1.0} if k in (501, 502) else {})} for k in range(1_000)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_metrics(log) == lines
    monkeypatch.setattr(metrics, "LARGE", log.stat().st_size // 10 + 1)
    read = [line["episode"] for line in read_metrics(log)]
    assert read == sorted({*range(0, 1_000, 10), 501, 502, 999})
    monkeypatch.setattr(metrics, "EVALUATIONS", 1)
    assert [line["episode"] for line in read_metrics(log)] == [episode for episode in read if episode != 502]
