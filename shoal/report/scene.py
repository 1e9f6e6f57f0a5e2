"""One moment of a particle world as a picture: bodies, their trails, and contacts.

Shape letters: T time, K entities. Colours are Okabe and Ito's, which colour-blind people can distinguish; important
states also differ in shape (a covered landmark is filled, an open one is a ring).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import Entity

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Position = NDArray[np.float64]  # (2,)

PAPER: Colour = (255, 255, 255)
INK: Colour = (33, 37, 41)
FAINT_INK: Colour = (104, 112, 122)
FIELD: Colour = (246, 247, 249)
BORDER: Colour = (201, 206, 214)
BODY: dict[str, Colour] = {
    "agent": (0, 114, 178),
    "predator": (213, 94, 0),
    "prey": (0, 114, 178),
    "landmark": (73, 80, 87),
    "obstacle": (178, 184, 192),
}
MOVERS = ("agent", "predator", "prey")
NEAR = 0.1  # an agent whose centre is nearer than this covers a landmark, as in the worlds
COVERED: Colour = (0, 158, 115)
CAUGHT: Colour = (240, 228, 66)
BUMPED: Colour = (230, 159, 0)
TOUCHED_WORD = {"agent": "bumping", "landmark": "covered", "prey": "caught"}
LEGEND_RADIUS = {"agent": 0.85, "predator": 0.7, "prey": 0.43, "landmark": 0.55, "obstacle": 0.85}

FARTHEST = 1.8
"""How far along either axis a body's centre may be from the centre of the arena, whose half width is 1, to be drawn."""
HALO = {"landmark": 1.25, "prey": 2.2}  # how much larger than others touched bodies are drawn
SUPERSAMPLE = 3  # drawn this much larger and averaged down: smooth edges


def blend(first: Colour, second: Colour, share: float) -> Colour:
    """`share` of the second colour in the first."""
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(first, second, strict=True))
    return red, green, blue


@cache
def font(size: int, bold: bool = False) -> "ImageFont.FreeTypeFont":
    """DejaVu Sans, which comes with matplotlib and has the minus sign."""
    import matplotlib
    from PIL import ImageFont

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", name)), size)


def fitting_font(text: str, room: float, largest: int) -> "ImageFont.FreeTypeFont":
    """The largest bold font in which the text takes no more than `room` pixels; 9 if nothing fits."""
    sizes = range(largest, 9, -1)
    return font(next((size for size in sizes if font(size, bold=True).getlength(text) <= room), 9), bold=True)


@dataclass(frozen=True, eq=False)
class Scene:
    """The bodies of one episode, and the square part of the plane that its pictures show."""

    entities: tuple[Entity, ...]
    position: NDArray[np.float64]  # (T + 1, K, 2)
    centre: Position
    half_width: float

    pace: ClassVar = 0.2  # seconds per step, slow enough to follow
    colours: ClassVar = 63  # enough for few hues, and a small file

    @cached_property
    def touching(self) -> NDArray[np.bool_]:
        """(T + 1, K, K): at every moment, which bodies are touched by which."""
        reach = contact_reach(self.entities)
        return np.stack([np.linalg.norm(x[:, None] - x[None, :], axis=-1) < reach for x in self.position])

    @cached_property
    def touched(self) -> NDArray[np.bool_]:
        """(T + 1, K): which bodies are touched by any."""
        return np.any(self.touching, axis=2)

    def indices(self, *kinds: str) -> list[int]:
        return [index for index, entity in enumerate(self.entities) if entity.kind in kinds]

    @property
    def crowded(self) -> bool:
        """Whether so many bodies move that long trails would overlap and smooth motion would make large files."""
        return len(self.indices(*MOVERS)) > 20

    @property
    def frames_per_step(self) -> int:
        """How many frames make the motion of one step smooth."""
        return 2 if self.crowded else 4

    def draw(self, time: float, side: int, trail: int | None = None) -> "Image.Image":
        """A square picture; a time between two steps is drawn between their positions, with the touches of the first.

        Trails go back `trail` steps, or as far as looks good.
        """
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (side * SUPERSAMPLE, side * SUPERSAMPLE), FIELD)
        brush = Brush(ImageDraw.Draw(image), side * SUPERSAMPLE, self.centre, self.half_width)
        step = int(time)
        after = min(step + 1, len(self.position) - 1)
        now = self.position[step] + (time - step) * (self.position[after] - self.position[step])  # (K, 2)

        brush.arena()
        _draw_bodies(brush, self, "obstacle", now, step)
        _draw_trails(brush, self, step, now, trail or (4 if self.crowded else 12))
        for kind in (*MOVERS, "landmark"):  # landmarks on top: whether they are covered is what the task is about
            _draw_bodies(brush, self, kind, now, step)
        return image.reduce(SUPERSAMPLE)

    def legend(self, height: int) -> "Image.Image":
        """The legend of the discs, in one line."""
        from PIL import Image, ImageDraw

        kinds = list(dict.fromkeys(entity.kind for entity in self.entities))
        reach = contact_reach(self.entities)
        touchable = {entity.kind for entity, row in zip(self.entities, reach, strict=True) if row.any()}
        entries: list[tuple[str, Callable[[Brush], None]]] = [
            (
                TOUCHED_WORD[kind] if touched else kind,
                partial(Brush.body, entity=Entity(kind, LEGEND_RADIUS[kind]), at=np.zeros(2), touched=touched),
            )
            for kind in kinds
            for touched in (False, True)
            if not touched or kind in touchable
        ]
        if (np.abs(self.position) > FARTHEST).any():
            entries.append(("far outside", partial(Brush.arrow, at=np.array((9.0, 0.0)), colour=FAINT_INK)))
        text = font(round(height * 0.62))
        widths = [round(height * 2 + text.getlength(label)) for label, _ in entries]

        image = Image.new("RGB", (sum(widths), height), PAPER)
        left = 0
        for (label, draw), width in zip(entries, widths, strict=True):
            icon = Image.new("RGB", (height * SUPERSAMPLE, height * SUPERSAMPLE), PAPER)
            draw(Brush(ImageDraw.Draw(icon), height * SUPERSAMPLE, np.zeros(2), 1.0))
            image.paste(icon.reduce(SUPERSAMPLE), (left, 0))
            ImageDraw.Draw(image).text((left + height * 1.3, height / 2), label, FAINT_INK, text, "lm")
            left += width
        return image

    def highlights(self) -> list[int]:
        """Steps that a strip should include: those with a catch."""
        return np.flatnonzero(self.touched[:, self.indices("prey")].any(axis=1)).tolist()

    def tally(self, step: int) -> str:
        """What the rewards consist of, in words: landmarks covered now, touches so far."""
        if landmarks := self.indices("landmark"):
            return f"{self.touched[step, landmarks].sum()} of {len(landmarks)} covered"
        if prey := self.indices("prey"):
            touches = self.touching[1 : step + 1, prey].sum()  # the state before the first step earns nothing
            return f"{touches} {'touch' if touches == 1 else 'touches'} so far"
        return ""


def contact_reach(entities: Sequence[Entity]) -> NDArray[np.float64]:
    """(K, K) distances below which the first body counts as touched by the second; 0 for irrelevant pairs.

    Agents bump into agents and prey are caught by predators where discs meet, as in the rewards.
    A landmark is covered where an agent's centre is close to it, as in `landmarks_covered`.
    """
    reach = np.zeros((len(entities), len(entities)))
    for a, first in enumerate(entities):
        for b, second in enumerate(entities):
            if (first.kind, second.kind) in (("agent", "agent"), ("prey", "predator")):
                reach[a, b] = first.radius + second.radius
            elif (first.kind, second.kind) == ("landmark", "agent"):
                reach[a, b] = NEAR
    np.fill_diagonal(reach, 0)
    return reach


def fit_view(entities: Sequence[Entity], positions: Sequence[NDArray[np.float64]]) -> tuple[Position, float]:
    """Centre and half width of the smallest square, with a margin, around the arena and all bodies at all times.

    Bodies that leave the arena are followed up to FARTHEST: one that runs away must not make all others tiny.
    """
    radius = np.array([entity.radius * HALO.get(entity.kind, 1.0) for entity in entities])[:, None]  # (K, 1)
    near = [np.clip(position, -FARTHEST, FARTHEST) for position in positions]
    low = np.min([(-1.0, -1.0), *((position - radius).min(axis=(0, 1)) for position in near)], axis=0)
    high = np.max([(1.0, 1.0), *((position + radius).max(axis=(0, 1)) for position in near)], axis=0)
    return (low + high) / 2, float((high - low).max()) / 2 * 1.04


class Brush:
    """Draws discs and lines, given in world units (y up), on an image of `size` × `size` pixels."""

    def __init__(self, draw: "ImageDraw.ImageDraw", size: int, centre: Position, half_width: float):
        self.draw, self.size = draw, size
        self.scale = size / (2 * half_width)
        self.left, self.top = float(centre[0]) - half_width, float(centre[1]) + half_width

    def pixel(self, at: Position) -> tuple[float, float]:
        """Pixel coordinates of a point of the world."""
        x, y = at.tolist()
        return (x - self.left) * self.scale, (self.top - y) * self.scale

    def disc(
        self, at: Position, radius: float, fill: Colour, edge: Colour | None = None, edge_width: float = 1.0
    ) -> None:
        """A filled circle; its edge lies inside it and is `edge_width` pixels of the final picture wide."""
        x, y = self.pixel(at)
        r = max(radius * self.scale, 2.0 * SUPERSAMPLE)
        width = round(edge_width * SUPERSAMPLE) if edge else 0
        self.draw.ellipse((x - r, y - r, x + r, y + r), fill, edge, width)

    def line(self, start: Position, end: Position, widths: tuple[float, float], colour: Colour) -> None:
        """A line with round ends that goes from one width to another."""
        (x, y), (to_x, to_y) = self.pixel(start), self.pixel(end)
        r, to_r = (max(width * self.scale, SUPERSAMPLE) / 2 for width in widths)
        length = math.hypot(to_x - x, to_y - y) or 1.0
        across, down = (y - to_y) / length, (to_x - x) / length  # unit vector at a right angle to the line
        corners = (x + r * across, y + r * down), (to_x + to_r * across, to_y + to_r * down)
        others = (to_x - to_r * across, to_y - to_r * down), (x - r * across, y - r * down)
        self.draw.polygon([*corners, *others], colour)
        self.draw.ellipse((x - r, y - r, x + r, y + r), colour)
        self.draw.ellipse((to_x - to_r, to_y - to_r, to_x + to_r, to_y + to_r), colour)

    def arena(self) -> None:
        """The border of [-1, 1]², inside which everything starts."""
        corners = self.pixel(np.array((-1.0, 1.0))), self.pixel(np.array((1.0, -1.0)))
        self.draw.rounded_rectangle(corners, 3 * SUPERSAMPLE, PAPER, BORDER, SUPERSAMPLE)

    def arrow(self, at: Position, colour: Colour) -> None:
        """A triangle at the edge of the picture that points to a body beyond FARTHEST."""
        beyond = at - np.clip(at, -FARTHEST, FARTHEST)
        side = 7.0 * SUPERSAMPLE
        outside = self.pixel(at + FARTHEST * np.sign(beyond))  # its centre may still be within the margin
        edge_x, edge_y = (min(max(coordinate, side), self.size - side) for coordinate in outside)
        across, down = (side * beyond / np.linalg.norm(beyond) * (1, -1)).tolist()
        tip, base = (edge_x + across, edge_y + down), (edge_x - 0.3 * across, edge_y - 0.3 * down)
        sides = ((base[0] - 0.7 * down, base[1] + 0.7 * across), (base[0] + 0.7 * down, base[1] - 0.7 * across))
        self.draw.polygon([tip, *sides], colour)

    def body(self, entity: Entity, at: Position, touched: bool) -> None:
        """One entity; a covered landmark, a caught prey and a bumping agent look different from others."""
        kind, radius = entity
        if kind == "landmark" and touched:
            self.disc(at, radius * HALO[kind], COVERED, PAPER, 1.5)
        elif kind == "landmark":
            self.disc(at, radius, PAPER, BODY[kind], 2)
        elif kind == "prey" and touched:
            self.disc(at, radius * HALO[kind], CAUGHT, BODY["predator"], 1.5)
            self.disc(at, radius, BODY[kind])
        elif kind == "agent" and touched:
            self.disc(at, radius, BODY[kind], BUMPED, 2.5)
        elif kind == "obstacle":
            self.disc(at, radius, BODY[kind])
        else:
            self.disc(at, radius, BODY[kind], blend(BODY[kind], PAPER, 0.8))


def _draw_bodies(brush: Brush, scene: Scene, kind: str, now: NDArray[np.float64], step: int) -> None:
    for index in scene.indices(kind):
        if np.abs(now[index]).max() <= FARTHEST:
            brush.body(scene.entities[index], now[index], bool(scene.touched[step, index]))
        else:
            brush.arrow(now[index], BODY[kind])


def _draw_trails(brush: Brush, scene: Scene, step: int, now: NDArray[np.float64], trail: int) -> None:
    """Trails of the last steps, fading with age, and a mark wherever a prey was caught."""
    first = max(0, step - trail)
    path = np.concatenate([scene.position[first : step + 1], now[None]])  # (trail + 2, K, 2)
    freshness = (1 - (step - np.arange(first, step + 2)) / (trail + 1)).tolist()  # from nearly 0 to just above 1
    movers = scene.indices(*MOVERS)
    for segment in range(len(path) - 1):  # oldest first, so that newer lines lie above
        old, new = freshness[segment], freshness[segment + 1]
        colours = {kind: blend(PAPER, BODY[kind], 0.1 + 0.4 * old) for kind in MOVERS}
        for index in movers:
            kind, radius = scene.entities[index]
            widths = radius * (0.1 + 0.4 * old), radius * (0.1 + 0.4 * new)
            brush.line(path[segment, index], path[segment + 1, index], widths, colours[kind])
    for moment, index in np.argwhere(scene.touched[first : step + 1]):
        kind, radius = scene.entities[index]
        if kind == "prey":
            brush.disc(path[moment, index], radius * (0.5 + 0.4 * freshness[moment]), CAUGHT, BODY["predator"])
