"""Agents that share a network play as if each had a copy of it, in every engine and file."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.inference import Policy, make_engine
from shoal.inference.correction import Correction, calibrated, corrected
from shoal.inference.engine import KINDS
from shoal.inference.file import PolicyFile
from shoal.inference.form import Form, weight_bytes
from shoal.inference.graph import build
from shoal.inference.native_engine import pack_codes
from shoal.quantization.torch_engine import TorchEngine
from tests.inference.policies import few_bits, observations, random_policy
from tests.inference.test_engine import noise_for

TEAMS = {
    "one kind": random_policy(agents=3, head="box", normalised=True, network_of=(0, 0, 0)),
    "two kinds": random_policy(agents=4, observation=(6, 4), action=(4, 2), network_of=(0, 1, 0, 1)),
    "one alone": random_policy(agents=3, head="gaussian", hidden=(40,), network_of=(0, 1, 0)),
}


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize(("name", "precision"), [*KINDS, ("torch", "float32")])
def test_every_engine_plays_as_with_copies(team, name, precision):
    shared = TEAMS[team]
    x, noise = observations(shared, 40), noise_for(shared, 40)
    ours, theirs = (
        TorchEngine(policy) if name == "torch" else make_engine(policy, name, precision)
        for policy in (shared, shared.unshared())
    )
    for rows in (slice(40), slice(1)):
        actions, expected = ours.act(x[rows], noise[rows]), theirs.act(x[rows], noise[rows])
        if (name, precision) in (("numba", "float32"), ("native", "int8"), ("onnx", "int8")):
            assert np.array_equal(actions, expected)
        else:  # sums of another order
            np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert ours.nbytes < 0.75 * theirs.nbytes
    new = replace(shared, layers=tuple(replace(layer, bias=layer.bias + 0.3) for layer in shared.layers))
    ours.load(new)
    theirs.load(new.unshared())
    np.testing.assert_allclose(ours.act(x, noise), theirs.act(x, noise), atol=1e-5)
    with pytest.raises(UserError, match="different layers"):
        ours.load(shared.unshared())


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(
    "form", [Form(), Form("float16"), Form("int8", 7), Form("static-int8", 7), Form("packed", 3)], ids=str
)
@pytest.mark.parametrize("team", TEAMS)
def test_a_file_has_every_network_once(tmp_path, team, form, single):
    shared, x = TEAMS[team], observations(TEAMS[team], 20)
    form = replace(form, alone=single)
    if form.precision == "static-int8":
        shared = calibrated(shared, x, 7)
    files, sizes = [], []
    for policy in (shared, shared.unshared()):
        path = tmp_path / f"{len(files)}.onnx"
        path.write_bytes(build(policy, form).SerializeToString())
        files.append(PolicyFile(path))
        sizes.append(weight_bytes(policy, form))
    actions, expected = (file.act(x) for file in files)
    if form.precision == "static-int8":  # sums of other codes where a product of another order is on an edge
        assert np.abs(actions - expected).mean() < 0.02
    else:
        np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert files[0].facts["network_of"] == list(shared.network_of) and "network_of" not in files[1].facts
    assert sizes[0] < 0.75 * sizes[1]


@pytest.mark.parametrize("rounding", ["nearest", "output-error"])
@pytest.mark.parametrize("by_rows", [False, True])
def test_corrections_see_the_states_of_all_agents(by_rows, rounding):
    """The same as of one agent that visits what they all do."""
    shared = TEAMS["two kinds"]
    x = observations(shared, 50)
    found = corrected(shared, x, 3, Correction(rounding=rounding), by_rows)
    grids = calibrated(shared, x, 4)
    assert found.network_of == grids.network_of == shared.network_of
    for network, agents in enumerate(shared.members):
        alone = shared.of_agent(agents[0])
        seen = np.concatenate([x[:, i : i + 1, : alone.observation_size] for i in agents])
        expected = corrected(alone, seen, 3, Correction(rounding=rounding), by_rows)
        for ours, theirs in zip(found.layers, expected.layers, strict=True):
            outputs = theirs.outputs
            np.testing.assert_allclose(ours.bias[network, :outputs], theirs.bias[0], atol=1e-6)
            np.testing.assert_allclose(ours.weight[network, : theirs.weight.shape[1], :outputs], theirs.weight[0])
        for ours, theirs in zip(grids.layers, calibrated(alone, seen, 4).layers, strict=True):
            np.testing.assert_allclose(ours.quantized.input.scale[network], theirs.quantized.input.scale[0])


def test_bytes_of_a_policy_and_those_of_before():
    shared = TEAMS["two kinds"]
    frozen = few_bits(shared, observations(shared))
    again = Policy.from_bytes(frozen.to_bytes())
    assert again.network_of == shared.network_of and again.to_bytes() == frozen.to_bytes()
    x = observations(shared)
    assert np.array_equal(again.outputs(x), frozen.unshared().outputs(x))
    assert frozen.nbytes == shared.nbytes == shared.unshared().nbytes / 2


@pytest.mark.parametrize("of", [(0, 0), (0, 2, 0, 2), (0, 1, 2, 3), (-1, 0, 0, 0), (0, 1, 1)])
def test_wrong_numbers_of_networks_are_refused(of):
    with pytest.raises(UserError, match="4 agents, but the numbers of their networks are"):
        replace(TEAMS["two kinds"], network_of=of).check()
    with pytest.raises(UserError, match="has 1 network"):
        replace(TEAMS["two kinds"], network_of=(0, 0, 0, 0)).check()


def test_packed_codes_of_other_networks_are_refused():
    engine = make_engine(TEAMS["one kind"], "native", "int8")
    with pytest.raises(UserError, match="other layers"):
        engine.load_codes(pack_codes(TEAMS["one kind"].unshared()))
