"""The bench of engines: every engine and precision beside PyTorch, and the ratios are of their times."""

import pytest

from shoal.bench import inference, networks
from shoal.bench.timing import blocks

COLUMNS = "network engine precision batch latency_us p99_us memory_mb load_ms ratio".split()


def test_rows_of_a_small_network(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "3x64", (4, (8,), 3))
    rows = inference.run("3x64", seconds=0.02, memory=False)
    assert [list(row)[:9] for row in rows] == [COLUMNS] * len(rows)
    kinds = [("torch", "float32"), ("numba", "float32"), ("onnx", "float32"), ("onnx", "float16"), ("onnx", "int8")]
    kinds.append(("native", "int8"))
    for batch in (1, 64):
        own = [row for row in rows if row["batch"] == batch]
        assert [(row["engine"], row["precision"]) for row in own[:-1]] == kinds and own[-1]["engine"] == "auto"
        for row in own:
            assert row["ratio"] == pytest.approx(own[0]["latency_us"] / row["latency_us"])
            assert row["p99_us"] >= row["latency_us"] and row["load_ms"] > 0


def test_slower_precision_is_reported_and_auto_is_named():
    labels = [("torch", "float32"), ("onnx", "float32"), ("onnx", "float16"), ("onnx", "int8"), ("auto", "int8")]
    times = [[0.010], [0.0020], [0.00205], [0.0021], [0.001]]
    held = {("onnx", "int8", 1): 66.0}
    rows = inference._table("3x64", 1, labels, times, [1.0] * 5, held, "onnx")
    assert [row["note"] for row in rows] == ["", "", "", "slower than this engine's float32", "took onnx"]
    assert [row["memory_mb"] for row in rows] == [None, None, None, 66.0, 66.0]
    assert [row["ratio"] for row in rows] == pytest.approx([1, 5, 0.010 / 0.00205, 0.010 / 0.0021, 10])


def test_memory_is_measured_in_its_own_process():
    policy = networks.bench_policy("3x64")
    held = inference._memory("3x64", policy, [("onnx", "int8"), ("torch", "float32")])
    assert set(held) == {("onnx", "int8", 1), ("onnx", "int8", 64), ("torch", "float32", 1), ("torch", "float32", 64)}
    assert 10 < held["onnx", "int8", 1] < held["torch", "float32", 1]  # played without torch


def test_blocks_call_every_side_in_turns():
    calls = []
    times = blocks([lambda: calls.append("a"), lambda: calls.append("b")], 0.0, block=0.0, least=3)
    assert calls == ["a", "a", "a", "b", "b", "b"] * 3 and [len(own) for own in times] == [3, 3]
