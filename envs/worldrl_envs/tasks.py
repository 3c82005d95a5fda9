"""The single-arm tasks of four kinds, after LIBERO's suites, with horizons twice the expert's; both suites' look-up."""

import worldrl_envs.predicates as predicates
from worldrl_envs.bimanual.tasks import BIMANUAL_TASKS
from worldrl_envs.errors import check_name, unknown_name
from worldrl_envs.layouts import Layout, LayoutSpec, Place
from worldrl_envs.task_spec import TaskSpec

KINDS = ("object", "spatial", "goal", "long")
BIMANUAL = "bimanual"  # the kind of every bimanual task; a policy or world model of seven numbers cannot take it

THREE_PLACES = LayoutSpec((Place("red_cube"), Place("green_cylinder"), Place("yellow_brick")))
# Room for the bin (half diagonal 10.5 cm) beside an object and the open fingers around it.
BIN_SPACING = 0.165
CLEAR_OF_CABINET = 0.15  # metres in y between the cabinet's and an object's centre


def _left_of(layout: Layout) -> bool:
    # The camera faces the robot: the scene image's left is the world's -y.
    return layout.poses["right_cube"][1] - layout.poses["left_cube"][1] >= 0.10


def _near_plate(layout: Layout) -> bool:
    near, far = layout.distance("plate", "near_cube"), layout.distance("plate", "far_cube")
    return near <= 0.105 and far >= 0.19


def _beside_cabinet(layout: Layout) -> bool:
    return abs(layout.poses["cabinet"][1] - layout.poses["red_cube"][1]) >= CLEAR_OF_CABINET


def _within_push(layout: Layout) -> bool:
    return 0.12 <= layout.distance("zone", "red_cube") <= 0.20


TWO_PLACES = LayoutSpec((Place("left_cube"), Place("right_cube")), rule=_left_of)
NEAR_PLATE = LayoutSpec(
    (Place("plate", (0.45, 0.60), (-0.11, 0.11)), Place("near_cube"), Place("far_cube")), spacing=0.09, rule=_near_plate
)


def _pick(name: str, kind: str, label: str, target: str, layout: LayoutSpec, *fixtures: str) -> TaskSpec:
    return TaskSpec(
        name=name,
        kind=kind,
        instruction=f"pick up the {label}",
        objects=tuple(place.name for place in layout.places if place.name not in fixtures),
        fixtures=fixtures,
        layout=layout,
        horizon=64,
        stages=(predicates.lifted(target),),
        plan=(("pick", target),),
    )


_SPECS = (
    _pick("PickRedCube", "object", "red cube", "red_cube", THREE_PLACES),
    _pick("PickGreenCylinder", "object", "green cylinder", "green_cylinder", THREE_PLACES),
    _pick("PickYellowBrick", "object", "yellow brick", "yellow_brick", THREE_PLACES),
    _pick("PickLeftCube", "spatial", "cube on the left", "left_cube", TWO_PLACES),
    _pick("PickRightCube", "spatial", "cube on the right", "right_cube", TWO_PLACES),
    _pick("PickCubeNearPlate", "spatial", "cube next to the plate", "near_cube", NEAR_PLATE, "plate"),
    TaskSpec(
        name="PlaceCubeInBin",
        kind="goal",
        instruction="put the cube in the bin",
        objects=("red_cube",),
        fixtures=("bin",),
        layout=LayoutSpec((Place("bin", (0.47, 0.58), (-0.11, 0.11), 0.1), Place("red_cube")), spacing=BIN_SPACING),
        horizon=110,
        stages=(predicates.in_bin("red_cube"),),
        plan=(("pick", "red_cube"), ("place", "red_cube", "bin")),
    ),
    TaskSpec(
        name="OpenDrawer",
        kind="goal",
        instruction="open the drawer",
        fixtures=("cabinet",),
        layout=LayoutSpec((Place("cabinet", (0.37, 0.38), (-0.10, 0.10), 0.0),), opening=(0.0, 0.01)),
        horizon=64,
        stages=(predicates.drawer_open(predicates.OPENED),),
        plan=(("open",),),
    ),
    TaskSpec(
        name="CloseDrawer",
        kind="goal",
        instruction="close the drawer",
        fixtures=("cabinet",),
        layout=LayoutSpec((Place("cabinet", (0.37, 0.38), (-0.10, 0.10), 0.0),), opening=(0.07, 0.12)),
        horizon=64,
        stages=(predicates.drawer_closed(predicates.CLOSED),),
        plan=(("close",),),
    ),
    TaskSpec(
        name="PushCubeToTarget",
        kind="goal",
        instruction="push the cube onto the target",
        objects=("red_cube",),
        fixtures=("zone",),
        layout=LayoutSpec(
            (
                Place("zone", (0.46, 0.60), (-0.12, 0.12), 0.0),
                Place("red_cube", (0.43, 0.59), (-0.14, 0.14)),  # the hand must fit behind it
            ),
            rule=_within_push,
        ),
        horizon=110,
        stages=(predicates.in_zone("red_cube"),),
        plan=(("push", "red_cube"),),
    ),
    TaskSpec(
        name="PlaceRedThenBlueInBin",
        kind="long",
        instruction="put the red cube in the bin, then put the blue cube in the bin",
        objects=("red_cube", "blue_cube"),
        fixtures=("bin",),
        layout=LayoutSpec(
            (Place("bin", (0.48, 0.57), (-0.11, 0.11), 0.1), Place("red_cube"), Place("blue_cube")),
            rule=lambda layout: min(layout.distance("bin", c) for c in ("red_cube", "blue_cube")) >= BIN_SPACING,
        ),
        horizon=220,
        stages=(predicates.in_bin_without("red_cube", "blue_cube"), predicates.in_bin("red_cube", "blue_cube")),
        plan=(("pick", "red_cube"), ("place", "red_cube", "bin"), ("pick", "blue_cube"), ("place", "blue_cube", "bin")),
    ),
    TaskSpec(
        name="PlaceCubeInDrawer",
        kind="long",
        instruction="open the drawer, then put the cube inside",
        objects=("red_cube",),
        fixtures=("cabinet",),
        layout=LayoutSpec(
            (Place("cabinet", (0.37, 0.38), (-0.09, 0.09), 0.0), Place("red_cube", (0.44, 0.60))),
            opening=(0.0, 0.01),
            rule=_beside_cabinet,
        ),
        horizon=220,
        stages=(predicates.drawer_open(predicates.OPENED), predicates.in_open_drawer("red_cube")),
        plan=(("open",), ("pick", "red_cube"), ("place", "red_cube", "drawer")),
    ),
)
TASKS = {spec.name: spec for spec in _SPECS}
ALL_TASKS: dict[str, TaskSpec] = TASKS | BIMANUAL_TASKS


def kinds() -> tuple[str, ...]:
    """The kinds of single-arm task, in the order of the table."""
    return KINDS


def task_names(kind: str | None = None) -> tuple[str, ...]:
    """Names of single-arm tasks, all or of a kind, or of "bimanual" ones; UnknownNameError names the nearest kind."""
    if kind is None:
        return tuple(TASKS)
    check_name("kind", kind, (*KINDS, BIMANUAL))
    return tuple(name for name, spec in ALL_TASKS.items() if spec.kind == kind)


def get_task(name: str) -> TaskSpec:
    """The task called `name`, of either suite; UnknownNameError names the nearest."""
    if name not in ALL_TASKS:
        raise unknown_name("task", name, ALL_TASKS)
    return ALL_TASKS[name]
