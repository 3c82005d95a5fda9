"""Where things stand when an episode starts: declarative regions, sampled by rejection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

MAX_TRIES = 10_000  # a layout is accepted after a handful; this many means an impossible task


@dataclass(frozen=True)
class Place:
    """Region in which one object or fixture is placed, uniformly.

    Attributes:
        name: Object or fixture.
        x: Range along the world's x (away from the robot), metres.
        y: Range along the world's y (to the right in the scene image), metres.
        yaw: Largest turn either way, rad.
        facing: Turn about which `yaw` varies, rad.
    """

    name: str
    x: tuple[float, float] = (0.42, 0.62)
    y: tuple[float, float] = (-0.145, 0.145)
    yaw: float = 0.25
    facing: float = 0.0


@dataclass(frozen=True)
class Layout:
    """One start arrangement.

    Attributes:
        poses: Name to (x, y, yaw), metres and rad, on the table.
        opening: How far the drawer stands open, metres.
    """

    poses: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    opening: float = 0.0

    def distance(self, first: str, second: str) -> float:
        """Horizontal distance between two centres, metres."""
        a, b = self.poses[first], self.poses[second]
        return float(np.hypot(a[0] - b[0], a[1] - b[1]))


@dataclass(frozen=True)
class LayoutSpec:
    """How a task's start arrangements are drawn.

    Attributes:
        places: Region of each object and fixture.
        spacing: Least distance between any two centres, metres. 0.105 leaves room for the
            open fingers (outer half width 5.2 cm) beside a turned cube (half diagonal 3.7 cm).
        opening: Range of the drawer's opening, metres.
        rule: Further condition a layout must meet.
    """

    places: tuple[Place, ...]
    spacing: float = 0.105
    opening: tuple[float, float] = (0.0, 0.0)
    rule: Callable[[Layout], bool] | None = None


def sample_layout(spec: LayoutSpec, *, generator: np.random.Generator) -> Layout:
    """Draw layouts until one keeps its distances and its rule.

    Raises RuntimeError (no layout was accepted, so the spec contradicts itself).
    """
    for _ in range(MAX_TRIES):
        layout = _draw(spec, generator)
        if _spaced(layout, spec.spacing) and (spec.rule is None or spec.rule(layout)):
            return layout
    names = [place.name for place in spec.places]
    raise RuntimeError(f"layout of {names}: none of {MAX_TRIES} draws met spacing {spec.spacing} and the rule")


def _draw(spec: LayoutSpec, generator: np.random.Generator) -> Layout:
    poses = {}
    for place in spec.places:
        yaw = place.facing + generator.uniform(-place.yaw, place.yaw)
        poses[place.name] = (generator.uniform(*place.x), generator.uniform(*place.y), yaw)
    return Layout(poses, generator.uniform(*spec.opening))


def _spaced(layout: Layout, spacing: float) -> bool:
    names = list(layout.poses)
    pairs = ((a, b) for i, a in enumerate(names) for b in names[i + 1 :])
    return all(layout.distance(a, b) >= spacing for a, b in pairs)
