"""PettingZoo and Gymnasium environments by name."""

import os
import subprocess
import sys
import types

import gymnasium
import numpy as np
import own_worlds
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim, flatten
from mpe2.all_modules import mpe_environments
from relay import Relay
from safetensors.numpy import load, save

from shoal.envs import make_env
from shoal.envs.adapters import make_copies
from shoal.envs.parallel import episode_seed
from shoal.errors import UserError, install
from tests.absent import take_away

SPEAKER = "pettingzoo:mpe2.simple_speaker_listener_v4"
MPE = [module.__name__ for module in mpe_environments.values()]


def make_pettingzoo(name, *arguments, **keywords):
    return make_copies(f"pettingzoo:{name.removeprefix('pettingzoo:')}", *arguments, **keywords)


def make_gymnasium(name, *arguments, **keywords):
    return make_copies(f"gym:{name.removeprefix('gym:')}", *arguments, **keywords)


def random_actions(env, random):
    """(E, N, A) actions in the environment's own range, and a good way beyond it."""
    shape = (env.copies, env.spec.agents, env.spec.action_size)
    reach = 1 if env.spec.discrete else 1.5 * np.maximum(abs(env.spec.action_low), abs(env.spec.action_high))
    return random.uniform(-1, 1, shape) * reach


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "box"])
@pytest.mark.parametrize("module", MPE)
def test_every_particle_world_runs(module, continuous):
    env = make_pettingzoo(
        f"pettingzoo:{module}", copies=2, seed=1, episode_length=20, options={"continuous_actions": continuous}
    )
    assert env.spec.name == f"pettingzoo:{module}" and env.spec.discrete is not continuous
    random, lengths = np.random.default_rng(0), []
    assert env.reset().shape == (2, env.spec.agents, env.spec.observation_size)
    for t in range(60):
        step = env.step(random_actions(env, random))
        assert step.alive.all() and not step.terminated.any()
        assert all(np.isfinite(part).all() for part in step)
        lengths += [(t + 1, int(e)) for e in np.flatnonzero(step.truncated)]
    assert lengths == [(10, 1), (20, 0), (30, 1), (40, 0), (50, 1), (60, 0)]


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "box"])
def test_speaker_and_listener_step_by_step(continuous):
    from mpe2 import simple_speaker_listener_v4

    env = make_pettingzoo(SPEAKER, seed=5, options={"continuous_actions": continuous})
    plain = simple_speaker_listener_v4.parallel_env(continuous_actions=continuous)
    assert env.spec.agent_names == ("speaker_0", "listener_0") and env.spec.episode_length is None
    assert env.spec.observation_sizes == (3, 11) and env.spec.action_sizes == (3, 5)
    random, episode = np.random.default_rng(0), 0
    env.reset()
    plain.reset(seed=episode_seed(5, 0, 0))
    for t in range(80):
        actions = random.uniform(-0.5, 1.5, (1, 2, 5)).astype(np.float32)
        speak, move = actions[0, 0, :3], actions[0, 1]
        chosen = np.clip([*speak, *move], 0, 1) if continuous else [int(speak.argmax()), int(move.argmax())]
        said, done = (chosen[:3], chosen[3:]) if continuous else chosen
        step = env.step(actions)
        observations, rewards, _, truncated, _ = plain.step({"speaker_0": said, "listener_0": done})
        np.testing.assert_allclose(step.final_observation[0, 0, :3], observations["speaker_0"], atol=1e-6)
        np.testing.assert_allclose(step.final_observation[0, 1], observations["listener_0"], atol=1e-6)
        assert not step.final_observation[0, 0, 3:].any()
        np.testing.assert_allclose(step.reward[0], [rewards["speaker_0"], rewards["listener_0"]], rtol=1e-6)
        assert step.truncated[0] == truncated["speaker_0"] == ((t + 1) % 25 == 0)
        if step.ended[0]:
            episode += 1
            plain.reset(seed=episode_seed(5, 0, episode))


@pytest.mark.parametrize(
    ("identifier", "episode_length"), [("CartPole-v1", None), ("CartPole-v1", 15), ("Pendulum-v1", 70)]
)
def test_gymnasium_step_by_step(identifier, episode_length):
    env = make_gymnasium(f"gym:{identifier}", copies=3, seed=7, episode_length=episode_length, stagger=False)
    plain = [gymnasium.make(identifier) for _ in range(3)]
    random, episode, length = np.random.default_rng(0), [0] * 3, [0] * 3
    observation, ways_to_end = env.reset(), set()
    for e in range(3):
        np.testing.assert_array_equal(observation[e, 0], plain[e].reset(seed=episode_seed(7, e, 0))[0])
    for _ in range(400):
        actions = random_actions(env, random).astype(np.float32)
        step = env.step(actions)
        for e in range(3):
            action = int(actions[e, 0].argmax()) if env.spec.discrete else actions[e, 0]
            seen, reward, terminated, truncated, _ = plain[e].step(action)
            length[e] += 1
            truncated = not terminated and (truncated or length[e] == episode_length)
            np.testing.assert_array_equal(step.final_observation[e, 0], seen)
            assert step.reward[e, 0] == np.float32(reward) and step.alive[e, 0]
            assert step.terminated[e, 0] == terminated and step.truncated[e] == truncated
            assert step.ended[e] == (terminated or truncated)
            if terminated or truncated:
                ways_to_end.add("terminated" if terminated else "truncated")
                episode[e], length[e] = episode[e] + 1, 0
                seen, _ = plain[e].reset(seed=episode_seed(7, e, episode[e]))
            np.testing.assert_array_equal(step.observation[e, 0], seen)
    assert (
        ways_to_end
        == {
            ("CartPole-v1", None): {"terminated"},
            ("CartPole-v1", 15): {"terminated", "truncated"},
            ("Pendulum-v1", 70): {"truncated"},
        }[identifier, episode_length]
    )


def test_gymnasium_spec_and_limits():
    env = make_gymnasium("gym:Pendulum-v1", copies=4)
    assert env.spec.name == "gym:Pendulum-v1" and env.spec.agent_names == ("agent",) and not env.spec.discrete
    np.testing.assert_array_equal([env.spec.action_low, env.spec.action_high], [[[-2]], [[2]]])
    assert env.spec.episode_length == 200
    env.reset()
    assert list(env.episode_step) == [0, 50, 100, 150]
    assert make_gymnasium("Pendulum-v1", episode_length=30).spec.episode_length == 30
    assert make_gymnasium("Pendulum-v1", episode_length=300).spec.episode_length == 200
    assert make_gymnasium("Pendulum-v1", options={"max_episode_steps": 9}).spec.episode_length == 9
    assert make_gymnasium("CartPole-v1").spec.action_sizes == (2,)


class Both(gymnasium.Env):
    """Says terminated and truncated in one breath; sees bits, acts in numbers from 5 to 7, is paid in an array."""

    observation_space = spaces.MultiBinary(3)
    action_space = spaces.Discrete(3, start=5)

    def reset(self, seed=None, options=None):
        return np.int8([1, 1, 0]), {}

    def step(self, action):
        return np.int8([action == 5, action == 6, action == 7]), np.array([1.5]), True, True, {}


def test_terminated_wins_over_truncated(monkeypatch, recwarn):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("Both-v0", Both)
    env = make_gymnasium("gym:Both-v0")
    assert env.spec.episode_length is None and env.spec.discrete
    env.reset()
    step = env.step(np.float32([[[0, 0.2, 0.5]]]))
    assert len(recwarn) == 0
    assert step.terminated[0, 0] and step.ended[0] and not step.truncated[0] and step.reward[0, 0] == 1.5
    np.testing.assert_array_equal(step.final_observation, [[[0, 0, 1]]])
    np.testing.assert_array_equal(step.observation, [[[1, 1, 0]]])


def test_discrete_observations_are_one_hot():
    env = make_pettingzoo("pettingzoo:pettingzoo.classic.rps_v2", options={"max_cycles": 3})
    np.testing.assert_array_equal(env.reset(), [[[0, 0, 0, 1], [0, 0, 0, 1]]])
    step = env.step(np.float32([[[1, 0, 0], [0, 1, 0]]]))  # rock, paper: each sees what the other played
    np.testing.assert_array_equal(step.observation, [[[0, 1, 0, 0], [1, 0, 0, 0]]])
    np.testing.assert_array_equal(step.reward, [[-1, 1]])


def test_composed_observations_step_by_step():
    """Blackjack shows a Tuple of three Discrete: what Gymnasium's own flattening makes of it."""
    env, plain = make_gymnasium("gym:Blackjack-v1", seed=2), gymnasium.make("Blackjack-v1")
    space, episode = plain.observation_space, 0
    assert env.spec.observation_sizes == (flatdim(space),) and not env.spec.whole_numbers
    np.testing.assert_array_equal(env.reset()[0, 0], flatten(space, plain.reset(seed=episode_seed(2, 0, 0))[0]))
    for action in np.random.default_rng(0).integers(2, size=40):
        step, (seen, reward, over, _, _) = env.step([[action]]), plain.step(action)
        np.testing.assert_array_equal(step.final_observation[0, 0], flatten(space, seen))
        assert step.reward[0, 0] == reward and step.ended[0] == over
        if over:
            episode += 1
            plain.reset(seed=episode_seed(2, 0, episode))
    assert episode > 5


def test_numeric_grids_are_flattened():
    from pettingzoo.sisl import pursuit_v5

    env, plain = make_pettingzoo("sisl.pursuit_v5", seed=1), pursuit_v5.parallel_env()
    assert env.spec.observation_sizes == (7 * 7 * 3,) * 8
    seen, _ = plain.reset(seed=episode_seed(1, 0, 0))
    np.testing.assert_array_equal(env.reset()[0], [seen[agent].reshape(-1) for agent in plain.possible_agents])


@pytest.mark.parametrize("steps", [0, 1, 37])
@pytest.mark.parametrize(
    "make",
    [
        lambda s: make_gymnasium("CartPole-v1", 3, s),
        lambda s: make_gymnasium("Pendulum-v1", 3, s),
        lambda s: make_pettingzoo(SPEAKER, 3, s, 30),
        lambda s: make_pettingzoo(SPEAKER, 3, s),
    ],
    ids=["CartPole", "Pendulum", "speaker", "speaker-own-limit"],
)
def test_restored_state_has_the_same_future(make, steps):
    env, other, random = make(11), make(12), np.random.default_rng(0)
    env.reset()
    for _ in range(steps):
        env.step(random_actions(env, random))
    other.load_state(load(save(env.state())))
    for _ in range(60):
        actions = random_actions(env, random)
        np.testing.assert_equal(other.step(actions), env.step(actions))
        np.testing.assert_array_equal(other.episode_step, env.episode_step)


@pytest.mark.parametrize(("make", "name"), [(make_pettingzoo, SPEAKER), (make_gymnasium, "gym:CartPole-v1")])
def test_render_returns_an_image_on_request(make, name):
    env = make(name, 2)
    env.reset()
    assert env.render() is None
    env = make(name, 2, options={"render_mode": "rgb_array"})
    with pytest.raises(UserError, match="call reset"):
        env.render()
    env.reset()
    frame = env.render()
    assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3 and frame.std() > 0
    env.close()


def test_making_environments_is_silent_and_starts_no_graphics():
    code = (
        "from shoal.envs import make_env\n"
        f"for name in ('{SPEAKER}', 'gym:CartPole-v0'): make_env(name, copies=2).reset()\n"
        "import pygame; assert not pygame.display.get_init() and not pygame.mixer.get_init()\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != "PYGAME_HIDE_SUPPORT_PROMPT"}
    command = [sys.executable, "-W", "default", "-c", code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "" and "gymnasium" not in done.stderr and "pygame" not in done.stderr


def fails(make, name, words, **keywords):
    """Assert that making the environment ends in one line with these words."""
    with pytest.raises(UserError) as error:
        make(name, **keywords)
    sentence = str(error.value)
    assert words in sentence and "\n" not in sentence and sentence.endswith("."), sentence


@pytest.mark.parametrize(
    ("name", "keywords", "words"),
    [
        ("mpe2.simple_spread_v2", {}, "mpe2 has no module simple_spread_v2; perhaps you meant simple_spread_v3."),
        ("mpe2.nothing_like_it", {}, "mpe2 has no module nothing_like_it."),
        ("no_such_package.world", {}, "no module no_such_package, neither installed nor in the working directory."),
        ("os.path.world", {}, "os.path has no module world"),
        ("pettingzoo.mpe.simple_v3", {}, "MPE has been moved into its own package"),
        ("magent.battle_v4", {}, "MAgent has been moved into its own package"),
        ("sisl", {}, "the module pettingzoo.sisl has no class or function parallel_env."),
        ("sisl.pursuit_v4", {}, "pettingzoo.sisl has no module pursuit_v4; perhaps you meant pursuit_v5."),
        ("json", {}, "the module json has no class or function parallel_env."),
        ("mpe2.simple_v3:parallel", {}, "the module mpe2.simple_v3 has no class or function parallel."),
        ("mpe2.simple_v3:env", {}, "is turn-based (an AEC environment), but Shoal plays parallel environments"),
        ("classic.tictactoe_v3", {}, "is turn-based (an AEC environment), but Shoal plays parallel environments"),
        ("", {}, "cannot be made"),
        ("mpe2.simple_v3", {"options": {"colour": "red"}}, "with the options {'colour': 'red'}: "),
        ("mpe2.simple_v3", {"copies": 0}, "`copies` is 0"),
        ("mpe2.simple_v3", {"seed": -1}, "`seed` is -1"),
        ("mpe2.simple_v3", {"episode_length": 0}, "`episode_length` is 0"),
    ],
)
def test_wrong_pettingzoo_input_is_refused(name, keywords, words):
    fails(make_pettingzoo, f"pettingzoo:{name}", words, **keywords)


@pytest.mark.parametrize(
    ("name", "keywords", "words"),
    [
        ("Pendlum-v1", {}, "Did you mean: `Pendulum`"),
        ("Pendulum-v99", {}, "gym:Pendulum-v99 cannot be made: "),
        ("no_such_module:World-v0", {}, "no module no_such_module, neither installed nor in the working directory."),
        ("no_such_module:World", {}, "cannot be made: there is no module no_such_module, neither installed nor"),
        ("", {}, "gym: cannot be made: "),
        ("CartPole-v1", {"options": {"colour": "red"}}, "with the options {'colour': 'red'}: "),
        ("CartPole-v1", {"copies": -3}, "`copies` is -3"),
        ("CartPole-v1", {"seed": 2**63}, "`seed` is"),
        ("CartPole-v1", {"episode_length": -1}, "`episode_length` is -1"),
        ("ALE/Pong-v5", {}, "has the observation space Box(0, 255, (210, 160, 3), uint8), but training on images is"),
        ("PongNoFrameskip-v4", {}, 'train Atari games on their memory (`env_options` \'{"obs_type": "ram"}\')'),
        ("ALE/Pogn-v5", {}, "Environment `Pogn` doesn't exist in namespace ALE. Did you mean: `Pong`."),
    ],
)
def test_wrong_gymnasium_input_is_refused(name, keywords, words):
    fails(make_gymnasium, f"gym:{name}", words, **keywords)


def test_atari_without_its_package_is_refused(monkeypatch):
    take_away(monkeypatch, "ale_py")
    words = "gym:ALE/Pong-v5 cannot be made: the package ale_py is not installed; " + install("atari") + "."
    fails(make_gymnasium, "gym:ALE/Pong-v5", words)


def test_atari_without_images(capfd):
    env = make_gymnasium("gym:ALE/Pong-v5", options={"obs_type": "ram"})
    assert env.reset().shape == (1, 1, 128) and env.spec.action_sizes == (6,)
    env.close()
    assert capfd.readouterr() == ("", "")  # no banner of the emulator's


def test_short_names_of_pettingzoo_families():
    long, short = (make_pettingzoo(f"pettingzoo:{package}.simple_v3", seed=3) for package in ("mpe2", "mpe"))
    assert short.spec.name == "pettingzoo:mpe.simple_v3" and np.array_equal(long.reset(), short.reset())


@pytest.mark.parametrize(
    ("missing", "module", "remedy"),
    [
        ("mpe2", "mpe2.simple_v3", install("pettingzoo")),
        ("pygame", "mpe2.simple_v3", install("pettingzoo")),
        ("pettingzoo", "pettingzoo.classic.rps_v2", install("pettingzoo")),
        ("pymunk", "pettingzoo.butterfly.pistonball_v6", "pip install 'pettingzoo[butterfly]'"),
        ("pymunk", "butterfly.pistonball_v6", "pip install 'pettingzoo[butterfly]'"),
        ("Box2D", "sisl.multiwalker_v9", "pip install 'pettingzoo[sisl]'"),
        ("mpe2", "mpe.simple_v3", install("pettingzoo")),
    ],
)
def test_missing_packages_name_the_extra(monkeypatch, missing, module, remedy):
    take_away(monkeypatch, missing, "pettingzoo", "mpe2")
    words = f"pettingzoo:{module} cannot be made: the package {missing} is not installed; {remedy}."
    fails(make_pettingzoo, f"pettingzoo:{module}", words)


def test_custom_module_and_factory(monkeypatch):
    from mpe2 import simple_v3

    own = types.ModuleType("own_worlds")
    own.small = lambda steps: simple_v3.parallel_env(max_cycles=steps)
    own.nobody = lambda: types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "own_worlds", own)
    env = make_pettingzoo("pettingzoo:own_worlds:small", options={"steps": 2})
    assert env.spec.name == "pettingzoo:own_worlds:small"
    env.reset()
    assert [bool(env.step(np.zeros((1, 1, 5))).truncated[0]) for _ in range(4)] == [False, True, False, True]
    fails(make_pettingzoo, "own_worlds:nobody", "makes a SimpleNamespace, but must make a Gymnasium environment or a")


def test_failing_or_printing_constructor(monkeypatch, capsys):
    def failing():
        print("a banner")
        raise RuntimeError("no licence\nfound")

    own = types.ModuleType("own_worlds")
    own.parallel_env = failing
    monkeypatch.setitem(sys.modules, "own_worlds", own)
    fails(make_pettingzoo, "own_worlds", "pettingzoo:own_worlds cannot be made: no licence found (test_adapters.py:")
    assert capsys.readouterr().out == ""


OWN = [
    (own_worlds.Corridor, "gym:own_worlds:Corridor"),
    (own_worlds.Nested.Inner, "gym:own_worlds:Nested.Inner"),
    (own_worlds.make_corridor, "gym:own_worlds:make_corridor"),
]


@pytest.mark.parametrize(("given", "name"), OWN, ids=[name for _, name in OWN])
def test_environment_by_class_or_function(given, name):
    by_name, by_itself = make_env(name, seed=4), make_env(given, seed=4)
    plain = given()
    assert by_name.spec.name == by_itself.spec.name == name and by_name.spec.episode_length is None
    space = plain.observation_space
    seen = plain.reset(seed=episode_seed(4, 0, 0))[0]
    np.testing.assert_array_equal(by_name.reset()[0, 0], np.asarray(flatten(space, seen), np.float32))
    by_itself.reset()
    for action in (1, 2, 0, 0):
        step, seen = by_name.step([[action]]), plain.step(action)
        np.testing.assert_array_equal(step.final_observation[0, 0], np.asarray(flatten(space, seen[0]), np.float32))
        assert step.reward[0, 0] == seen[1]
        np.testing.assert_equal(by_itself.step([[action]]), step)


def test_team_environment_by_class_or_function():
    plan = {agent: [0, 99, "both"] for agent in ("scout", "carrier", "guard")}
    by_class, by_name = make_env(Relay, options={"plan": plan}), make_env("gym:own_worlds:make_team")
    assert by_class.spec.name == "pettingzoo:relay:Relay" and by_name.spec.agents == 3
    np.testing.assert_array_equal(by_class.reset(), by_name.reset())


@pytest.mark.parametrize("name", ["Registered", "Versions-v1", "Versions"])
def test_registered_id_takes_precedence_over_class(name):
    env = make_gymnasium(f"gym:own_worlds:{name}")
    assert env.spec.observation_sizes == (9 + 2 + 2,) and env.spec.episode_length == 7


def test_class_takes_precedence_over_unversioned_id():
    """Gymnasium has CartPole-v1, and takes CartPole for it."""
    for given in (own_worlds.CartPole, "gym:own_worlds:CartPole"):
        assert make_env(given).spec.observation_sizes == (6 + 2 + 2,)
    assert make_env(own_worlds.Corridor, options={"length": 9}, episode_length=5).spec.episode_length == 5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "own_worlds:Corridor",
            "known are cooperative-navigation, predator-prey, pettingzoo:<module>, gym:<id>, gym:<m",
        ),
        ("gym:own_worlds:Nothing", "the module own_worlds has no class or function Nothing."),
        ("gym:own_worlds:NOT_CALLABLE", "the module own_worlds has no class or function NOT_CALLABLE."),
        ("gym:own_worlds:Nothing-v0", "Environment `Nothing` doesn't exist"),
        ("gym:own_worlds:NoEnvironment", "makes a NoEnvironment, but must make a Gymnasium environment"),
        ("pettingzoo:own_worlds:NoEnvironment", "makes a NoEnvironment, but must make a Gymnasium environment or"),
        ("pettingzoo:own_worlds:Refuses", "cannot be made: no licence (own_worlds.py:"),
        ("gym:own_worlds:Exits", "cannot be made: its code called sys.exit(3) (own_worlds.py:"),
        ("gym:own_worlds:NoSpaces", "'agent' of gym:own_worlds:NoSpaces needs an observation_space of gymna"),
        ("gym:own_worlds:OldSpaces", "needs an action_space of gymnasium.spaces, but has a builtins.str."),
        ("gym:own_worlds:Corridor:", "cannot be made"),
        ("gym::Corridor", "cannot be made"),
        ("gym:own_worlds.deeper:Corridor", "own_worlds has no module deeper"),
        ("pettingzoo:own_worlds:", "the module own_worlds has no class or function parallel_env."),
    ],
)
def test_wrong_custom_names_are_refused(name, words):
    fails(make_env, name, words)


def test_options_must_be_a_dictionary():
    with pytest.raises(UserError, match=r"`options` is \[1\], but must be a dictionary"):
        make_env(own_worlds.Corridor, options=[1])


def test_outdated_interface_is_refused():
    with pytest.raises(UserError, match=r"reset\(\) of OldReset must return observation, info, as Gymnasium's"):
        make_env(own_worlds.OldReset).reset()
    env = make_env(own_worlds.OldStep)
    env.reset()
    with pytest.raises(UserError, match=r"step\(\) of OldStep must return observation, reward, terminated"):
        env.step([[0]])


PICTURES = {
    "none": "returned None",
    "text": "returned a str",
    "list": "returned a list",
    "float": "returned an array of shape (4, 6, 3) and type float64",
    "grey": "returned an array of shape (4, 6) and type uint8",
    "alpha": "returned an array of shape (4, 6, 4) and type uint8",
    "empty": "returned an array of shape (0, 0, 3) and type uint8",
}


@pytest.mark.parametrize("kind", PICTURES)
def test_invalid_image_is_refused(kind):
    env = make_env(own_worlds.Picture, options={"kind": kind})
    env.reset()
    sentence = f"its render() {PICTURES[kind]}, but must return (height, width, 3) of bytes."
    fails(lambda name: env.render(), "", f"The world 'gym:own_worlds:Picture' cannot be watched: {sentence}")


def test_integer_images_are_accepted():
    env = make_env(own_worlds.Picture, options={"kind": "whole"})
    env.reset()
    assert env.render().dtype == np.uint8 and env.render().tolist() == [[[0, 128, 255]]]
