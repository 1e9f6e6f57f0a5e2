"""Exports: a trained team's actions from the file, and the check before it is written."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from shoal import __version__, train
from shoal.algorithms import make_team
from shoal.envs import make_env
from shoal.errors import UserError
from shoal.inference import Head
from shoal.inference.correction import Correction, corrected
from shoal.inference.file import PolicyFile
from shoal.inference.form import make_form
from shoal.inference.grid import safe_bits
from shoal.inference.layers import layer_codes
from shoal.inference.options import PRECISIONS, ExportOptions
from shoal.policies.run import RunPolicy, load_run
from shoal.quantization import export
from shoal.quantization.export import Job, checked, from_team, refuse_if_wrong, write
from shoal.replay import Ring
from shoal.replay.layout import RowLayout
from shoal.runs.checkpoint import Checkpoints
from shoal.training.loop import Training
from shoal.training.precision import make_precision
from shoal.training.resume import snapshot
from tests.inference.policies import few_bits, observations, random_policy
from tests.inference.simulated import int8_outputs
from tests.quantization.teams import SMALL, box_spec, choice_spec, export_policy, states_for, team_outputs


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
@pytest.mark.parametrize("spec", [choice_spec(), box_spec()])
def test_a_teams_policy_acts_as_the_team(algorithm, spec):
    config = replace(SMALL, algorithm=algorithm)
    team = make_team(spec, config, 3, torch.device("cpu"))
    x = states_for(spec)
    policy = from_team(team).check()
    assert np.allclose(policy.to_world(policy.reference(x)), team.to_world(team.act(x, explore=False)), atol=1e-5)
    assert np.allclose(policy.outputs(x), team_outputs(team, x), atol=1e-5)
    assert policy.parameters == team.actors.weight_count


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("spec", [choice_spec(), box_spec()])
def test_every_precision_is_close_to_pytorch(tmp_path, spec, precision, single):
    team = make_team(spec, replace(SMALL, algorithm="masac"), 3, torch.device("cpu"))
    x, path = states_for(spec), tmp_path / "policy.onnx"
    policy, bits = from_team(team), 7 if precision == "packed" else None
    found = export_policy(policy, path, precision, x, team_outputs(team, x), bits, single)
    file = PolicyFile(path)
    played, expected = file.play(x), team.to_world(team.act(x, explore=False))
    if spec.discrete:
        assert (played == expected).all(-1).mean() == pytest.approx(found.agreement) and found.agreement > 0.9
    else:
        width = np.where(spec.action_mask, spec.action_high - spec.action_low, 1)
        assert (np.abs(played - expected) / width).max() < {"float32": 1e-5, "float16": 2e-3}.get(precision, 0.1)
        assert found.error > 0 or precision == "float32"
    assert found.error <= found.tolerance and found.alone_equal and found.bytes == path.stat().st_size
    assert found.int8_share == (1.0 if precision.endswith("int8") else 0.0)
    assert file.facts["error"] == found.error and file.facts["scheme"] and file.facts["states"] == 64


def test_refused_export_keeps_the_old_file(tmp_path, monkeypatch):
    team = make_team(box_spec(), SMALL, 3, torch.device("cpu"))
    x, path = states_for(box_spec()), tmp_path / "policy.onnx"
    path.write_bytes(b"old")
    policy, outputs = from_team(team), team_outputs(team, x)
    with pytest.raises(UserError, match="was not written: the policy's layers in sequence give other outputs"):
        export_policy(policy, path, "float32", x, outputs + 0.01)
    with pytest.raises(UserError, match=r"with packed the actions are wrong by .* at most 1e-06"):
        export_policy(policy, path, "packed", x, outputs, 3, tolerance=1e-6)
    with pytest.raises(UserError, match="NaN or infinity for a state"):
        export_policy(policy, path, "float32", x, outputs * np.nan)
    monkeypatch.setattr(export, "refuse_other_network", lambda *given: None)
    with pytest.raises(UserError, match="was not written: with float32 the actions are wrong by"):
        export_policy(policy, path, "float32", x, outputs + 0.01)
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_export_not_in_8_bits_or_batch_dependent_is_refused(tmp_path):
    team, x = make_team(box_spec(), SMALL, 3, torch.device("cpu")), states_for(box_spec())
    found = export_policy(from_team(team), tmp_path / "p.onnx", "int8", x, team_outputs(team, x))
    with pytest.raises(UserError, match="only 40% of its products would run in 8 bits"):
        refuse_if_wrong(replace(found, int8_share=0.4))
    with pytest.raises(UserError, match="a state gets different actions alone"):
        refuse_if_wrong(replace(found, alone_equal=False))


def test_error_in_one_choice_is_detected(tmp_path, monkeypatch):
    """Logits that differ in one agent's best choice: the measure of choices is not blind."""
    team = make_team(choice_spec(), SMALL, 3, torch.device("cpu"))
    x = states_for(choice_spec())
    other = team_outputs(team, x).copy()
    other[:, 1, :2] = other[:, 1, 1::-1]
    monkeypatch.setattr(export, "refuse_other_network", lambda *given: None)
    with pytest.raises(UserError, match="wrong by"):
        export_policy(from_team(team), tmp_path / "p.onnx", "int8", x, other)


def broken(change):
    policy = from_team(make_team(box_spec(), SMALL, 3, torch.device("cpu")))
    weight = policy.layers[1].weight.copy()
    change(weight)
    return replace(policy, layers=(policy.layers[0], replace(policy.layers[1], weight=weight), policy.layers[2]))


def fill(value, agent=slice(None)):
    def change(weight):
        weight[agent] = value

    return change


@pytest.mark.parametrize(
    ("policy", "precision", "said"),
    [
        (broken(fill(np.nan)), "float32", "Layer 2 of the policy has NaN or infinity among its weights"),
        (broken(fill(0, 1)), "int8", "Layer 2 of 'agent_1' has only zero weights"),
        (broken(fill(1e5)), "float16", "float16 reaches only 65504"),
    ],
)
def test_unsupported_policies_are_refused(tmp_path, policy, precision, said):
    with pytest.raises(UserError, match=said):
        export_policy(
            policy, tmp_path / "p.onnx", precision, states_for(box_spec()), policy.outputs(states_for(box_spec()))
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("precision", "bits", "said"),
    [
        ("packed", 8, "`bits` is 8, but must be from 2 to 7"),
        ("packed", 1, "`bits` is 1"),
        ("int8", 9, "`bits` is 9, but must be from 2 to 8"),
        ("float32", 8, "the bits of float32 are fixed"),
        ("int4", None, "'int4' is not known"),
    ],
)
def test_bits_out_of_range(precision, bits, said):
    with pytest.raises(UserError, match=said):
        make_form(broken(fill(1)), precision, bits)


def test_sampling_of_boxes_is_refused():
    with pytest.raises(UserError, match="Only choices can be sampled"):
        from_team(make_team(box_spec(), SMALL, 3, torch.device("cpu")), sample=True)


def test_team_in_one_file_or_one_per_agent(tmp_path, run):
    policy = load_run(run, {}, False, print)
    states, source = policy.states()
    assert source == "played"
    whole = policy.export(str(tmp_path / "p.onnx"), "int8")
    each = policy.export_each(str(tmp_path / "p.onnx"), "int8", single=True)
    assert [Path(one.path).name for one in each] == ["p-agent_0.onnx", "p-agent_1.onnx", "p-agent_2.onnx"]
    together = PolicyFile(Path(whole.path)).act(states)
    for n, one in enumerate(each):
        alone = PolicyFile(Path(one.path)).act(states[:, n : n + 1])
        assert np.array_equal(alone[:, 0], together[:, n])


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
def test_states_of_the_replay(storage):
    env = make_env("cooperative-navigation", agents=2, copies=3, stagger=False)
    ring = Ring(env.spec, 3, 60, storage)
    seen = [env.reset().copy()]
    ring.begin(seen[0])
    for _ in range(10):
        actions = np.zeros((3, 2, 5), np.float32)
        step = env.step(actions)
        ring.add(actions, step)
        seen.append(step.observation.copy())
    found = RowLayout.of(env.spec, storage).observations(ring.segment(0, 10)["rows"])
    expected = np.stack(seen[:10], 1).reshape(30, 2, -1)  # copy by copy
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol={"float32": 0, "float16": 1e-3, "bfloat16": 1e-2}[storage], atol=1e-6)


def test_unfinished_run_is_checked_with_its_replay(tmp_path):
    folder = tmp_path / "run"
    training = Training(SMALL)
    for _ in range(60):
        training.step()
    folder.mkdir()
    (folder / "config.json").write_text(training.config.to_json())
    parts, meta = snapshot(training)
    Checkpoints(folder / "checkpoints").save(20, parts, meta, training.ring)
    policy = load_run(folder, {}, False, print)
    states, source = policy.states()
    assert source == "replay" and states.shape == (512, 3, 18) and np.ptp(states) > 0
    policy.folder = tmp_path
    played, source = policy.states()
    assert source == "played" and played.shape == states.shape and np.array_equal(policy.states()[0], played)


@pytest.mark.parametrize("bits", [2, 4, 7, 8])
def test_qat_policy_is_exported_as_trained(tmp_path, bits):
    folder = tmp_path / "run"
    train(replace(SMALL, out=str(folder), qat_bits=bits, quant_delay=0.5))
    trained = load_run(folder, {}, False, print)
    policy = trained.portable()
    assert all(layer.quantized is not None and layer.quantized.bits == bits for layer in policy.layers)
    states, _ = trained.states()
    outputs = trained.outputs(states).numpy()
    assert np.abs(policy.outputs(states, np.float32) - outputs).max() < np.ptp(outputs) / (2**bits - 1)
    boxes = replace(policy, head=Head("box", "none"))  # shows the outputs themselves
    export_policy(boxes, tmp_path / "p.onnx", "static-int8", states, outputs)
    assert np.abs(PolicyFile(tmp_path / "p.onnx").act(states) - outputs).max() < np.ptp(outputs) / (2**bits - 1)
    for other in {3, 8} - {bits}:
        with pytest.raises(UserError, match=f"was trained for {bits}"):
            make_form(policy, "static-int8", other)
    assert make_form(policy, "packed", None).bits == (bits if bits < 8 else 4)
    for precision in ("float32", "packed") if bits < 8 else ("float32",):
        export_policy(boxes, tmp_path / "p.onnx", precision, states, outputs, tolerance=1e-5)


@pytest.mark.parametrize("options", [{}, {"qat_bits": 8, "quant_delay": 0.5}], ids=str)
def test_normalising_team_is_exported_with_its_statistics(tmp_path, options):
    folder = tmp_path / "run"
    train(replace(SMALL, out=str(folder), normalize_observations=True, rules="openai", snapshots=1, **options))
    trained = load_run(folder, {}, False, print)
    states, _ = trained.states()
    outputs, policy = trained.outputs(states).numpy(), trained.portable()
    assert trained.overhead == policy.normaliser.nbytes and policy.normaliser.var.min() > 0
    raw = replace(policy, normaliser=None).outputs(states, np.float32, False)
    exact = policy.outputs(states, np.float32, bool(options))
    assert np.abs(exact - outputs).max() < (0.01 * np.ptp(outputs) if options else 1e-5) < np.abs(raw - exact).max()
    boxes = replace(policy, head=Head("box", "none"))
    for precision in ("float32", "int8"):
        export_policy(boxes, tmp_path / "p.onnx", precision, states, outputs, tolerance=0.05)
        assert np.abs(PolicyFile(tmp_path / "p.onnx").act(states) - outputs).mean() < 0.05 * np.ptp(outputs)
    (saved,) = (folder / "snapshots").iterdir()
    early = load_run(folder, {}, False, print, str(int(saved.stem)))
    assert early.portable().normaliser.mean.tobytes() == policy.normaliser.mean.tobytes()
    assert np.array_equal(early.respond(states[:, :], True), trained.respond(states, True))


def test_team_with_one_quantized_agent_needs_one_file_per_agent(tmp_path):
    spec = choice_spec()
    team = make_team(spec, SMALL, 3, torch.device("cpu"))
    config, x, path = replace(SMALL, qat_bits=4, quant_delay=0.0, qat_agent=1), states_for(spec), tmp_path / "p.onnx"
    qat = make_precision(team, config).qat
    team.rollout_actors(torch.from_numpy(x).transpose(0, 1))  # ranges are observed
    qat.freeze()
    policy = RunPolicy(team, config, tmp_path)
    with pytest.raises(UserError, match="needs one file per agent: pass `each=True`"):
        policy.export_jobs(path, x, ExportOptions())
    jobs = policy.export_jobs(path, x, ExportOptions(each=True))
    assert [len(job.policy.grids) for job in jobs] == [0, 3, 0]
    for precision, others in (("float32", None), ("static-int8", safe_bits())):
        found = write(jobs, ExportOptions(precision), {})
        facts = [PolicyFile(one.path).facts for one in found]
        assert [one["frozen_bits"] for one in facts] == [others, 4, others]
    assert found[1].agreement == 1.0


def test_all_files_of_a_team_are_checked_before_writing(tmp_path):
    team = make_team(box_spec(), SMALL, 3, torch.device("cpu"))
    policy = RunPolicy(team, SMALL, tmp_path)
    jobs = policy.export_jobs(tmp_path / "p.onnx", states_for(box_spec()), ExportOptions(each=True))
    jobs[-1] = jobs[-1]._replace(outputs=jobs[-1].outputs + 0.01)
    with pytest.raises(UserError, match="was not written"):
        write(jobs, ExportOptions(), {})
    assert not list(tmp_path.iterdir())


def test_damaged_file_is_refused(tmp_path):
    """A flipped bit in a weight, zeros at the end, half the file: each is found, and nothing else is refused."""
    team = make_team(choice_spec(), SMALL, 3, torch.device("cpu"))
    x, path = states_for(choice_spec()), tmp_path / "policy.onnx"
    export_policy(from_team(team), path, "float32", x, team_outputs(team, x))
    whole = path.read_bytes()
    onnx.checker.check_model(onnx.load(path))
    weights = next(tensor.raw_data for tensor in onnx.load(path).graph.initializer if len(tensor.raw_data) > 64)
    at = whole.index(weights)
    for damaged in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole + b"\0", whole[:-1], whole * 2):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="wrong checksum"):
            PolicyFile(path)
    path.write_bytes(whole)
    assert PolicyFile(path).nbytes == len(whole)


def test_out_of_range_choices_of_a_file_are_refused(tmp_path):
    team = make_team(choice_spec(), SMALL, 3, torch.device("cpu"))
    x, path = states_for(choice_spec()), tmp_path / "policy.onnx"
    export_policy(from_team(team), path, "float32", x, team_outputs(team, x))
    model = onnx.load(path)
    (last,) = [node for node in model.graph.node if "action" in node.output]
    last.output[0] = "before"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(100), "more"))
    model.graph.node.append(onnx.helper.make_node("Add", ["before", "more"], ["action"]))
    model.metadata_props.pop()  # the seal
    onnx.save(model, path)
    with pytest.raises(UserError, match="returns a choice that its metadata does not allow"):
        PolicyFile(path).act(x)


@pytest.mark.parametrize("precision", ["int8", "static-int8", "packed"])
def test_uncorrected_file_is_byte_identical_to_earlier_versions(tmp_path, run, precision):
    policy = load_run(run, {}, False, print)
    states, source = policy.states(0)
    facts = {"shoal_version": __version__, "exported_from": policy.name, "states_from": source}
    portable, path = policy.portable(), tmp_path / "p.onnx"
    job = Job(portable, path, states, policy.outputs(states).numpy())
    plain = checked(job, ExportOptions(precision), facts)[1]
    found = policy.export(str(path), precision, correct_bias=False)
    assert path.read_bytes() == plain and not found.corrected and found.rounding == "nearest"
    assert policy.export(str(path), precision).corrected and path.read_bytes() != plain


@pytest.mark.parametrize("rounding", ["nearest", "output-error"])
def test_a_corrected_file_plays_as_the_corrected_policy(tmp_path, rounding):
    policy = random_policy(agents=2, head="box", hidden=(16, 16))
    x, visited = observations(policy), observations(policy, 300, seed=2)
    how = Correction(rounding=rounding)
    for precision, bits in (("int8", 5), ("packed", 4)):
        path = tmp_path / f"{precision}.onnx"
        export_policy(
            policy, path, precision, x, policy.outputs(x), bits, tolerance=1.0, rounding=rounding, visited=visited
        )
        own = corrected(policy, visited, bits, how, by_rows=precision == "int8")
        if precision == "packed":
            layers = tuple(replace(layer, weight=_values(layer, bits), quantized=None) for layer in own.layers)
            expected = replace(own, layers=layers).reference(x)
        else:
            expected = own.act_on(int8_outputs(own, x, bits))
        assert np.allclose(PolicyFile(path).act(x), expected, atol=1e-4)


def _values(layer, bits):
    codes, grid = layer_codes(layer, bits)
    return grid.values(codes.astype(np.float32))


def test_qat_policy_is_not_corrected(tmp_path):
    policy = random_policy(hidden=(16, 16))
    x = observations(policy, 64)
    policy = few_bits(policy, x)
    job, options = Job(policy, tmp_path / "p.onnx", x, policy.outputs(x)), ExportOptions("static-int8")
    plain, fixed = checked(job, options, {}), checked(job._replace(visited=x), options, {})
    assert plain[1] == fixed[1] and not fixed[0].corrected
