"""What a moment of a particle world looks like, pixel by pixel where it matters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.envs import physics
from shoal.envs.base import Entity
from shoal.report.scene import (
    BODY,
    BUMPED,
    CAUGHT,
    COVERED,
    FARTHEST,
    FIELD,
    NEAR,
    PAPER,
    Scene,
    contact_reach,
    fit_view,
)

SIDE = 240
AGENT, LANDMARK = Entity("agent", 0.15), Entity("landmark", 0.05)
PREDATOR, PREY, OBSTACLE = Entity("predator", 0.075), Entity("prey", 0.05), Entity("obstacle", 0.2)


def scene(entities, *moments):
    position = np.array(moments, float)
    return Scene(tuple(entities), position, *fit_view(entities, [position]))


def colour_at(picture_of, point, time=0.0):
    """The colour of the picture where a point of the world is."""
    scale = SIDE / (2 * picture_of.half_width)
    x = (point[0] - picture_of.centre[0] + picture_of.half_width) * scale
    y = (picture_of.centre[1] + picture_of.half_width - point[1]) * scale
    return picture_of.draw(time, SIDE).getpixel((int(x), int(y)))


def colours_of(image):
    """All colours in an image."""
    return {colour for _, colour in image.getcolors(image.width * image.height)}


@pytest.mark.parametrize("entity", [AGENT, PREDATOR, PREY, OBSTACLE])
@pytest.mark.parametrize("at", [(-0.6, 0.4), (0.3, -0.7)])
def test_bodies_are_drawn_in_place_and_colour(entity, at):
    world = scene([entity], [at])
    assert colour_at(world, at) == BODY[entity.kind]
    assert colour_at(world, (-at[0], -at[1])) == PAPER


def test_y_axis_points_up():
    world = scene([AGENT], [(0.0, 0.8)])
    column = [world.draw(0, SIDE).getpixel((SIDE // 2, y)) for y in range(SIDE)]
    assert BODY["agent"] in column[: SIDE // 2]
    assert BODY["agent"] not in column[SIDE // 2 :]


def test_positions_are_interpolated_between_steps():
    world = scene([PREY], [(-0.6, 0.0)], [(0.6, 0.0)])
    assert colour_at(world, (0.0, 0.0), time=0.5) == BODY["prey"]
    assert colour_at(world, (0.6, 0.0), time=0.5) == PAPER
    assert colour_at(world, (0.6, 0.0), time=1.0) == BODY["prey"]


def test_trails_show_recent_positions():
    world = scene([PREDATOR], [(-0.8, 0.0)], [(0.0, 0.0)], [(0.8, 0.0)])
    full, short = world.draw(2, SIDE, trail=2), world.draw(2, SIDE, trail=1)
    early, late = (int(SIDE * 0.3), SIDE // 2), (int(SIDE * 0.7), SIDE // 2)
    assert full.getpixel(early) != PAPER != full.getpixel(late)
    assert sum(full.getpixel(early)) > sum(full.getpixel(late))  # the older the paler
    assert sum(short.getpixel(early)) > sum(full.getpixel(early)) - 60
    assert world.draw(0, SIDE, trail=2).getpixel(late) == PAPER


def test_covered_landmarks_are_marked():
    inside, outside = (0.09, 0.0), (0.16, 0.0)
    assert colour_at(scene([AGENT, LANDMARK], [(0, 0), inside]), inside) == COVERED
    assert colour_at(scene([AGENT, LANDMARK], [(0, 0), outside]), outside) == PAPER
    between = scene([AGENT, LANDMARK], [(0, 0), (0.11, 0.0)])
    assert between.tally(0) == "0 of 1 covered" and NEAR == physics.COVERED


def test_touched_prey_is_highlighted():
    beside = (0.0, 0.085)  # outside the prey, inside its halo, away from the predator
    touched = scene([PREDATOR, PREY], [(-0.12, 0.0), (0.0, 0.0)])
    missed = scene([PREDATOR, PREY], [(-0.13, 0.0), (0.0, 0.0)])
    assert colour_at(touched, beside) == CAUGHT
    assert colour_at(missed, beside) == PAPER


def test_colliding_agents_are_ringed():
    def pixels(distance):
        return colours_of(scene([AGENT, AGENT], [(0, 0), (distance, 0)]).draw(0, SIDE))

    assert BUMPED in pixels(0.29)
    assert BUMPED not in pixels(0.31)


def test_touches_match_the_rewards():
    reach = contact_reach([PREDATOR, PREY, OBSTACLE])
    assert reach[1, 0] == pytest.approx(0.125)
    assert np.count_nonzero(reach) == 1  # obstacles touch nobody for a reward, predators do not touch each other


def test_tally_counts_rewarded_events():
    near, far = (0.0, 0.0), (0.9, 0.0)
    chase = scene([PREDATOR, PREDATOR, PREY], [near, near, near], [near, far, near], [near, near, near])
    assert [chase.tally(step) for step in range(3)] == ["0 touches so far", "1 touch so far", "3 touches so far"]
    cover = scene([AGENT, LANDMARK, LANDMARK], [near, near, far], [far, near, near])
    assert [cover.tally(step) for step in range(2)] == ["1 of 2 covered", "0 of 2 covered"]


@settings(max_examples=25, deadline=None)
@given(arrays(np.float64, (3, 2, 2), elements=st.floats(-50, 50)))
def test_view_covers_arena_and_nearby_bodies(position):
    centre, half_width = fit_view([AGENT, LANDMARK], [position])
    near = np.clip(position, -FARTHEST, FARTHEST)
    radius = np.array([[0.15], [0.05]])
    assert np.all(np.abs(near - centre) + radius <= half_width)
    assert np.all(np.abs(centre) + 1 <= half_width) and half_width <= 1.04 * (FARTHEST + 0.15)


@pytest.mark.parametrize("entity", [AGENT, PREDATOR, PREY])
@pytest.mark.parametrize("beyond", [-0.01, 0.01, 0.1])
def test_bodies_at_the_edge_are_whole_or_arrows(entity, beyond):
    """Never sliced: its centre decides which."""
    at = (FARTHEST + beyond, 0.3)
    picture = np.array(scene([entity, OBSTACLE], [at, (0, 0)]).draw(0, SIDE))
    rows, columns = np.nonzero((picture == BODY[entity.kind]).all(axis=2))
    if beyond < 0:
        assert columns.max() < SIDE - 2 and np.ptp(columns) == pytest.approx(np.ptp(rows), abs=1)
    else:
        widest, tip = (np.count_nonzero(columns == column) for column in (columns.min(), columns.max()))
        assert columns.max() >= SIDE - 3 and widest > tip + 3  # points to the right


def test_a_caught_prey_is_whole_at_the_edge():
    at = (-FARTHEST, 0.0)
    picture = np.array(scene([PREDATOR, PREY], [at, at]).draw(0, SIDE))
    _, columns = np.nonzero((picture == CAUGHT).all(axis=2))
    assert len(columns) and columns.min() > 2


@pytest.mark.parametrize(("far", "edge"), [((9, 0), (1, 0)), ((-9, 0), (-1, 0)), ((0, 30), (0, 1)), ((3, -3), (1, -1))])
def test_edge_arrows_point_to_distant_bodies(far, edge):
    world = scene([AGENT, LANDMARK], [(0.0, 0.0), (0.5, 0.5)], [far, (0.5, 0.5)])
    assert colour_at(world, (0.0, 0.0)) == BODY["agent"]
    picture = np.array(world.draw(1, SIDE, 1))
    found = np.argwhere((picture == BODY["agent"]).all(axis=2))[:, ::-1] / SIDE * 2 - 1  # x to the right, y downwards
    assert len(found) > 20 and np.ptp(found, axis=0).max() < 0.2
    assert np.sign(np.round(found.mean(axis=0))).tolist() == [edge[0], -edge[1]]


def test_outside_the_arena_is_shaded():
    world = scene([AGENT], [(2.5, 0.0)])
    assert colour_at(world, (1.5, 0.5)) == FIELD
    assert colour_at(world, (0.5, 0.5)) == PAPER


@pytest.mark.parametrize("agents", [1, 12, 64])
def test_crowds_are_drawn_completely(agents):
    angle = np.arange(agents) * 2 * np.pi / agents
    ring = 1.5 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    world = scene([Entity("agent", 0.05)] * agents, ring)
    assert all(colour_at(world, at) == BODY["agent"] for at in ring[:: max(1, agents // 8)])


def test_legend_names_only_present_kinds():
    assert scene([AGENT], [(9, 0)]).legend(18).width > scene([AGENT], [(0, 0)]).legend(18).width  # what arrows mean
    one, two = scene([AGENT], [(0, 0)]).legend(18), scene([AGENT, AGENT], [(0, 0), (1, 1)]).legend(18)
    assert one.height == two.height == 18
    assert one.width < two.width  # one agent alone has nobody to bump into
    assert BODY["agent"] in colours_of(one)
