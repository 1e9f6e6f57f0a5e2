"""Zips of Stable-Baselines3: the same actions as their own, out of tensors alone, and nothing in them is ever run."""

import base64
import pickle
import struct
import zipfile
from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from shoal.errors import UserError
from shoal.policies.baselines_model import Model, read_zip, to_policy
from shoal.policies.normaliser import convert, read_normaliser
from shoal.policies.stable_baselines import BaselinesPolicy
from shoal.quantization.layers import find_layers
from tests.policies.zips import Pictures, Trap, changed, make, playing, saved
from tests.quantization.teams import export_policy

ENVS = {
    "a2c": "CartPole-v1",
    "ppo": "Pendulum-v1",
    "dqn": "CartPole-v1",
    "ddpg": "Pendulum-v1",
    "td3": "Pendulum-v1",
    "sac": "Pendulum-v1",
}


@pytest.fixture(scope="module")
def zips(tmp_path_factory):
    """A zip of every algorithm, with the model it is of."""
    folder = tmp_path_factory.mktemp("zips")
    models = {name: make(name, env) for name, env in ENVS.items()}
    return {name: (saved(model, folder / f"{name}.zip"), model) for name, model in models.items()}


def played(model, observation):
    """What Stable-Baselines3 does: choices or boxes."""
    return model.predict(observation, deterministic=True)[0]


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("algorithm", ENVS)
def test_model_plays_as_in_stable_baselines(zips, algorithm, trust):
    path, theirs = zips[algorithm]
    ours = read_zip(path, trust)
    assert ours.algorithm == algorithm
    assert all(f"{name}.weight" in theirs.policy.state_dict() for name in ours.names)
    subject = playing(ours, ENVS[algorithm])
    states = np.random.default_rng(0).normal(size=(200, 1, ours.inputs)).astype(np.float32)
    with torch.no_grad():
        actions = subject.actions(subject.head(subject.network, states))[:, 0]
    expected = played(theirs, states[:, 0])
    if ours.discrete:
        assert (actions.argmax(-1) == expected).all() and len(set(expected)) == 2
    else:
        np.testing.assert_allclose(actions, expected, atol=1e-5)
        assert np.ptp(expected) > 1
    policy = to_policy(ours, *box(theirs))
    world = policy.to_world(policy.reference(states))[:, 0]
    np.testing.assert_allclose(world, actions, atol=1e-4)


def box(model):
    space = model.action_space
    return (None, None) if space.shape == () else (space.low[None], space.high[None])


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_image_models_play_as_in_stable_baselines(tmp_path, algorithm):
    theirs = make(algorithm, Pictures(), "CnnPolicy", policy_kwargs={})
    path = saved(theirs, tmp_path / "images.zip")
    states = np.random.default_rng(0).integers(0, 256, (5, 1, 36, 36), np.uint8)
    expected = played(theirs, states)
    for trust in (False, True):
        ours = read_zip(path, trust)
        assert (ours.channels, ours.inputs, ours.scale_image) == (1, None, True)
        outputs = ours.network(torch.from_numpy(states).float() / 255)
        assert (outputs.argmax(-1).numpy() == expected).all()
    policy = to_policy(ours, None, None, (1, 36, 36))
    assert (policy.reference(states.reshape(5, 1, -1).astype(np.float32))[:, 0] == expected).all()


def test_activation_and_separate_nets_are_read_from_json(tmp_path):
    settings = {"net_arch": {"pi": [6], "vf": [20, 20]}, "activation_fn": torch.nn.ELU}
    theirs = make("a2c", "CartPole-v1", policy_kwargs=settings)
    ours = read_zip(saved(theirs, tmp_path / "elu.zip"))
    states = torch.randn(20, 4)
    assert [tuple(layer.weight.shape) for layer in find_layers(ours.network)] == [(6, 4), (2, 6)]
    with torch.no_grad():
        assert (ours.network(states).argmax(-1).numpy() == played(theirs, states.numpy())).all()
        torch.testing.assert_close(
            ours.network(states).log_softmax(-1), theirs.policy.get_distribution(states).distribution.logits
        )


NAMES = {"ReLU", "Tanh", "ELU", "LeakyReLU", "Sigmoid", "Mish", "SiLU", "GELU", "GELU, tanh"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_activation_is_read_from_json(tmp_path, name):
    kind = partial(torch.nn.GELU, approximate="tanh") if name == "GELU, tanh" else getattr(torch.nn, name)
    theirs = make("sac", "Lopsided-v0", policy_kwargs={"net_arch": [12, 8], "activation_fn": kind})
    path, states = saved(theirs, tmp_path / "sac.zip"), rows(3)
    for trust in (False, True):
        ours = read_zip(path, trust)
        policy = to_policy(ours, *box(theirs))
        np.testing.assert_allclose(policy.reference(states)[:, 0], played(theirs, states[:, 0]), atol=1e-5)


def rows(size, count=50):
    return np.random.default_rng(0).normal(size=(count, 1, size)).astype(np.float32)


ACTORS = {
    "dicts": ("sac", {"net_arch": {"pi": [7], "qf": [20, 20]}}, {}),
    "no hidden layer": ("sac", {"net_arch": {"pi": [], "qf": [5]}}, {}),
    "one critic": ("sac", {"net_arch": [8], "n_critics": 1}, {}),
    "gSDE": ("sac", {"net_arch": [8]}, {"use_sde": True}),
    "gSDE, not clipped": ("sac", {"net_arch": [8], "clip_mean": 0.0}, {"use_sde": True}),
    "no hidden layer of TD3": ("td3", {"net_arch": {"pi": [], "qf": [5]}}, {}),
    "no hidden layer of DDPG": ("ddpg", {"net_arch": {"pi": [], "qf": [5]}}, {}),
    "shared extractor": ("td3", {"net_arch": [8], "share_features_extractor": True}, {}),
    "one critic of TD3": ("td3", {"net_arch": [8], "n_critics": 1}, {}),
    "two critics of DDPG": ("ddpg", {"net_arch": [8], "n_critics": 2}, {}),
    "three critics": ("td3", {"net_arch": {"pi": [9, 5], "qf": [4]}, "n_critics": 3}, {}),
}


@pytest.mark.parametrize("case", ACTORS)
def test_actors_of_sac_td3_and_ddpg_in_a_box_that_is_not_centred(tmp_path, case):
    algorithm, settings, others = ACTORS[case]
    theirs = make(algorithm, "Lopsided-v0", policy_kwargs=settings, **others)
    with torch.no_grad():
        for parameter in theirs.actor.mu.parameters():
            parameter.mul_(3)  # far beyond ±2, where gSDE clips
    path, states = saved(theirs, tmp_path / "model.zip"), rows(3)
    expected = played(theirs, states[:, 0])
    assert np.ptp(expected, axis=0).min() > 1
    for trust in (False, True):
        ours = read_zip(path, trust)
        assert ours.algorithm == algorithm and ours.squash == "tanh"
        subject = playing(ours, "Lopsided-v0")
        assert subject.modes == (True,)
        np.testing.assert_allclose(subject.respond(states, deterministic=True)[:, 0], expected, atol=1e-5)
        np.testing.assert_allclose(subject.portable().reference(states)[:, 0], expected, atol=1e-5)


def test_unsupported_clip_mean_is_refused(tmp_path):
    theirs = make("sac", "Lopsided-v0", policy_kwargs={"net_arch": [8], "clip_mean": 3.0}, use_sde=True)
    path = saved(theirs, tmp_path / "model.zip")
    with pytest.raises(UserError, match=r"clips its mean actions to ±3\.0 \(clip_mean\).* `trust=True` runs it"):
        read_zip(path)


@pytest.mark.parametrize("squash", [False, True])
def test_state_dependent_exploration_is_read(tmp_path, squash):
    theirs = make("a2c", "Pendulum-v1", use_sde=True, policy_kwargs={"net_arch": [8], "squash_output": squash})
    path, states = saved(theirs, tmp_path / "sde.zip"), np.random.default_rng(0).normal(size=(30, 1, 3)).astype("f4")
    for trust in (False, True):
        subject = playing(read_zip(path, trust), "Pendulum-v1")
        with torch.no_grad():
            head = subject.head(subject.network, states)
        assert subject.model.squash == ("tanh" if squash else "clip") and subject.divergence(head, head) is None
        np.testing.assert_allclose(subject.actions(head)[:, 0], played(theirs, states[:, 0]), atol=1e-5)


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac"])
def test_a_model_can_be_exported(tmp_path, zips, algorithm):
    from shoal.inference.file import PolicyFile

    path, theirs = zips[algorithm]
    subject = playing(read_zip(path), "Pendulum-v1")
    states = np.random.default_rng(0).normal(size=(64, 1, 3)).astype(np.float32)
    export_policy(subject.portable(), tmp_path / "policy.onnx", "float32", states, subject.outputs(states).numpy())
    actions = PolicyFile(tmp_path / "policy.onnx", 1, 0).play(states)
    np.testing.assert_allclose(actions[:, 0], played(theirs, states[:, 0]), atol=1e-4)


# Normalisers ----------------------------------------------------------------------------------------------------------


def test_normaliser_matches_vecnormalize(tmp_path, zips):
    path, _ = zips["a2c"]
    venv = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]), clip_obs=1.5)
    venv.seed(0)
    venv.reset()
    for _ in range(50):
        venv.step([venv.action_space.sample()])
    venv.save(tmp_path / "vecnormalize.pkl")
    with pytest.raises(UserError, match=r"is a pickle.*`trust=True`.*convert"):
        read_normaliser(tmp_path / "vecnormalize.pkl")
    safe = convert(tmp_path / "vecnormalize.pkl", tmp_path / "safe.npz")
    states = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32)
    for normaliser in (read_normaliser(safe), read_normaliser(tmp_path / "vecnormalize.pkl", trust=True)):
        model = read_zip(path, normaliser=normaliser)
        policy = to_policy(model, None, None)
        seen = policy.network_input(states[:, None])[0]
        np.testing.assert_allclose(seen, venv.normalize_obs(states), atol=1e-4)
        subject = playing(model, "CartPole-v1")
        with torch.no_grad():
            head = subject.head(model.network, states[:, None])
            expected = model.network(torch.from_numpy(venv.normalize_obs(states).astype(np.float32)))
        torch.testing.assert_close(head[:, 0], expected, atol=1e-4, rtol=1e-4)
        assert subject.overhead == 4 * 8
    with pytest.raises(UserError, match=r"observations of 4 numbers, but the model .* sees 3"):
        read_zip(zips["ddpg"][0], normaliser=read_normaliser(safe))


def test_wrong_normalisers_are_refused(tmp_path):
    (tmp_path / "junk.npz").write_bytes(b"junk")
    np.savez(tmp_path / "less.npz", mean=np.zeros(3))
    np.savez(tmp_path / "bad.npz", mean=np.zeros(3), var=-np.ones(3))
    np.savez(tmp_path / "words.npz", mean=np.array(["a"]), var=np.ones(1))
    np.savez(tmp_path / "clips.npz", mean=np.zeros(3), var=np.ones(3), clip=np.ones(3))
    np.savez(tmp_path / "negative.npz", mean=np.zeros(3), var=np.ones(3), clip=-1)
    np.savez(tmp_path / "still.npz", mean=np.zeros(3), var=np.zeros(3), epsilon=0)
    np.savez_compressed(tmp_path / "bomb.npz", mean=np.zeros(10**7), var=np.ones(3))
    np.savez(tmp_path / "objects.npz", mean=np.array([Trap(tmp_path / "sprung")], object), var=np.zeros(1))
    cases = {"junk.npz": "cannot be read", "less.npz": "no 'var'", "bad.npz": "not a normaliser",
             "words.npz": "must be numbers", "clips.npz": "must be numbers", "negative.npz": "clip must be positive",
             "still.npz": r"var \+ epsilon", "bomb.npz": "far larger than any normaliser",
             "objects.npz": "cannot be read", "none.npz": "no file", "x.txt": "must end in one of"}  # fmt: skip
    for name, sentence in cases.items():
        with pytest.raises(UserError, match=sentence):
            read_normaliser(tmp_path / name)
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(UserError, match=r"must end in \.npz"):
        convert(tmp_path / "any.pkl", tmp_path / "safe.safetensors")


# What is never run, and what is refused -------------------------------------------------------------------------------


def test_pickles_in_json_are_not_loaded_without_trust(tmp_path, zips):
    def trapped(data):
        text = base64.b64encode(pickle.dumps(Trap(tmp_path / "sprung"))).decode()
        return data | {"ep_info_buffer": {":type:": "x", ":serialized:": text}}

    path = changed(zips["ppo"][0], tmp_path / "trap.zip", data=trapped)
    read_zip(path)
    assert not (tmp_path / "sprung").exists()
    read_zip(path, trust=True)  # that this runs it is what --trust is there to say
    assert (tmp_path / "sprung").exists()


def test_code_in_tensor_files_is_never_run(tmp_path, zips):
    path = changed(zips["ppo"][0], tmp_path / "trap.zip", tensors=lambda held: held | {"x": Trap(tmp_path / "sprung")})
    for trust in (False, True):
        with pytest.raises(UserError, match=r"holds the object .*open, which is never loaded"):
            read_zip(path, trust)
    assert not (tmp_path / "sprung").exists()


def test_an_archive_of_torchscript_is_refused_without_a_warning(tmp_path, recwarn):
    """Torch has a guess about it, which says nothing about what is wrong."""
    inner = tmp_path / "policy.pth"
    with zipfile.ZipFile(inner, "w") as archive:
        for name in ("data.pkl", "constants.pkl", "version"):
            archive.writestr(f"model/{name}", b"3")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("data", "{}")
        archive.write(inner, "policy.pth")
    with pytest.raises(UserError, match=r"'policy\.pth' in '.*' is damaged\.$"):
        read_zip(tmp_path / "model.zip")
    assert not recwarn.list


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"data": lambda d: d | {"top_quantiles_to_drop_per_net": 2}}, "TQC"),
        ({"tensors": lambda t: t | {"lstm_actor.weight": torch.zeros(1)}}, "RecurrentPPO"),
    ],
)
def test_other_algorithms_are_refused_by_name(tmp_path, zips, changes, name):
    with pytest.raises(UserError, match=f"is a model of {name}, but only A2C, PPO, DQN, DDPG, TD3 and SAC"):
        read_zip(changed(zips["sac"][0], tmp_path / "other.zip", **changes))


def renamed(old, new):
    return lambda held: {name.replace(old, new): value for name, value in held.items()}


WRONG = {
    "custom policy": ({"data": lambda d: d | {"policy_class": {"__module__": "mine"}}}, "custom class of 'mine'"),
    "no policy": ({"data": lambda d: {}}, "not named in plain text"),
    "activation": (
        {"data": lambda d: d | {"policy_kwargs": {"activation_fn": "<class 'mine.Wavy'>"}}},
        r"activation function mine\.Wavy, but only ReLU",
    ),
    "features": (
        {"data": lambda d: d | {"policy_kwargs": {"features_extractor_class": "<class 'mine.Net'>"}}},
        r"feature extractor mine\.Net",
    ),
    "custom layer": ({"tensors": renamed("policy_net.2", "policy_net.gate")}, "layer .*gate' of a custom class"),
    "missing layer": ({"tensors": lambda t: {k: v for k, v in t.items() if "policy_net.2" not in k}}, "do not fit"),
    "missing weight": ({"tensors": lambda t: {k: v for k, v in t.items() if k != "mlp_extractor.policy_net.2.weight"}},
                       "lacks the weights"),
    "unknown": ({"tensors": lambda t: {"a": torch.zeros(1)}}, "unknown algorithm"),
    "no tensors": ({"tensors": lambda t: [1]}, "does not hold a model's tensors"),
    "nan": ({"tensors": lambda t: t | {"action_net.bias": t["action_net.bias"] * float("nan")}}, "NaN"),
    "no data": ({"drop": ("data",)}, "has no 'data'"),
    "no tensor file": ({"drop": ("policy.pth",)}, r"has no 'policy\.pth'"),
    "deviations": ({"tensors": lambda t: t | {"log_std": torch.zeros(3)}}, r"log_std.*shape \(3,\).* have \(1,\)"),
    "deviations nan": ({"tensors": lambda t: t | {"log_std": torch.full((1,), float("nan"))}}, "log_std.*NaN"),
    "qat": ({"data": lambda d: d | {"shoal_qat": {"on": True, "bits": "x"}}}, "shoal_qat.* is damaged"),
    "qat bits": ({"data": lambda d: d | {"shoal_qat": {"on": True, "bits": 9, "ranges": {}}}}, "shoal_qat"),
    "qat range": ({"data": lambda d: d | {"shoal_qat": {"on": True, "bits": 4, "ranges": {"action_net": [1, -1]}}}},
                  "shoal_qat.* is damaged"),
    "choices": ({"data": lambda d: d | {"action_space": {":type:": "<class 'gymnasium.spaces.MultiDiscrete'>"}}},
                "actions of the space MultiDiscrete"),
    "dictionary": ({"data": lambda d: d | {"observation_space": {":type:": "<class 'gymnasium.spaces.dict.Dict'>"}}},
                   "observations of the space Dict"),
    "bias": ({"tensors": lambda t: t | {"action_net.bias": torch.zeros(7)}}, "'action_net' .* be inferred"),
    "empty": ({"tensors": lambda t: t | {"action_net.weight": torch.zeros(0, 8)}}, "'action_net' .* be inferred"),
    "number": ({"tensors": renamed("policy_net.2", "policy_net." + "9" * 5000)}, "of a custom class"),
    "complex": ({"tensors": lambda t: t | {"action_net.bias": t["action_net.bias"] * 1j}}, "is damaged"),
    "sparse": ({"tensors": lambda t: t | {"action_net.bias": t["action_net.bias"].to_sparse()}}, "is damaged"),
    "shown often": ({"tensors": lambda t: t | {f"a{i}": torch.zeros(1, dtype=torch.uint8).expand(10**6)
                                               for i in range(40)}}, "is damaged"),
    "stretched": ({"tensors": lambda t: t | {"action_net.weight": torch.zeros(1).expand(10**6, 10**6)}}, "is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_zips_are_refused(tmp_path, zips, case):
    changes, sentence = WRONG[case]
    with pytest.raises(UserError, match=sentence):
        read_zip(changed(zips["ppo"][0], tmp_path / "wrong.zip", **changes))


@pytest.mark.parametrize("inside", [False, True])
def test_zip_bombs_are_refused(tmp_path, zips, inside):
    def pack(archive, name):
        archive.writestr(name, bytes(10**7), zipfile.ZIP_DEFLATED)

    with zipfile.ZipFile(tmp_path / "inner.pth", "w") as inner:
        pack(inner, "archive/data/0")
    with zipfile.ZipFile(zips["ppo"][0]) as old, zipfile.ZipFile(tmp_path / "bomb.zip", "w") as new:
        new.writestr("data", old.read("data"))
        if inside:
            new.write(tmp_path / "inner.pth", "policy.pth")
        else:
            pack(new, "policy.pth")
    with pytest.raises(UserError, match=r"times as large unpacked: it is not a model"):
        read_zip(tmp_path / "bomb.zip")


def test_zip_with_false_sizes_is_refused(tmp_path, zips):
    path = tmp_path / "lie.zip"
    with zipfile.ZipFile(zips["ppo"][0]) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr("policy.pth", old.read("policy.pth"))
        new.writestr("data", b" " * 10**8)
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, raw.rfind(b"PK\x01\x02") + 20, 10**8)  # the packed size, in the table of contents
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"'data' in .* times as large unpacked"):
        read_zip(path)


def test_damaged_files_are_refused(tmp_path, zips):
    whole = zips["ppo"][0].read_bytes()
    (tmp_path / "short.zip").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.zip").write_bytes(b"hello")
    with zipfile.ZipFile(zips["ppo"][0]) as archive:
        at = archive.getinfo("policy.pth").header_offset + 500
    (tmp_path / "flipped.zip").write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    (tmp_path / "lost.zip").write_bytes(whole[100:])
    named = bytearray(whole)
    entry = named.rfind(b"PK\x01\x02")
    named[entry + 9] |= 8  # its name is UTF-8 …
    named[entry + 46] = 0xFF  # … but is not
    (tmp_path / "named.zip").write_bytes(named)
    for name in ("short.zip", "text.zip", "flipped.zip", "lost.zip", "named.zip"):
        with pytest.raises(UserError, match=r"is not a valid zip|is damaged|is never loaded"):
            read_zip(tmp_path / name)
    with pytest.raises(UserError, match="no file"):
        read_zip(tmp_path / "none.zip")
    with pytest.raises(UserError, match="cannot be read"):
        read_zip(tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "env", "sentence"),
    [
        ("ppo", "CartPole-v1", "shows 4 numbers, the model sees 3"),
        ("a2c", "Pendulum-v1", "shows 3 numbers, the model sees 4"),
        ("a2c", "gym:Nope-v1", "cannot be made"),
        ("a2c", "", "`env` is missing"),
    ],
)
def test_incompatible_environments_are_refused(zips, algorithm, env, sentence):
    with pytest.raises(UserError, match=sentence):
        playing(read_zip(zips[algorithm][0]), env)


def test_environment_with_other_actions_is_refused():
    layers = [torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)]
    with pytest.raises(UserError, match="takes 1 number in a box, the model gives 2 choices"):
        playing(Model("a.zip", "a2c", torch.nn.Sequential(*layers), ("a", "b")), "Pendulum-v1")


def test_different_action_bounds_warn(tmp_path):
    path = saved(make("td3", "Lopsided-v0"), tmp_path / "td3.zip")
    model, said = read_zip(path), []
    BaselinesPolicy(model, {"env": "Lopsided-v0"}, said.append)
    assert not said
    other = replace(model, action_bounds=model.action_bounds * 2)
    BaselinesPolicy(other, {"env": "Lopsided-v0"}, said.append)
    (sentence,) = said
    assert "actions from (-6, 1) to (2, 18), but those of gym:Lopsided-v0 are from (-3, 0.5) to (1, 9)" in sentence
    assert sentence.endswith("its actions are scaled to the latter.")
    assert read_zip(saved(make("dqn", "CartPole-v1"), tmp_path / "dqn.zip")).action_bounds is None


class FromOne(gymnasium.Env):
    """Its choices are 1, 2 and 3."""

    observation_space, action_space = Box(-1, 1, (4,)), Discrete(3, start=1)


def test_choices_not_counted_from_zero_are_refused(tmp_path):
    gymnasium.register("FromOne-v0", FromOne)
    model = read_zip(saved(make("a2c", FromOne()), tmp_path / "m.zip"))
    with pytest.raises(UserError, match="does not number its choices from 0"):
        playing(model, "FromOne-v0")
