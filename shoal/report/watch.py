"""Recorded episodes, drawn as a strip of moments or as an animated GIF.

Shape letters: E copies, N agents, T time, O observation, A action, K entities.
"""

import dataclasses
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.config import algorithm_title
from shoal.envs.base import Entity, VectorEnv
from shoal.errors import UserError, check_range
from shoal.report.palette import indexed
from shoal.report.scene import BORDER, FAINT_INK, INK, PAPER, Scene, fit_view, fitting_font, font
from shoal.system.files import write_whole
from shoal.training.evaluation import Act

if TYPE_CHECKING:
    from PIL import Image

    from shoal.policies.run import RunPolicy

RGBFrame = NDArray[np.uint8]  # (height, width, 3)
Look = TypeVar("Look")

GIF_SIDE = 448  # pixels of the picture of the world, without the text around it
STRIP_SIDE = 240
MOST_FRAMES = 250  # in a GIF; longer films skip steps
MARGIN = 16
LINE = 20  # from one line of text to the next
MOST_GROUPS = 3  # whose returns fit below a picture
NEEDS = (
    'watch needs a constructor that takes render_mode="rgb_array" and keeps it as self.render_mode, and a render() '
    "that returns a picture"
)


# Recording ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Screen:
    """An episode of a world that renders itself; has the interface of `Scene`."""

    frames: list[RGBFrame]  # T + 1, all of one size

    frames_per_step: ClassVar = 1
    pace: ClassVar = 0.05  # seconds per step
    colours: ClassVar = 255

    def draw(self, time: float, side: int, trail: int | None = None) -> "Image.Image":
        """The picture of this moment in a thin frame, its longer side `side` pixels."""
        from PIL import Image, ImageDraw

        frame = self.frames[int(time)]
        height, width, _ = frame.shape
        scale = side / max(height, width)
        way = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
        image = Image.fromarray(frame).resize((round(width * scale), round(height * scale)), way)
        ImageDraw.Draw(image).rectangle((0, 0, image.width - 1, image.height - 1), outline=BORDER)
        return image

    def highlights(self) -> list[int]:
        return []

    def legend(self, height: int) -> None:
        """Nothing: only the world knows what is in its frames."""

    def tally(self, step: int) -> str:
        return ""


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedEpisode:
    """One episode of copy 0: T steps between T + 1 moments."""

    reward: NDArray[np.float64]  # (T, N)
    moments: Scene | Screen

    @property
    def steps(self) -> int:
        """T."""
        return len(self.reward)


@dataclasses.dataclass(frozen=True, eq=False)
class Film:
    """Recorded episodes of one world."""

    title: str
    episodes: tuple[RecordedEpisode, ...]
    team: int = 0  # number of leading agents that the return is averaged over; 0 means all
    groups: dict[str, list[int]] = dataclasses.field(default_factory=dict)  # agents by group

    def running_return(self, episode: RecordedEpisode, group: str = "") -> NDArray[np.float64]:
        """(T + 1,) sum of rewards so far, per agent of the team or of a group."""
        rewards = episode.reward[:, self.groups[group]] if group else episode.reward[:, : self.team or None]
        return np.concatenate([[0.0], np.cumsum(rewards.mean(axis=1))])

    def returns_so_far(self, episode: RecordedEpisode, step: int) -> list[str]:
        """The return up to a step as text; a line per group in mixed teams of a few groups."""
        mixed = 1 < len(self.groups) <= MOST_GROUPS
        named = {f"{name} return": name for name in self.groups} if mixed else {"return per agent": ""}
        sums = {label: self.running_return(episode, group)[step] for label, group in named.items()}
        return [f"{label} " + f"{value:z.1f}".replace("-", "−") for label, value in sums.items()]


def record(env: VectorEnv, act: Act, episodes: int = 1, max_steps: int = 500) -> Film:
    """Record whole episodes of copy 0 while `act` plays: as bodies if the world has them, else as rendered frames.

    An episode longer than `max_steps` is cut there. The world is reset before each episode and left
    wherever the last one ended.
    """
    if not hasattr(env, "position"):
        return record_frames(env, act, episodes, max_steps)
    world: Any = env  # particle worlds have `position` and `entities` beyond the protocol
    entities: tuple[Entity, ...] = world.entities

    def last_position(before: NDArray) -> NDArray:
        """Where the bodies were when the episode ended; `position` already belongs to the next one."""
        return np.copy(getattr(world, "final_position", before))

    played = _play(env, act, lambda: world.position[0].copy(), last_position, episodes, max_steps)
    positions = [np.stack(moments).astype(np.float64) for _, moments in played]
    if not all(np.isfinite(position).all() for position in positions):
        raise UserError(f"The world '{env.spec.name}' cannot be drawn: bodies have positions that are not finite.")
    view = fit_view(entities, positions)
    recorded = [
        RecordedEpisode(reward, Scene(entities, position, *view))
        for (reward, _), position in zip(played, positions, strict=True)
    ]
    return Film(env.spec.name, tuple(recorded), env.spec.team, env.spec.groups)


def record_frames(env: VectorEnv, act: Act, episodes: int = 1, max_steps: int = 500) -> Film:
    """Record episodes of a world that renders itself: `env.render()` returns an RGB array (height, width, 3).

    After the last step it already shows the next episode, so the frame before is used.
    """
    from PIL import Image

    render = getattr(env, "render", lambda: None)  # not part of the protocol either

    def look() -> RGBFrame:
        frame = render()  # worlds of others check what they return
        if frame is None:
            raise UserError(
                f"The world '{env.spec.name}' cannot be watched: it has neither positions nor RGB pictures; {NEEDS}."
            )
        image = Image.fromarray(frame)
        image.thumbnail((GIF_SIDE, GIF_SIDE), Image.Resampling.LANCZOS)  # hundreds of them are kept
        return np.array(image)

    played = _play(env, act, look, lambda before: before, episodes, max_steps)
    recorded = tuple(RecordedEpisode(reward, Screen(frames)) for reward, frames in played)
    return Film(env.spec.name, recorded, env.spec.team, env.spec.groups)


def _play(
    env: VectorEnv,
    act: Act,
    look: Callable[[], Look],
    look_back: Callable[[Look], Look],
    episodes: int,
    max_steps: int,
) -> list[tuple[NDArray[np.float64], list[Look]]]:
    """Play episodes of copy 0: rewards (T, N) and T + 1 looks at each.

    An ended episode is reset within its last step. `look_back` says what was visible before the reset, given the look
    before that step.
    """
    check_range("episodes", episodes, 1)
    check_range("max_steps", max_steps, 1)
    played = []
    for _ in range(episodes):
        observation = env.reset()
        looks, rewards = [look()], []
        for _ in range(max_steps):
            step = env.step(act(observation))
            rewards.append(step.reward[0].astype(np.float64))
            if step.ended[0]:
                looks.append(look_back(looks[-1]))
                break
            looks.append(look())
            observation = step.observation
        played.append((np.stack(rewards), looks))
    return played


def record_run(
    run: Path, seed: int, noisy: bool, warn: Callable[[str], None], trust: bool = False, checkpoint: str = "last"
) -> Film:
    """Record an episode of a run's trained team with this random seed. For the other arguments see `shoal.load`."""
    from shoal.envs.rendering import prepare_rendering
    from shoal.policies.run import load_run
    from shoal.training.saved_team import updates_made

    prepare_rendering()
    policy = load_run(run, {}, trust, warn, checkpoint)
    team = algorithm_title(policy.config.algorithm) if updates_made(run, checkpoint) else "Untrained team"
    env = _env_with_pictures(policy, seed)
    try:
        film = record(env, lambda observation: policy.respond(observation, deterministic=not noisy))
    finally:
        env.close()
    return dataclasses.replace(film, title=f"{team} in {film.title}")


def _env_with_pictures(policy: "RunPolicy", seed: int) -> VectorEnv:
    """The run's world; third-party ones need the render mode when they are created."""
    config = policy.config
    if ":" not in config.env:
        return policy.make_env(1, seed)
    options = config.world_options | {"render_mode": "rgb_array"}
    policy.config = dataclasses.replace(config, env_options=json.dumps(options))
    try:
        return policy.make_env(1, seed)
    except UserError as error:
        policy.config = config
        policy.make_env(1, seed).close()  # a world that cannot be made at all gets the usual sentence
        cause = error.__cause__ or error
        problem = "takes no render_mode" if isinstance(cause, TypeError) else 'fails with render_mode="rgb_array"'
        words = str(cause).strip().partition("\n")[0].rstrip(".") or type(cause).__name__
        raise UserError(
            f"The world '{config.env}' cannot be watched: its constructor {problem} ({words}); {NEEDS}."
        ) from error


# Drawing --------------------------------------------------------------------------------------------------------------


def draw_run(
    run: Path,
    seed: int,
    noisy: bool,
    warn: Callable[[str], None],
    trust: bool = False,
    out: Path | None = None,
    checkpoint: str = "last",
) -> list[Path]:
    """Draw an episode of a run's trained team, as a strip and as a GIF, into its folder.

    `out`: into this file only, a strip (.png) or a GIF (.gif).
    `checkpoint`: other weights than the newest; their name is added to the files'.
    """
    film = record_run(run, seed, noisy, warn, trust, checkpoint)
    name = "episode" if checkpoint == "last" else f"episode-{checkpoint}"
    files = [run / f"{name}.png", run / f"{name}.gif"] if out is None else [out]
    return [draw_gif(film, file) if file.suffix.lower() == ".gif" else draw_strip(film, file) for file in files]


def draw_gif(film: Film, path: str | Path, seconds_per_step: float | None = None, pause: float = 2.0) -> Path:
    """Write the film as an endless GIF; every episode pauses at its last moment for `pause` seconds.

    By default, a step takes 0.2 seconds for bodies and 0.05 for rendered frames.
    Bodies move smoothly between steps in short films; very long ones skip steps.
    """
    pace = film.episodes[0].moments.pace if seconds_per_step is None else seconds_per_step
    check_range("seconds_per_step", pace, 0.01, 10)
    check_range("pause", pause, 0, 600)
    steps = sum(episode.steps for episode in film.episodes)
    smooth = film.episodes[0].moments.frames_per_step
    stride = 1 / smooth if steps * smooth <= MOST_FRAMES else math.ceil(steps / MOST_FRAMES)
    hundredths = max(2, round(100 * pace * stride))  # GIF time units; browsers slow down shorter frames
    legend = film.episodes[0].moments.legend(17)
    frames: list[Image.Image] = []
    milliseconds: list[int] = []
    for number, episode in enumerate(film.episodes):
        times = [*np.arange(0, episode.steps, stride).tolist(), episode.steps]
        frames += [_gif_frame(film, number, time, legend) for time in times]
        milliseconds += [10 * hundredths] * (len(times) - 1) + [round(1000 * pause)]
    first, *rest = indexed(frames, film.episodes[0].moments.colours)
    content = io.BytesIO()
    first.save(content, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)
    return write_whole(path, content.getvalue())


def draw_strip(film: Film, path: str | Path, moments: int = 6) -> Path:
    """Write a PNG of moments side by side, from the first to the last; one row per episode.

    They are evenly spaced, but snap to catches nearby.
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
    title_font = fitting_font(film.title, width - 2 * MARGIN, 18)
    ImageDraw.Draw(image).text((MARGIN, head / 2), film.title, INK, title_font, "lm")
    top = head
    for row in rows:
        image.paste(row, (MARGIN, top))
        top += row.height + MARGIN
    content = io.BytesIO()
    image.save(content, "PNG")
    return write_whole(path, content.getvalue())


def _gif_frame(film: Film, number: int, time: float, legend: "Image.Image | None") -> "Image.Image":
    """Title, progress, return so far and tally above the picture; the legend below it."""
    from PIL import Image, ImageDraw

    episode, step = film.episodes[number], int(time)
    picture = episode.moments.draw(time, GIF_SIDE)
    returns = film.returns_so_far(episode, step)
    line = 40 + LINE * len(returns)  # where the texts end
    head, foot = line + 8, legend.height + 26 if legend else MARGIN
    image = Image.new("RGB", (picture.width + 2 * MARGIN, head + picture.height + foot), PAPER)
    draw = ImageDraw.Draw(image)
    right = image.width - MARGIN
    which = f"episode {number + 1} of {len(film.episodes)}" if len(film.episodes) > 1 else ""
    draw.text((right, 20), which, FAINT_INK, font(13), "rm")
    room = picture.width - font(13).getlength(which) - MARGIN
    draw.text((MARGIN, 20), film.title, INK, fitting_font(film.title, room, 16), "lm")
    draw.text((MARGIN, 44), f"step {step} of {episode.steps}", INK, font(13), "lm")
    for row, text in enumerate(returns):
        draw.text((MARGIN + 116, 44 + LINE * row), text, INK, font(13), "lm")
    draw.text((right, 44), episode.moments.tally(step), INK, font(13), "rm")
    draw.line((MARGIN, line, right, line), BORDER, 3)
    draw.line((MARGIN, line, MARGIN + picture.width * time / episode.steps, line), FAINT_INK, 3)
    image.paste(picture, (MARGIN, head))
    if legend:
        image.paste(legend, (MARGIN, head + picture.height + 10))
    return image


def _strip_row(film: Film, episode: RecordedEpisode, moments: int) -> "Image.Image":
    """The moments of one episode side by side, each with its step, return so far and tally."""
    from PIL import Image, ImageDraw

    steps = _strip_steps(episode, moments)
    trails = [1, *np.diff(steps).tolist()]  # back to the previous panel
    pictures = [episode.moments.draw(step, STRIP_SIDE, trail) for step, trail in zip(steps, trails, strict=True)]
    width, height = pictures[0].size
    returns = [film.returns_so_far(episode, step) for step in steps]
    below = 4 + LINE * max(2, len(returns[0]))  # two lines for the step and the tally
    image = Image.new("RGB", (len(steps) * (width + MARGIN) - MARGIN, height + below), PAPER)
    draw = ImageDraw.Draw(image)
    for column, (step, picture) in enumerate(zip(steps, pictures, strict=True)):
        left = column * (width + MARGIN)
        image.paste(picture, (left, 0))
        draw.text((left, height + 14), f"step {step}", INK, font(13, bold=True), "lm")
        for row, text in enumerate(returns[column]):
            draw.text((left + width, height + 14 + LINE * row), text, INK, font(13), "rm")
        draw.text((left, height + 34), episode.moments.tally(step), FAINT_INK, font(13), "lm")
    return image


def _strip_steps(episode: RecordedEpisode, moments: int) -> list[int]:
    """Which steps to show: the ends, and between them the highlight nearest to each evenly spaced step, if one is."""
    gap = episode.steps / (moments - 1)
    highlights = episode.moments.highlights()
    steps = {0, episode.steps}
    for number in range(1, moments - 1):
        even = gap * number
        near = sorted((abs(step - even), step) for step in highlights if abs(step - even) < gap / 2)
        steps.add(near[0][1] if near else round(even))
    return sorted(steps)
