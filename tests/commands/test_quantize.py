"""`shoal quantize`: the table, its files, and a sentence for whatever is wrong."""

import json
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from shoal import TrainConfig, load, train
from shoal.cli import main
from shoal.envs.base import EnvSpec
from shoal.inference.correction import Correction
from shoal.inference.options import ROUNDINGS
from shoal.policies import quantize, torch_policy
from shoal.policies.baselines_model import Model
from shoal.policies.quantize import COMPARED, FullPrecision, WidthRecord, WidthSweep, _record, sweep
from shoal.policies.quantize_options import QuantizeOptions
from shoal.policies.run import RunPolicy, load_run
from shoal.policies.stable_baselines import BaselinesPolicy
from shoal.policies.torch_policy import Thinned, choices_kl, equal_actions, gaussians_kl
from shoal.quantization.ptq import ModelQuantizer
from shoal.quantization.quantizer import Quantizer, Width
from shoal.training.evaluation import play
from shoal.training.saved_team import load_team
from tests.policies.zips import Pictures, changed, make, playing, saved

FOUR = Width("4 bits", Quantizer(4, per_channel=True))


@pytest.fixture(autouse=True)
def few_states(monkeypatch):
    """For corrections."""
    monkeypatch.setattr(torch_policy, "VISITED", 512)
    monkeypatch.setattr(torch_policy, "VISITED_IMAGES", 16)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that learned next to nothing."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(
        TrainConfig(
            episodes=20, copies=4, warmup=100, update_every=20, batch=32, hidden=(16, 16), evaluate_episodes=0,
            checkpoint_every=0, tensorboard=False, threads=1, qat_bits=3, out=str(folder),
        )
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(make("ppo", "CartPole-v1"), tmp_path_factory.mktemp("zips") / "ppo.zip")


def ask(capsys, *words):
    code = main(["quantize", *map(str, words)])
    return code, *capsys.readouterr()


@pytest.mark.usefixtures("rendered")
def test_quantize_a_zip(capsys, model, tmp_path):
    words = (model, "--env", "CartPole-v1", "--bits", "32,16,4,fp16,E4M3", "--episodes", 6, "--out", tmp_path / "out")
    code, out, _ = ask(capsys, *words, "--json")
    found = json.loads(out)
    assert code == 0
    assert [row["precision"] for row in found["rows"] if row["corrected"]] == ["4 bits", "E4M3"] * 2
    assert {row["rounding"] for row in found["rows"]} == {"nearest"}
    rows = {(row["precision"], row["what"]): row for row in found["rows"] if not row["corrected"]}
    assert next(iter(rows)) == ("float32", "none")
    assert {what for _, what in rows} == {"none", "weights", "both"} and len(rows) == 1 + 2 * 4
    full, fine, coarse = rows["float32", "none"], rows["16 bits", "weights"], rows["4 bits", "both"]
    assert (full["relative_error"], full["equal_actions"], full["kl"]) == (0, 1, 0)
    assert fine["return_mean"] == full["return_mean"]  # so close that the same starts give the same episodes
    assert 0 < fine["kl"] < 1e-6 < coarse["kl"] and fine["equal_actions"] > 0.999 > coarse["equal_actions"]
    weights, biases = 4 * 12 + 12 * 8 + 8 * 2, 12 + 8 + 2
    assert full["bytes"] == 4 * (weights + biases)
    assert coarse["bytes"] == weights // 2 + 4 * biases + 4 * biases  # one scale per output channel
    assert rows["E4M3", "weights"]["bytes"] == weights + 4 * biases
    assert [layer["layer"] for layer in found["layers"]] == [
        "mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net",
    ]  # fmt: skip
    assert all(sum(layer["counts"]) == np.prod(layer["shape"]) for layer in found["layers"])
    assert json.loads((tmp_path / "out" / "quantize.json").read_text())["rows"] == found["rows"]
    assert all((tmp_path / "out" / name).stat().st_size > 5_000 for name in ("quantize.png", "weights.png"))


def test_corrections_add_rows(capsys, model, tmp_path):
    words = (model, "--env", "CartPole-v1", "--bits", "3", "--what", "weights,activations", "--episodes", 2)
    rounding = ("--rounding", "output-error", "--out", tmp_path)
    code, out, _ = ask(capsys, *words, *rounding, "--json")
    rows = json.loads(out)["rows"][1:]
    nearest, bias, both = (False, "nearest"), (True, "nearest"), (True, "output-error")
    assert code == 0 and [(row["corrected"], row["rounding"]) for row in rows] == [nearest, bias, both, nearest, bias]
    assert rows[0]["kl"] > rows[1]["kl"] > rows[2]["kl"] and len({row["bytes"] for row in rows[:3]}) == 1
    panel = json.loads((tmp_path / "quantize.json").read_text())["figures"][0]["panels"][0]
    assert [line["label"] for line in panel["series"]][:2] == ["weights", "weights, bias corrected"]
    corrections = [WidthSweep.of(QuantizeOptions(correct_bias=False, rounding=way)).corrections for way in ROUNDINGS]
    assert corrections == [(), (Correction(False, "output-error"),)]


@pytest.mark.parametrize(("finished", "rows"), [(2, 2), (1, 1), (0, 0)])
def test_ctrl_c_keeps_finished_rows(capsys, monkeypatch, model, tmp_path, finished, rows):
    left = [finished]

    def stopped(*given):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return play(*given)

    monkeypatch.setattr(quantize, "play", stopped)
    words = (model, "--env", "CartPole-v1", "--bits", "8,4,2", "--what", "both", "--episodes", 2, "--out", tmp_path)
    code, out, said = ask(capsys, *words, "--no-correct-bias")
    assert code == 130
    assert f"{rows} of 4 rows are finished" in said if rows else not (tmp_path / "quantize.json").exists()
    if rows:
        kept = json.loads((tmp_path / "quantize.json").read_text())["rows"]
        assert [row["precision"] for row in kept] == ["float32", "8 bits"][:rows]
        assert "float32" in out and (tmp_path / "quantize.png").exists()


def test_quantize_a_qat_run(capsys, run, tmp_path):
    words = (run, "--bits", "8", "--what", "both", "--style", "paper", "--episodes", 4, "--out", tmp_path)
    code, out, _ = ask(capsys, *words)
    assert code == 0
    assert all(word in out for word in ("float32", "3 bits", "trained", "8 bits", "both", "quantize.png"))


def test_quantize_a_run_before_its_quant_delay(run):
    team, config = load_team(run, print)
    assert RunPolicy(team, config, run).trained is team.rollout_actors
    team.precision.qat.on.fill_(0)
    assert RunPolicy(team, config, run).trained is None


def test_all_rows_play_the_same_episodes(run):
    subject = load_run(run, {}, False, print)
    starts = []
    make_env = subject.make_env

    def watched(copies, seed):
        env = make_env(copies, seed)
        reset = env.reset

        def first():
            starts.append(reset())
            return starts[-1]

        env.reset = first
        return env

    subject.make_env = watched
    found = sweep(subject, WidthSweep((FOUR,), ("weights", "activations", "both"), episodes=4))
    assert len(starts) == 5 and all(np.array_equal(start, starts[0]) for start in starts)
    assert [row.what for row in found.rows] == ["none", "trained", "weights", "activations", "both"]
    assert found.rows[3].bytes == found.rows[0].bytes > found.rows[2].bytes


def test_edges_in_full_precision(capsys, model, tmp_path):
    words = (model, "--env", "CartPole-v1", "--bits", "4", "--what", "both", "--episodes", 2, "--out", tmp_path)
    rows = {}
    for edges in ("", "8", "32"):
        code, out, _ = ask(capsys, *words, *(("--edge-bits", edges) if edges else ()), "--json")
        assert code == 0
        rows[edges] = json.loads(out)["rows"][1]
    weights, biases, inner = 4 * 12 + 12 * 8 + 8 * 2, 12 + 8 + 2, 12 * 8
    assert rows["32"]["bytes"] == 4 * (weights - inner) + inner // 2 + 4 * 8 + 4 * biases  # a scale an inner output
    assert rows[""]["bytes"] < rows["8"]["bytes"] < rows["32"]["bytes"]
    assert rows["32"]["kl"] < rows[""]["kl"]


def test_image_observations_are_played(capsys, tmp_path):
    gymnasium.register("Pictures-v0", Pictures, kwargs={"length": 3})
    path = saved(make("dqn", Pictures(), "CnnPolicy", policy_kwargs={}), tmp_path / "images.zip")
    words = (path, "--env", "Pictures-v0", "--bits", "8", "--episodes", 3, "--out", tmp_path, "--json")
    code, out, _ = ask(capsys, *words)
    rows = json.loads(out)["rows"]
    assert code == 0 and rows[1]["kl"] is None and rows[1]["bytes"] < 0.27 * rows[0]["bytes"]
    assert ask(capsys, path, "--env", "CartPole-v1", "--out", tmp_path)[0] == 2
    gymnasium.register("Larger-v0", Large)
    code, _, said = ask(capsys, path, "--env", "Larger-v0", "--out", tmp_path)
    assert code == 2 and "layers need another size" in said


class Large(Pictures):
    """The same, larger."""

    observation_space = gymnasium.spaces.Box(0, 255, (48, 48, 1), np.uint8)

    def _look(self):
        return self.np_random.integers(0, 256, (48, 48, 1), np.uint8)


def test_an_atari_game_is_played_from_a_zip(capsys, tmp_path):
    from shoal.envs.pixels import make_pixels

    for name in ("ALE/Pong-v5", "PongNoFrameskip-v4"):
        env, shape = make_pixels(name, 4)
        assert shape == (4, 84, 84) and env.reset().shape == (1, 1, 4 * 84 * 84)
        env.close()
    theirs = make("a2c", Frames(), "CnnPolicy", policy_kwargs={})
    path = saved(theirs, tmp_path / "pong.zip")
    from shoal.policies.baselines_model import read_zip

    subject = playing(read_zip(path), "ALE/Pong-v5")
    env = subject.make_env(2, 0)
    seen = env.reset()
    with torch.no_grad():
        for _ in range(3):
            head = subject.head(subject.network, seen)
            seen = env.step(subject.actions(head)).observation
    frames = seen.reshape(2, 4, 84, 84)
    assert frames.max() > 100 and not np.array_equal(frames[:, 0], frames[:, 3])
    expected = theirs.predict(frames.astype(np.uint8), deterministic=True)[0]
    with torch.no_grad():
        assert (subject.actions(subject.head(subject.network, seen))[:, 0].argmax(-1) == expected).all()
    env.close()


class Frames(gymnasium.Env):
    """The spaces of an Atari game with four stacked frames."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def reset(self, seed=None, options=None):
        return np.zeros((84, 84, 4), np.uint8), {}


def test_states_are_spread_over_all_visited_ones():
    states = Thinned(COMPARED)
    for k in range(3 * COMPARED):
        states.add(np.full((2, 1, 1), k, np.float32))
    kept = states.array()[:, 0, 0]
    assert COMPARED // 2 <= len(kept) <= COMPARED
    assert kept[-1] > 3 * COMPARED - 10 and len(set(np.diff(kept))) == 1


def test_parts_quantized_by_a_row():
    edge = Width("8 bits", Quantizer(8, per_channel=True))
    wanted = WidthSweep((FOUR,), edges=edge, dynamic=True, agents=(0,))
    inputs = Quantizer(4, symmetric=False, per_channel=False)
    rest = edge.quantizer, edge.quantizer, True, (0,)
    assert wanted.quantizer_for(FOUR.quantizer, "both") == ModelQuantizer(FOUR.quantizer, inputs, *rest)
    assert wanted.quantizer_for(FOUR.quantizer, "weights") == ModelQuantizer(FOUR.quantizer, None, *rest)
    assert wanted.quantizer_for(FOUR.quantizer, "activations") == ModelQuantizer(None, inputs, *rest)


@pytest.mark.parametrize(("full", "played", "error"), [(2.0, 1.0, 0.5), (-2.0, -3.0, 0.5), (0.0, 1.0, None)])
def test_row_of_the_table(full, played, error):
    head, other = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [3.0]])
    spec = EnvSpec("spec", ("a",), (3,), (1,), False, action_low=np.zeros(1), action_high=np.ones(1))
    subject = SimpleNamespace(
        actions=torch.Tensor.numpy, spec=spec, divergence=lambda head, other: other - head, overhead=7,
        played_network=torch.nn.Linear(4, 5),
    )  # fmt: skip
    compared = FullPrecision(full, None, head)
    record = _record(subject, compared, "4 bits", 4, "both", (played, 0.1), other, ModelQuantizer(), None)
    assert record == WidthRecord("4 bits", 4, "both", played, 0.1, error, 0.5, 0.5, 4 * 25 + 7)


def test_box_actions_are_equal_if_every_entry_is_close():
    low, high = np.array([[-1.0, 0.0]]), np.array([[1.0, 100.0]])
    spec = EnvSpec("spec", ("a",), (3,), (2,), False, action_low=low, action_high=high)
    actions, others = np.zeros((3, 1, 2)), np.array([[[0.02, -1.0]], [[0.021, 0.0]], [[0.0, 1.1]]])
    assert equal_actions(actions, others, spec).tolist() == [[True], [False], [False]]


def test_divergences_of_a_models_policy():
    from torch.distributions import Categorical, Normal, kl_divergence

    head, other = torch.randn(20, 1, 2), torch.randn(20, 1, 2)
    subject = BaselinesPolicy.__new__(BaselinesPolicy)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2))
    subject.model = Model("a.zip", "ppo", network, ("a",))
    expected = kl_divergence(Categorical(logits=head), Categorical(logits=other))
    torch.testing.assert_close(subject.divergence(head, other).float(), expected)
    log_std = torch.tensor([-1.0, 0.5])
    subject.model = Model("a.zip", "ppo", network, ("a",), log_std=log_std, squash="clip")
    expected = kl_divergence(Normal(head, log_std.exp()), Normal(other, log_std.exp())).sum(-1)
    torch.testing.assert_close(subject.divergence(head, other).float(), expected)
    subject.model = Model("a.zip", "ddpg", network, ("a",), squash="tanh")
    assert subject.divergence(head, other) is None


def test_kl_divergences():
    logits, others = torch.randn(50, 1, 4), torch.randn(50, 1, 4)
    p, q = logits.softmax(-1), others.softmax(-1)
    torch.testing.assert_close(choices_kl(logits, others).float(), (p * (p / q).log()).sum(-1))
    mean, deviation = torch.randn(20), torch.rand(20) + 0.5
    other, wide = torch.randn(20), torch.rand(20) + 0.5
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, deviation), torch.distributions.Normal(other, wide)
    )
    torch.testing.assert_close(gaussians_kl(mean, deviation, other, wide).float(), expected)


# Wrong inputs ---------------------------------------------------------------------------------------------------------


def zeroed(held):
    return held | {"mlp_extractor.policy_net.2.weight": 0 * held["mlp_extractor.policy_net.2.weight"]}


def not_a_number(held):
    return held | {"action_net.weight": float("nan") * held["action_net.weight"]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--bits 1", "--bits is 1, but must be from 2 to 16, or 32"),
        ("--bits 8,17", "--bits is 17"),
        ("--bits=--8", "neither a number of bits nor a number format"),
        ("--bits ²", "neither a number of bits nor a number format"),
        ("--bits 8,lots", "neither a number of bits nor a number format"),
        ("--edge-bits 33", "--edge-bits is 33"),
        ("--bits ,", "must name at least one"),
        ("--what everything", "--what 'everything' is not known"),
        ("--style other", "--style other is not one of"),
        ("--episodes 0", "--episodes is 0"),
        ("--env Pendulum-v1", "shows 3 numbers, the model sees 4"),
        ("--env Nope-v9", "gym:Nope-v9 cannot be made"),
        ("--normaliser nowhere.npz", "no file 'nowhere.npz'"),
    ],
)
def test_wrong_words_are_refused(capsys, model, tmp_path, words, sentence):
    env = () if "--env" in words else ("--env", "CartPole-v1")
    code, out, said = ask(capsys, model, *env, *words.split(), "--out", tmp_path / "out")
    assert code == 2 and out == ""
    assert sentence.replace("'", "") in said.replace("'", "") and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [(zeroed, "'mlp_extractor.policy_net.2' has only zero weights"), (not_a_number, "has NaN among its values")],
)
def test_wrong_weights_are_refused(capsys, model, tmp_path, change, sentence):
    path = changed(model, tmp_path / "wrong.zip", tensors=change)
    code, _, said = ask(capsys, path, "--env", "CartPole-v1", "--out", tmp_path / "out")
    assert code == 2 and sentence in said and said.count("\n") == 1


def test_wrong_policies_are_refused(capsys, run, model, tmp_path):
    (tmp_path / "junk.zip").write_bytes(b"junk")
    for words, sentence in (
        ((tmp_path / "none",), "There is no run folder, Stable-Baselines3 zip or ONNX file"),
        ((tmp_path,), "is not a run folder"),
        ((tmp_path / "junk.zip", "--env", "CartPole-v1"), "is not a valid zip file"),
        ((run, "--normaliser", "n.npz"), "--normaliser is for Stable-Baselines3 zips"),
        ((run, "--env", "predator-prey"), "does not fit the run"),
        ((model,), "--env is missing"),
    ):
        code, _, said = ask(capsys, *words, "--out", tmp_path / "out")
        assert code == 2 and sentence in said and said.count("\n") == 1, said


def test_a_team_that_shares_its_networks(tmp_path):
    """A network is quantized, stored and exported once, whoever shares it; in training with quantization as well."""
    config = TrainConfig(
        env="predator-prey", prey="learned", share="all", episodes=20, copies=4, warmup=100, update_every=20,
        batch=32, hidden=(16, 16), evaluate_episodes=0, checkpoint_every=0, threads=1, out=str(tmp_path / "run"),
    )  # fmt: skip
    train(config)
    train(replace(config, qat_bits=8, quant_delay=0.0, out=str(tmp_path / "qat")))
    policy, trained = load(tmp_path / "run"), load(tmp_path / "qat")
    table = policy.quantize(bits=("32", "8", "3"), episodes=2, correct_bias=True)
    assert not table.failed and {row.bits for row in table.rows} == {32, 8, 3}
    assert len(policy.network.weights[0]) == 2 and policy.portable().network_of == (0, 0, 0, 1)
    rows = {(row.bits, row.what, row.corrected): row for row in table.rows}
    for file, row in (
        (policy.export(str(tmp_path / "a.onnx")), rows[32, "none", False]),
        (policy.export(str(tmp_path / "b.onnx"), "packed", bits=3), rows[3, "weights", True]),
        (policy.export(str(tmp_path / "c.onnx"), "int8", bits=8, correct_bias=False), rows[8, "both", False]),
    ):
        assert (file.bytes, file.weight_bytes) == (row.file_bytes, row.bytes)
    assert rows[32, "none", False].bytes == 4 * sum(array.numel() for array in policy.team.actors.flat)
    states = trained.states()[0]
    for precision in ("int8", "static-int8"):
        assert trained.export(str(tmp_path / "d.onnx"), precision).agreement > 0.9
        played = load(tmp_path / "d.onnx").act(states)
        assert (played == trained.act(states)).mean() > 0.9
