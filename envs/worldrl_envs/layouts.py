"""Where things stand when an episode starts: declarative regions, sampled by rejection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

MAX_TRIES = 10_000  # a layout is accepted after a handful; this many means an impossible task


@dataclass(frozen=True)
class Place:
    """Region in which one object or fixture is placed, uniformly."""

    name: str  # Object or fixture
    x: tuple[float, float] = (0.42, 0.62)  # Range along the world's x (away from the robot), metres
    y: tuple[float, float] = (-0.145, 0.145)  # Range along the world's y (to the right in the scene image), metres
    yaw: float = 0.25  # Largest turn either way, rad
    facing: float = 0.0  # Turn about which `yaw` varies, rad


@dataclass(frozen=True)
class Layout:
    """One start arrangement."""

    # Name to (x, y, yaw), metres and rad, on the table.
    poses: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    opening: float = 0.0  # How far the drawer stands open, metres

    def distance(self, first: str, second: str) -> float:
        """Horizontal distance between two centres, metres."""
        a, b = self.poses[first], self.poses[second]
        return float(np.hypot(a[0] - b[0], a[1] - b[1]))


@dataclass(frozen=True)
class LayoutSpec:
    """How a task's start arrangements are drawn."""

    places: tuple[Place, ...]  # Region of each object and fixture
    # Least distance between any two centres, metres. 0.105 leaves room for the open fingers (outer half width 5.2 cm)
    # beside a turned cube (half diagonal 3.7 cm).
    spacing: float = 0.105
    opening: tuple[float, float] = (0.0, 0.0)  # Range of the drawer's opening, metres
    rule: Callable[[Layout], bool] | None = None  # Further condition a layout must meet


def sample_layout(spec: LayoutSpec, *, generator: np.random.Generator) -> Layout:
    """Draw layouts until one keeps its distances and its rule; RuntimeError where the spec contradicts itself."""
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
