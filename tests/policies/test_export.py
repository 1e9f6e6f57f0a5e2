"""`shoal quantize` and `shoal export` agree on bytes."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.algorithms import make_team
from shoal.errors import UserError
from shoal.inference.form import Form, weight_bytes
from shoal.policies import load
from shoal.policies.run import RunPolicy
from shoal.quantization.ptq import ModelQuantizer, Quantizer, model_bytes
from tests.policies.zips import make, saved
from tests.quantization.teams import SMALL, box_spec

FORMS = {32: "float32", 16: "float16", 8: "int8", 3: "packed"}


@pytest.fixture(scope="module")
def zipped(tmp_path_factory):
    """A SAC with a normaliser; its layers have odd sizes."""
    folder = tmp_path_factory.mktemp("sac")
    np.savez(folder / "n.npz", mean=np.zeros(3), var=np.ones(3))
    path = saved(make("sac", "Pendulum-v1", policy_kwargs={"net_arch": [11, 7]}), folder / "sac.zip")
    return load(path, "Pendulum-v1", normaliser=str(folder / "n.npz"))


@pytest.mark.parametrize("corrected", [False, True])
def test_weight_and_file_bytes_match_the_export(zipped, tmp_path, corrected):
    table = zipped.quantize(["32", "fp16", 8, 3], what=["weights"], episodes=1, correct_bias=corrected)
    rows = {row.bits: row for row in table.rows}  # where there are two, the last is the corrected one
    for bits, precision in FORMS.items():
        path = tmp_path / f"{precision}.onnx"
        file = zipped.export(str(path), precision, bits=3 if bits == 3 else None, correct_bias=corrected)
        assert (file.bytes, file.weight_bytes) == (rows[bits].file_bytes, rows[bits].bytes)
        assert file.bytes == path.stat().st_size
        assert (file.float32_file_bytes, file.float32_bytes) == (rows[32].file_bytes, rows[32].bytes)
        assert file.bytes > file.weight_bytes


def test_unexportable_policies_are_quantized_without_file_bytes(tmp_path):
    slope = partial(torch.nn.LeakyReLU, negative_slope=0.2)
    model = make("ppo", "CartPole-v1", policy_kwargs={"net_arch": [8], "activation_fn": slope})
    policy = load(saved(model, tmp_path / "ppo.zip"), "CartPole-v1", trust=True)
    table = policy.quantize([8], what=["weights"], episodes=1, correct_bias=False)
    assert [(row.precision, row.file_bytes) for row in table.rows] == [("float32", None), ("8 bits", None)]
    with pytest.raises(UserError, match="cannot be exported"):
        policy.export(str(tmp_path / "ppo.onnx"))


def test_deviations_are_not_counted():
    team = make_team(box_spec(), replace(SMALL, algorithm="masac"), 3, torch.device("cpu"))
    policy = RunPolicy(team, SMALL, Path("run"))
    played = policy.portable().played()
    for bits, precision in ((8, "int8"), (3, "packed")):
        plan = ModelQuantizer(Quantizer(bits, per_channel=True))
        counted = model_bytes(policy.played_network, plan)
        assert counted == weight_bytes(played, Form(precision, bits)) < model_bytes(policy.network, plan)
