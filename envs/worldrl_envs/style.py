"""How a scene looks: light, colours, table texture, camera and props. Never how it moves (a test asserts it)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from worldrl_envs.engine import mujoco
from worldrl_envs.errors import check_name
from worldrl_envs.scene import N_PROPS, ROBOT_BITS

TEXTURES = ("plain", "checker", "speckle", "spots")
SAMPLED = "sampled"

SAMPLED_TEXTURES = ("plain", "spots")
SAMPLED_RANGES = {
    "light": (0.7, 1.05),
    "light_direction": ((-0.6, -0.6, -1.0), (0.6, 0.6, -1.0)),
    "warmth": (-0.5, 0.5),
    "table": (0.25, 0.8),
    "robot_grey": (0.75, 1.0),
    "camera_jitter": (-0.02, 0.02),
    "camera_roll": (-0.03, 0.03),
    "distractors": (0, 4),
}
"""Least and largest values that `sample_style` draws, ends included. Every one of `TEST_STYLES` lies beyond them in some field."""


@dataclass(frozen=True)
class Style:
    """One look."""

    name: str = "default"  # For results and images
    light: float = 1.0  # Brightness of the key light and the head light, 1 as designed
    # Direction the key light shines in (world frame, any length).
    light_direction: tuple[float, float, float] = (-0.35, 0.45, -1.0)
    warmth: float = 0.0  # Tint of the light, -1 bluish to 1 reddish
    table: tuple[float, float, float] = (0.62, 0.56, 0.48)  # Colour of the table, rgb in [0, 1]
    texture: str = "plain"  # Table material, one of `TEXTURES`
    robot_grey: float = 0.93  # Grey value of the robot's white parts in [0, 1]
    # Colour per object or fixture name, rgb in [0, 1]; others keep their own.
    colours: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    # Offset of the main camera, metres (x, y, z); it keeps its direction.
    camera_jitter: tuple[float, float, float] = (0.0, 0.0, 0.0)
    camera_roll: float = 0.0  # Turn of the main camera about its viewing direction, rad
    distractors: int = 0  # Number of visual-only props around the working area, 0 to 6
    distractor_seed: int = 0  # Chooses the props' places, sizes and colours

    def __post_init__(self) -> None:
        """UnknownNameError for a texture, ValueError for too many distractors or a light that is not positive."""
        check_name("style.texture", self.texture, TEXTURES)
        if not 0 <= self.distractors <= N_PROPS:
            raise ValueError(f"style.distractors: must be in 0..{N_PROPS}, got {self.distractors}")
        if not self.light > 0:
            raise ValueError(f"style.light: must be positive, got {self.light}")


STYLES = {
    style.name: style
    for style in (
        Style(),
        Style("dim", light=0.6),
        Style("bright", light=1.15, table=(0.68, 0.67, 0.64)),
        Style("warm", warmth=0.6, light_direction=(0.5, 0.5, -1.0)),
        Style("dark_table", table=(0.20, 0.22, 0.26)),
        Style("checker", texture="checker", table=(0.75, 0.75, 0.80)),
        Style("speckle", texture="speckle", table=(0.55, 0.62, 0.55)),
        Style("shifted_camera", camera_jitter=(0.0, 0.03, 0.02), camera_roll=0.04),
        Style("cluttered", distractors=6, distractor_seed=1),
    )
}


TEST_STYLES = tuple(name for name in STYLES if name != "default")
"""Looks that are kept for tests: world models refuse to be trained on them, and `sample_style` cannot draw them."""


def get_style(style: "Style | str | None") -> Style:
    """A style from itself, its preset's name, ``sampled-<number>`` or None (default); UnknownNameError for others."""
    if isinstance(style, Style):
        return style
    name = style or "default"
    prefix, _, number = name.partition("-")
    if prefix == SAMPLED and number.isdecimal():
        return replace(sample_style(generator=np.random.default_rng(int(number))), name=name)
    check_name("style", name, STYLES)
    return STYLES[name]


def sample_style(*, generator: np.random.Generator) -> Style:
    """Draw a random look, never one of `TEST_STYLES`; the colours of task objects stay, because instructions name them."""

    def number(name: str) -> float:
        return float(generator.uniform(*SAMPLED_RANGES[name]))

    def triple(name: str) -> tuple[float, float, float]:
        low, high = SAMPLED_RANGES[name]
        x, y, z = (float(v) for v in generator.uniform(low, high, 3))
        return x, y, z

    fewest, most = SAMPLED_RANGES["distractors"]
    return Style(
        name=SAMPLED,
        light=number("light"),
        light_direction=triple("light_direction"),
        warmth=number("warmth"),
        table=triple("table"),
        texture=SAMPLED_TEXTURES[generator.integers(len(SAMPLED_TEXTURES))],
        robot_grey=number("robot_grey"),
        camera_jitter=triple("camera_jitter"),
        camera_roll=number("camera_roll"),
        distractors=int(generator.integers(fewest, most, endpoint=True)),
        distractor_seed=int(generator.integers(2**31)),
    )


def beyond_sampling(style: Style) -> tuple[str, ...]:
    """Names of the fields in which a style lies beyond everything that `sample_style` draws."""
    outside = [
        name
        for name, (low, high) in SAMPLED_RANGES.items()
        if np.any(np.asarray(getattr(style, name)) < low) or np.any(np.asarray(getattr(style, name)) > high)
    ]
    return tuple(outside) + (() if style.texture in SAMPLED_TEXTURES else ("texture",))


class Look:
    """Applies styles to one model, always starting from the look it was compiled with.

    A style moves `camera`; `prop_place` draws where a distractor stands, beside the working area, x and y in metres.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        camera: str = "scene",
        prop_place: Callable[[np.random.Generator], tuple[float, float]] | None = None,
    ) -> None:
        self._model, self._camera = model, model.camera(camera).id
        self._prop_place = prop_place or _prop_place
        visual = ("geom_rgba", "geom_matid", "light_diffuse", "light_dir", "cam_pos", "cam_quat")
        self._original = {name: getattr(model, name).copy() for name in visual}
        self._headlight = {part: getattr(model.vis.headlight, part).copy() for part in ("ambient", "diffuse")}

    def apply(self, style: Style, table_height: float = 0.0) -> None:
        """Give the model the look of `style`; props stand on a table of that height, metres."""
        for name, value in self._original.items():
            getattr(self._model, name)[:] = value
        self._light(style)
        self._paint(style)
        self._move_camera(style)
        self._show_props(style, table_height)

    def _light(self, style: Style) -> None:
        tint = style.light * (1 + 0.15 * style.warmth * np.array([1.0, 0.0, -1.0]))
        for part, value in self._headlight.items():
            getattr(self._model.vis.headlight, part)[:] = value * tint
        direction = np.array(style.light_direction)
        self._model.light_diffuse[:] = self._original["light_diffuse"] * tint
        self._model.light_dir[:] = direction / np.linalg.norm(direction)

    def _paint(self, style: Style) -> None:
        model = self._model
        table = model.geom("table").id
        model.geom_rgba[table, :3] = style.table
        model.geom_matid[table] = model.material(style.texture).id
        white = self._original["geom_rgba"][:, :3].min(1) >= 0.92
        robot = np.isin(model.geom_contype, ROBOT_BITS)
        model.geom_rgba[white & robot, :3] = style.robot_grey
        for name, colour in style.colours.items():
            model.geom_rgba[self._geoms_of(name), :3] = colour

    def _geoms_of(self, name: str) -> np.ndarray:
        names = [self._model.body(i).name for i in range(self._model.nbody)]
        check_name("style.colours", name, names)
        return np.flatnonzero(self._model.geom_bodyid == names.index(name))

    def _move_camera(self, style: Style) -> None:
        camera = self._camera
        self._model.cam_pos[camera] += style.camera_jitter
        roll = np.array([np.cos(style.camera_roll / 2), 0, 0, np.sin(style.camera_roll / 2)])
        turned = np.empty(4)
        mujoco.mju_mulQuat(turned, self._original["cam_quat"][camera], roll)
        self._model.cam_quat[camera] = turned

    def _show_props(self, style: Style, table_height: float) -> None:
        generator = np.random.default_rng(style.distractor_seed)
        for index in range(N_PROPS):
            prop = self._model.geom(f"prop{index}").id
            colour, size = generator.uniform(0.1, 0.9, 3), generator.uniform(0.008, 0.015, 3)
            place = self._prop_place(generator)
            if index < style.distractors:
                self._model.geom_rgba[prop] = (*colour, 1)
                self._model.geom_pos[prop], self._model.geom_size[prop] = (*place, table_height + size[2]), size


def _prop_place(generator: np.random.Generator) -> tuple[float, float]:
    """A place in the image but beside the working area, x and y in metres."""
    if generator.random() < 0.5:
        return generator.uniform(0.67, 0.70), generator.uniform(-0.18, 0.18)  # before it, near the camera
    return generator.uniform(0.40, 0.66), generator.choice([-1, 1]) * generator.uniform(0.18, 0.19)
