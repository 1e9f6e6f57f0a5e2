"""Zips with classes of one's own, which only --trust opens: played as in their own library, or refused by name."""

import numpy as np
import pytest
import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, MlpExtractor
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn

from shoal.errors import UserError
from shoal.policies.baselines_model import read_zip
from tests.policies.zips import NETS, make, playing, saved
from tests.quantization.teams import export_policy


class Extractor(BaseFeaturesExtractor):
    """Features by the subclass's network."""

    def __init__(self, space):
        super().__init__(space, 12)
        self.net = self.build(space.shape[0])

    def forward(self, x):
        return self.net(x)


class Plain(Extractor):
    def build(self, size):
        return nn.Sequential(nn.Linear(size, 12), nn.LeakyReLU(0.01, inplace=True))


class NoBias(Extractor):
    def build(self, size):
        return nn.Sequential(nn.Linear(size, 12, bias=False), nn.ELU())


class Slope(Extractor):
    def build(self, size):
        return nn.Sequential(nn.Linear(size, 12), nn.LeakyReLU(0.5))


class Norm(Extractor):
    def build(self, size):
        return nn.Sequential(nn.Linear(size, 12), nn.LayerNorm(12))


class Function(Extractor):
    def build(self, size):
        return nn.Linear(size, 12)

    def forward(self, x):
        return torch.tanh(self.net(x))


class Branches(Extractor):
    def build(self, size):
        return nn.ModuleList([nn.Linear(size, 12), nn.Linear(size, 12)])

    def forward(self, x):
        return self.net[0](x) + self.net[1](x)


class Trunk(nn.Module):
    """A network that actor and critic share, the critic's own part first."""

    latent_dim_pi = latent_dim_vf = 8

    def __init__(self, size):
        super().__init__()
        self.value_net = nn.Sequential(nn.Linear(12, 8), nn.Tanh())
        self.shared = nn.Sequential(nn.Linear(size, 12), nn.Tanh())
        self.policy_net = nn.Sequential(nn.Linear(12, 8), nn.Tanh())

    def forward(self, x):
        return self.forward_actor(x), self.forward_critic(x)

    def forward_actor(self, x):
        return self.policy_net(self.shared(x))

    def forward_critic(self, x):
        return self.value_net(self.shared(x))


class Gain(Trunk):
    """Scales what it sees, which no layer says."""

    def forward_actor(self, x):
        return super().forward_actor(-3 * x)


class TrunkPolicy(ActorCriticPolicy):
    kind = Trunk

    def _build_mlp_extractor(self):
        self.mlp_extractor = self.kind(self.features_dim)


class GainPolicy(TrunkPolicy):
    kind = Gain


class Turned(ActorCriticPolicy):
    """Sees everything upside down."""

    def get_distribution(self, obs):
        return super().get_distribution(-obs)


class Obstinate(ActorCriticPolicy):
    """Has a distribution, and plays something else."""

    def _predict(self, observation, deterministic=False):
        return 1 - super()._predict(observation, deterministic)


class Careless(MlpExtractor):
    """Its own path to the actor."""

    def forward_actor(self, features):
        return self.policy_net(features.clamp(-1, 1))


class CarelessPolicy(TrunkPolicy):
    @staticmethod
    def kind(size):
        return Careless(size, [8], nn.Tanh)


class TurnedValues(QNetwork):
    def forward(self, obs):
        return -super().forward(obs)


class TurnedDQN(DQNPolicy):
    def make_q_net(self):
        return TurnedValues(**self._update_features_extractor(self.net_args, features_extractor=None))


MODELS = {
    **{kind.__name__: ("ppo", "MlpPolicy", NETS | {"features_extractor_class": kind})
       for kind in (Plain, NoBias, Slope, Norm, Function, Branches)},
    **{kind.__name__: ("a2c", kind, {}) for kind in (TrunkPolicy, GainPolicy, Turned, Obstinate, CarelessPolicy)},
    "TurnedDQN": ("dqn", TurnedDQN, {}),
}  # fmt: skip


def zipped(folder, name):
    algorithm, policy, settings = MODELS[name]
    model = make(algorithm, "CartPole-v1", policy, policy_kwargs=dict(settings))
    return saved(model, folder / f"{name}.zip"), model


def states(count=200):
    return np.random.default_rng(0).normal(scale=3, size=(count, 1, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "cannot"),
    [
        ("Plain", None),
        ("NoBias", None),
        ("TrunkPolicy", None),
        ("Slope", r"a part LeakyReLU\(negative_slope=0.5\) that cannot be exported"),
        ("Norm", r"a part LayerNorm.* that cannot be exported"),
        ("Function", "it computes something between them"),
        ("Branches", "Layer 2 of the policy takes 4 numbers, but is given 12"),
        ("GainPolicy", "it computes something between them"),
        ("CarelessPolicy", "it computes something between them"),
    ],
)
def test_custom_policy_class_is_played_and_exported_or_refused(tmp_path, name, cannot):
    path, theirs = zipped(tmp_path, name)
    with pytest.raises(UserError, match="`trust=True` runs its code"):
        read_zip(path)
    subject, x = playing(read_zip(path, trust=True), "CartPole-v1"), states()
    expected = theirs.predict(x[:, 0], deterministic=True)[0]
    with torch.no_grad():
        actions = subject.actions(subject.head(subject.network, x))[:, 0]
    assert (actions.argmax(-1) == expected).all() and len(set(expected)) == 2
    file = tmp_path / "policy.onnx"
    if cannot is None:
        found = export_policy(subject.portable(), file, "float32", x, subject.outputs(x).numpy())
        assert found.agreement == 1 and (subject.portable().reference(x)[:, 0] == expected).all()
        return
    for precision in ("float32", "int8", "packed"):
        with pytest.raises(UserError, match=cannot):
            export_policy(subject.portable(), file, precision, x, subject.outputs(x).numpy(), tolerance=1.0)
    assert not file.exists()


@pytest.mark.parametrize("name", ["Turned", "Obstinate", "TurnedDQN"])
def test_policy_that_does_not_follow_its_layers_is_refused(tmp_path, name):
    path, _ = zipped(tmp_path, name)
    with pytest.raises(UserError, match="computes its actions in a custom way"):
        read_zip(path, trust=True)


def test_custom_policy_class_trained_quantized(tmp_path):
    from shoal.quantization import QatCallback

    theirs = make("a2c", "CartPole-v1", TrunkPolicy, policy_kwargs={}, n_steps=8)
    theirs.learn(64, callback=QatCallback(bits=4, delay=0.0))
    subject = playing(read_zip(saved(theirs, tmp_path / "m.zip"), trust=True), "CartPole-v1")
    x = states()
    found = export_policy(subject.portable(), tmp_path / "p.onnx", "static-int8", x, subject.outputs(x).numpy())
    assert found.bits == 4 and found.agreement == 1
    assert (subject.portable().reference(x)[:, 0] == theirs.predict(x[:, 0], deterministic=True)[0]).all()


class Images(BaseFeaturesExtractor):
    """A convolution with unusual options."""

    def __init__(self, space, **options):
        super().__init__(space, 12)
        self.net = nn.Sequential(nn.Conv2d(1, 4, 5, stride=4, **options), nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            size = self.net(torch.zeros(1, *space.shape)).shape[1]
        self.last = nn.Sequential(nn.Linear(size, 12), nn.ReLU())

    def forward(self, x):
        return self.last(self.net(x))


@pytest.mark.parametrize(
    ("options", "can"),
    [
        ({"bias": False}, True),
        ({"padding": 2}, True),
        ({"dilation": 2}, False),
        ({"padding": 2, "padding_mode": "circular"}, False),
    ],
)
def test_convolutions_with_unusual_options(tmp_path, options, can):
    from shoal.inference.layers import Conv2d

    settings = NETS | {"features_extractor_class": Images, "features_extractor_kwargs": options}
    name = "tests.policies.zips:TinyPictures-v0"
    theirs = make("ppo", name, "CnnPolicy", policy_kwargs=settings)
    subject = playing(read_zip(saved(theirs, tmp_path / "m.zip"), trust=True), name)
    if not can:
        with pytest.raises(UserError, match=r"a part Conv2d\(.*that cannot be exported"):
            subject.portable()
        return
    policy = subject.portable()
    assert isinstance(policy.layers[0], Conv2d)
    x = np.random.default_rng(0).integers(0, 256, (40, 1, 36 * 36)).astype(np.float32)
    export_policy(policy, tmp_path / "p.onnx", "float32", x, subject.outputs(x).numpy())
    expected = theirs.predict(x.reshape(-1, 1, 36, 36).astype(np.uint8), deterministic=True)[0]
    assert (policy.reference(x)[:, 0] == expected).all()
