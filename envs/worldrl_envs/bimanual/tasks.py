"""The bimanual tasks, as a table: tasks of RoboTwin's kind. The horizon is about twice what the expert needs."""

from dataclasses import dataclass
from typing import ClassVar

from worldrl_envs.bimanual import predicates
from worldrl_envs.bimanual.language import PARAPHRASES
from worldrl_envs.language import Phrases
from worldrl_envs.layouts import Layout, LayoutSpec, Place
from worldrl_envs.predicates import OPENED, drawer_open
from worldrl_envs.task_spec import TaskSpec

LEFT, RIGHT = (0.085, 0.17), (-0.17, -0.085)  # ranges of y in which one arm works alone, metres
DEPTH = (0.29, 0.39)  # range of x, metres
HALF_TURN = 3.141593  # the cabinet opens toward the robot


@dataclass(frozen=True, kw_only=True)
class BimanualTask(TaskSpec):
    """A task of two arms; its plan is a sequence of moves, each a tuple of (arm, skill, name, ...) made at once."""

    kind: str = "bimanual"
    entry_point: ClassVar[str] = "worldrl_envs.bimanual.environment:BimanualEnv"

    @property
    def phrases(self) -> Phrases:
        """Paraphrases of the instruction."""
        return PARAPHRASES[self.name]


def _on_one_side(layout: Layout) -> bool:
    return abs(layout.poses["red_cube"][1]) >= LEFT[0]


def _on_two_sides(layout: Layout) -> bool:
    red, green = layout.poses["red_cube"][1], layout.poses["green_cube"][1]
    return min(abs(red), abs(green)) >= LEFT[0] and red * green < 0


def _off_centre(layout: Layout) -> bool:
    return abs(layout.poses["cabinet"][1]) >= 0.03


_SPECS = (
    BimanualTask(
        name="BimanualHandoverBlock",
        instruction="pass the block from the left arm to the right arm",
        objects=("block",),
        layout=LayoutSpec((Place("block", (0.30, 0.38), (0.06, 0.11), 0.2),)),
        horizon=260,
        stages=(predicates.lifted_by("left", "block"), predicates.lifted_by("right", "block")),
        plan=(
            (("left", "pick", "block"),),
            (("left", "bring", "block"),),
            (("left", "hold"), ("right", "take", "block")),
            (("left", "let_go"), ("right", "hold")),
            (("right", "raise", "block"),),
        ),
    ),
    BimanualTask(
        name="BimanualLiftPot",
        instruction="lift the pot with both arms",
        objects=("pot",),
        layout=LayoutSpec((Place("pot", (0.31, 0.38), (-0.03, 0.03), 0.2),)),
        horizon=140,
        stages=(predicates.lifted_together("pot"),),
        plan=(
            (("left", "take", "pot"), ("right", "take", "pot")),
            (("left", "raise", "pot"), ("right", "raise", "pot")),
        ),
    ),
    BimanualTask(
        name="BimanualPlaceCubeOnPlate",
        instruction="put the cube on the plate with the nearer arm",
        objects=("red_cube",),
        fixtures=("plate",),
        layout=LayoutSpec(
            (Place("plate", (0.31, 0.37), (-0.02, 0.02)), Place("red_cube", DEPTH, (-0.17, 0.17))), rule=_on_one_side
        ),
        horizon=180,
        stages=(predicates.taken_by_nearer_arm("red_cube"), predicates.on_plate("red_cube")),
        plan=((("near", "pick", "red_cube"),), (("near", "place", "red_cube", "plate"),)),
    ),
    BimanualTask(
        name="BimanualStackCubes",
        instruction="put the red cube on the target and stack the green cube on it",
        objects=("red_cube", "green_cube"),
        fixtures=("zone",),
        layout=LayoutSpec(
            (
                Place("zone", (0.32, 0.36), (-0.015, 0.015), 0.0),
                Place("red_cube", DEPTH, (-0.17, 0.17)),
                Place("green_cube", DEPTH, (-0.17, 0.17)),
            ),
            spacing=0.09,
            rule=_on_two_sides,
        ),
        horizon=320,
        stages=(predicates.in_zone("red_cube"), predicates.stacked("red_cube", "green_cube")),
        plan=(
            (("near", "pick", "red_cube"),),
            (("near", "place", "red_cube", "zone"),),
            (("near", "pick", "green_cube"),),
            (("near", "place", "green_cube", "red_cube"),),
        ),
    ),
    BimanualTask(
        name="BimanualOpenDrawer",
        instruction="open the drawer with the nearer arm",
        fixtures=("cabinet",),
        layout=LayoutSpec(
            (Place("cabinet", (0.49, 0.50), (-0.10, 0.10), 0.0, HALF_TURN),), opening=(0.0, 0.01), rule=_off_centre
        ),
        horizon=140,
        stages=(drawer_open(OPENED),),
        plan=((("near", "open", "cabinet"),),),
    ),
    BimanualTask(
        name="BimanualPutCubeInDrawer",
        instruction="open the drawer with the left arm and put the cube inside with the right arm",
        objects=("red_cube",),
        fixtures=("cabinet",),
        layout=LayoutSpec(
            (Place("cabinet", (0.49, 0.50), (0.02, 0.07), 0.0, HALF_TURN), Place("red_cube", DEPTH, RIGHT)),
            opening=(0.0, 0.01),
        ),
        horizon=320,
        stages=(drawer_open(OPENED), predicates.in_drawer("red_cube")),
        plan=(
            (("left", "open", "cabinet"),),
            (("right", "pick", "red_cube"),),
            (("right", "place", "red_cube", "drawer"),),
        ),
    ),
    BimanualTask(
        name="BimanualPutCubesInBin",
        instruction="put both cubes in the bin, each with the arm on its side",
        objects=("red_cube", "blue_cube"),
        fixtures=("bin",),
        layout=LayoutSpec(
            (
                Place("bin", (0.32, 0.36), (-0.01, 0.01), 0.1, HALF_TURN / 2),
                Place("red_cube", DEPTH, (0.14, 0.18)),
                Place("blue_cube", DEPTH, (-0.18, -0.14)),
            )
        ),
        horizon=260,
        stages=(predicates.in_bin("red_cube", "blue_cube"),),
        plan=(
            (("left", "pick", "red_cube"), ("right", "pick", "blue_cube")),
            (("left", "place", "red_cube", "bin"), ("right", "hold")),
            (("right", "place", "blue_cube", "bin"),),
        ),
    ),
)
BIMANUAL_TASKS = {spec.name: spec for spec in _SPECS}
