"""An episode to look at: recorded from a world, drawn as a strip of moments or as a moving picture.

Shape letters: E copies, N agents, T time, O observation, A action, K entities.
"""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import Array, Entity, VectorEnv
from shoal.errors import UserError, check_range
from shoal.report.files import write_whole
from shoal.report.scene import BORDER, FAINT_INK, INK, MOVERS, PAPER, Scene, fit_view, fitting_font, font

if TYPE_CHECKING:
    from PIL import Image

Act = Callable[[Array], NDArray[np.floating]]  # observations (E, N, O) to actions (E, N, A)
Frame = NDArray[np.uint8]  # (height, width, 3)
Look = TypeVar("Look")

GIF_SIDE = 448  # pixels of the picture of the world, without what is written around it
STRIP_SIDE = 240
GIF_TRAIL = 12  # steps
MOST_FRAMES = 250  # of a GIF; longer films skip steps
MARGIN = 16


# Recording ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Screen:
    """An episode of a world that draws itself; to be drawn like a `Scene`."""

    frames: list[Frame]  # T + 1, all of one size
    frames_per_step = 1

    def draw(self, time: float, side: int, trail: int | None = None) -> "Image.Image":
        """The picture of this moment, its longer side `side` pixels."""
        from PIL import Image

        frame = self.frames[int(time)]
        height, width, _ = frame.shape
        scale = side / max(height, width)
        way = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
        return Image.fromarray(frame).resize((round(width * scale), round(height * scale)), way)

    def highlights(self) -> list[int]:
        """None that we know of."""
        return []

    def legend(self, height: int) -> None:
        """Nothing: what is in the pictures is the world's own affair."""

    def tally(self, step: int) -> str:
        """Nothing, likewise."""
        return ""


@dataclass(frozen=True, eq=False)
class Episode:
    """What copy 0 did from a reset to the end: T steps between T + 1 moments."""

    reward: NDArray[np.float64]  # (T, N)
    moments: Scene | Screen

    @property
    def steps(self) -> int:
        """T."""
        return len(self.reward)


@dataclass(frozen=True, eq=False)
class Film:
    """Recorded episodes of one world."""

    title: str
    episodes: tuple[Episode, ...]
    team: int = 0
    """How many leading agents the return is of; 0 means all."""

    def running_return(self, episode: Episode) -> NDArray[np.float64]:
        """(T + 1,) sum of rewards so far, per agent of the team."""
        reward = episode.reward[:, : self.team or None].mean(axis=1)
        return np.concatenate([[0.0], np.cumsum(reward)])


def record(env: VectorEnv, act: Act, episodes: int = 1, max_steps: int = 500) -> Film:
    """Film whole episodes of copy 0 while `act` plays: as bodies if the world has them, else as its own pictures.

    An episode longer than `max_steps` is filmed up to there. The world is reset before each episode and left
    wherever the last one ended.
    """
    if not hasattr(env, "position"):
        return record_frames(env, act, episodes, max_steps)
    check_range("episodes", episodes, 1)
    world: Any = env  # particle worlds have `position` and `entities` beyond the protocol
    entities: tuple[Entity, ...] = world.entities

    def last_position(before: NDArray, seen_before: Array, seen_last: Array) -> NDArray:
        """Where the bodies were when the episode ended; `position` already belongs to the next one."""
        if np.allclose(_position_seen(seen_before, entities), before, atol=1e-4):
            return _position_seen(seen_last, entities)
        return before  # a world that shows its agents something else

    played = [_play(env, act, lambda: world.position[0].copy(), last_position, max_steps) for _ in range(episodes)]
    positions = [np.stack(moments).astype(np.float64) for _, moments in played]
    if not all(np.isfinite(position).all() for position in positions):
        raise UserError(f"The world '{env.spec.name}' cannot be drawn: bodies have positions that are not finite.")
    view = fit_view(entities, positions)
    scenes = [Scene(entities, position, *view) for position in positions]
    return _film(env, [Episode(reward, scene) for (reward, _), scene in zip(played, scenes, strict=True)])


def record_frames(env: VectorEnv, act: Act, episodes: int = 1, max_steps: int = 500) -> Film:
    """Film episodes of a world that draws itself: `env.render()` gives an RGB array (height, width, 3).

    What it shows after the last step is the next episode, so the picture before it stands in.
    """
    check_range("episodes", episodes, 1)
    render = getattr(env, "render", lambda: None)

    def look() -> Frame:
        frame = render()
        if not (isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8):
            raise UserError(
                f"The world '{env.spec.name}' cannot be watched: it has neither positions nor RGB pictures; "
                "an adapter's environment has them if it is made with render_mode 'rgb_array'."
            )
        return _shrink(frame)

    played = [_play(env, act, look, lambda before, *_: before, max_steps) for _ in range(episodes)]
    return _film(env, [Episode(reward, Screen(frames)) for reward, frames in played])


def _film(env: VectorEnv, episodes: list[Episode]) -> Film:
    return Film(env.spec.name, tuple(episodes), env.spec.team)


def _play(
    env: VectorEnv,
    act: Act,
    look: Callable[[], Look],
    look_back: Callable[[Look, Array, Array], Look],
    max_steps: int,
) -> tuple[NDArray[np.float64], list[Look]]:
    """One episode of copy 0: rewards (T, N) and T + 1 looks at it.

    An ended episode is reset within its last step. What there was to see before the reset is the affair of
    `look_back`, which gets the look before that step and copy 0's observations (N, O) before and after it.
    """
    observation = env.reset()
    looks, rewards = [look()], []
    for _ in range(max_steps):
        seen = observation[0].copy()  # worlds may write the next observation over this one
        step = env.step(act(observation))
        rewards.append(step.reward[0].astype(np.float64))
        if step.ended[0]:
            looks.append(look_back(looks[-1], seen, step.final_observation[0]))
            break
        looks.append(look())
        observation = step.observation
    return np.stack(rewards), looks


def _position_seen(observation: Array, entities: tuple[Entity, ...]) -> NDArray[np.float64]:
    """(K, 2) by the first agent's eyes: own velocity, own position, then landmarks and other agents relative to it."""
    movers = sum(kind in MOVERS for kind, _ in entities)
    fixed = len(entities) - movers
    if observation.shape[1] < 2 + 2 * len(entities):
        return np.full((len(entities), 2), np.nan)  # it does not see them all
    own = observation[0, 2:4].astype(np.float64)
    relative = observation[0, 4 : 2 + 2 * len(entities)].reshape(-1, 2)  # (K - 1, 2)
    return own + np.concatenate([np.zeros((1, 2)), relative[fixed:], relative[:fixed]])


def _shrink(frame: Frame) -> Frame:
    """A copy no larger than a GIF shows: hundreds of them are kept."""
    from PIL import Image

    image = Image.fromarray(frame)
    image.thumbnail((GIF_SIDE, GIF_SIDE), Image.Resampling.LANCZOS)
    return np.array(image)


# Drawing --------------------------------------------------------------------------------------------------------------


def draw_gif(film: Film, path: str | Path, seconds_per_step: float = 0.2, pause: float = 2.0) -> Path:
    """Write the film as an endless GIF; every episode rests on its last moment for `pause` seconds.

    Bodies glide between steps where the film is short enough for it; a very long one skips steps.
    """
    per_step = _frames_per_step(film)
    hundredths = max(2, round(100 * seconds_per_step / per_step))  # a GIF's clock; browsers slow down shorter frames
    legend = film.episodes[0].moments.legend(17)
    frames: list[Image.Image] = []
    milliseconds: list[int] = []
    for number, episode in enumerate(film.episodes):
        times = [*np.arange(0, episode.steps, 1 / per_step).tolist(), episode.steps]
        frames += [_gif_frame(film, number, time, legend) for time in times]
        milliseconds += [10 * hundredths] * (len(times) - 1) + [round(1000 * pause)]
    first, *rest = _indexed(frames)
    content = io.BytesIO()
    first.save(content, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)
    return write_whole(path, content.getvalue())


def draw_strip(film: Film, path: str | Path, moments: int = 6) -> Path:
    """Write a PNG of moments side by side, from the first to the last; one row an episode.

    They are evenly spaced, but for catches, which draw the nearest moment to them.
    """
    from PIL import Image, ImageDraw

    check_range("moments", moments, 2)
    rows = [_strip_row(film, episode, moments) for episode in film.episodes]
    legend = film.episodes[0].moments.legend(18)
    if legend:
        rows.append(legend)
    head = 44
    width = max(row.width for row in rows) + 2 * MARGIN
    image = Image.new("RGB", (width, head + sum(row.height + MARGIN for row in rows)), PAPER)
    ImageDraw.Draw(image).text(
        (MARGIN, head / 2), film.title, INK, fitting_font(film.title, width - 2 * MARGIN, 18), "lm"
    )
    top = head
    for row in rows:
        image.paste(row, (MARGIN, top))
        top += row.height + MARGIN
    content = io.BytesIO()
    image.save(content, "PNG")
    return write_whole(path, content.getvalue())


def _frames_per_step(film: Film) -> float:
    """As many frames a step as are smooth, if they are few enough; below one where steps have to be skipped."""
    steps = sum(episode.steps for episode in film.episodes)
    smooth = film.episodes[0].moments.frames_per_step
    if steps * smooth <= MOST_FRAMES:
        return smooth
    return 1 / math.ceil(steps / MOST_FRAMES)


def _gif_frame(film: Film, number: int, time: float, legend: "Image.Image | None") -> "Image.Image":
    """Title, how far, the return so far and the tally above the picture; what the discs mean below it."""
    from PIL import Image, ImageDraw

    episode, step = film.episodes[number], int(time)
    picture = episode.moments.draw(time, GIF_SIDE)
    head, foot = 68, legend.height + 26 if legend else MARGIN
    image = Image.new("RGB", (picture.width + 2 * MARGIN, head + picture.height + foot), PAPER)
    draw = ImageDraw.Draw(image)
    right = image.width - MARGIN
    which = f"episode {number + 1} of {len(film.episodes)}" if len(film.episodes) > 1 else ""
    draw.text((right, 20), which, FAINT_INK, font(13), "rm")
    room = picture.width - font(13).getlength(which) - MARGIN
    draw.text((MARGIN, 20), film.title, INK, fitting_font(film.title, room, 16), "lm")
    draw.text((MARGIN, 44), f"step {step} of {episode.steps}", INK, font(13), "lm")
    draw.text((MARGIN + 116, 44), _return_so_far(film, episode, step), INK, font(13), "lm")
    draw.text((right, 44), episode.moments.tally(step), INK, font(13), "rm")
    draw.line((MARGIN, 60, right, 60), BORDER, 3)
    draw.line((MARGIN, 60, MARGIN + picture.width * time / episode.steps, 60), FAINT_INK, 3)
    image.paste(picture, (MARGIN, head))
    if legend:
        image.paste(legend, (MARGIN, head + picture.height + 10))
    return image


def _strip_row(film: Film, episode: Episode, moments: int) -> "Image.Image":
    """The moments of one episode side by side, each with its step, return so far and tally."""
    from PIL import Image, ImageDraw

    steps = _strip_steps(episode, moments)
    trails = [1, *np.diff(steps).tolist()]  # back to the panel before
    pictures = [episode.moments.draw(step, STRIP_SIDE, trail) for step, trail in zip(steps, trails, strict=True)]
    width, height = pictures[0].size
    image = Image.new("RGB", (len(steps) * (width + MARGIN) - MARGIN, height + 44), PAPER)
    draw = ImageDraw.Draw(image)
    for column, (step, picture) in enumerate(zip(steps, pictures, strict=True)):
        left = column * (width + MARGIN)
        image.paste(picture, (left, 0))
        draw.text((left, height + 14), f"step {step}", INK, font(13, bold=True), "lm")
        draw.text((left + width, height + 14), _return_so_far(film, episode, step), INK, font(13), "rm")
        draw.text((left, height + 34), episode.moments.tally(step), FAINT_INK, font(13), "lm")
    return image


def _strip_steps(episode: Episode, moments: int) -> list[int]:
    """Which steps to show: the ends, and between them the highlight nearest to each evenly spaced step, if one is."""
    gap = episode.steps / (moments - 1)
    highlights = episode.moments.highlights()
    steps = {0, episode.steps}
    for number in range(1, moments - 1):
        even = gap * number
        near = sorted((abs(step - even), step) for step in highlights if abs(step - even) < gap / 2)
        steps.add(near[0][1] if near else round(even))
    return sorted(steps)


def _return_so_far(film: Film, episode: Episode, step: int) -> str:
    return f"return per agent {film.running_return(episode)[step]:.1f}".replace("-", "−")


def _indexed(frames: "list[Image.Image]") -> "list[Image.Image]":
    """The frames in one palette, which keeps the file small and colours from flickering.

    Half of its 63 colours are the commonest ones, exactly (flat areas stay what they are, white stays white);
    the rest are spread over all others. Pillow's own search for the nearest colour is coarse, hence the table.
    """
    from PIL import Image

    sample = frames[:: math.ceil(len(frames) / 8)]
    montage = Image.new("RGB", (frames[0].width, frames[0].height * len(sample)))
    for number, frame in enumerate(sample):
        montage.paste(frame, (0, number * frame.height))
    counted: Any = sorted(montage.getcolors(montage.width * montage.height) or [], reverse=True)
    spread = np.array(montage.quantize(31).getpalette()).reshape(-1, 3)
    palette = np.concatenate([[colour for _, colour in counted[:32]], spread])  # (at most 63, 3)

    present = np.zeros(1 << 24, bool)
    for frame in frames:
        present[_packed(frame)] = True
    colours = np.flatnonzero(present)
    rgb = np.stack([colours & 255, colours >> 8 & 255, colours >> 16], axis=1)
    nearest = np.zeros(1 << 24, np.uint8)
    nearest[colours] = np.square(rgb[:, None] - palette).sum(axis=2).argmin(axis=1)
    indexed = [Image.fromarray(nearest[_packed(frame)]) for frame in frames]
    for image in indexed:
        image.putpalette(palette.astype(np.uint8).tobytes())
    return indexed


def _packed(frame: "Image.Image") -> NDArray[np.integer]:
    """(height, width) colours as one number each: red + 256 green + 65536 blue."""
    pixels = np.frombuffer(frame.convert("RGBX").tobytes(), "<u4").reshape(frame.height, frame.width)
    return pixels & 0xFFFFFF
