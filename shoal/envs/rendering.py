"""How third-party worlds are drawn on a machine without a display."""

import os
import sys


def prepare_rendering() -> None:
    """Have worlds drawn in this process; must come before the first of them is made.

    dm_control is otherwise imported with no way to render, which is quicker; MUJOCO_GL chooses another way. pygame
    otherwise searches for a display, and its libraries complain if there is none; SDL_VIDEODRIVER chooses one.
    """
    if sys.platform != "linux":
        return
    os.environ.setdefault("MUJOCO_GL", "egl")  # needs no display
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
