"""What is set before worlds are drawn."""

import os

import pytest

from shoal.envs.rendering import prepare_rendering


@pytest.mark.parametrize(
    ("platform", "given", "driver"),
    [
        ("linux", {}, "dummy"),
        ("linux", {"DISPLAY": ":0"}, None),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, None),
        ("linux", {"SDL_VIDEODRIVER": "offscreen"}, "offscreen"),
        ("darwin", {}, None),
    ],
)
def test_pygame_uses_no_display_if_there_is_none(monkeypatch, platform, given, driver):
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("os.environ", dict(given))
    prepare_rendering()
    assert os.environ.get("SDL_VIDEODRIVER") == driver


def test_mujoco_gl_of_the_user_is_respected(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.environ", {"MUJOCO_GL": "osmesa"})
    prepare_rendering()
    assert os.environ["MUJOCO_GL"] == "osmesa"
