"""Paraphrases of each task's instruction: some for training, at least two held out, in other words or order."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Phrases:
    """Paraphrases of one instruction, for training and held out for testing."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]


_PICK_TRAIN = (
    "lift the {}",
    "grab the {}",
    "take the {}",
    "grasp the {} and lift it",
    "raise the {} off the table",
    "pick the {} up",
    "please lift the {} up",
)
_PICK_HELD_OUT = ("hoist the {} into the air", "could you get hold of the {}", "the {} should leave the tabletop")
_IN_TRAIN = (
    "place the cube in the {}",
    "drop the cube into the {}",
    "move the cube into the {}",
    "pick up the cube and put it in the {}",
    "the cube goes in the {}",
    "please put the cube inside the {}",
)


def _pick(label: str) -> Phrases:
    return Phrases(*(tuple(p.format(label) for p in part) for part in (_PICK_TRAIN, _PICK_HELD_OUT)))


PARAPHRASES = {
    "PickRedCube": _pick("red cube"),
    "PickGreenCylinder": _pick("green cylinder"),
    "PickYellowBrick": _pick("yellow brick"),
    "PickLeftCube": _pick("left cube"),
    "PickRightCube": _pick("right cube"),
    "PickCubeNearPlate": _pick("cube near the plate"),
    "PlaceCubeInBin": Phrases(
        tuple(p.format("bin") for p in _IN_TRAIN),
        ("tidy the cube away into the box", "let the container hold the cube"),
    ),
    "OpenDrawer": Phrases(
        (
            "pull the drawer open",
            "pull out the drawer",
            "open up the drawer",
            "slide the drawer out",
            "please open the drawer",
            "pull the drawer by its knob",
        ),
        ("get the drawer to stand open", "draw out the cabinet's compartment"),
    ),
    "CloseDrawer": Phrases(
        (
            "push the drawer shut",
            "shut the drawer",
            "push the drawer in",
            "slide the drawer back in",
            "please close the drawer",
            "push the drawer closed",
        ),
        ("make sure the drawer is no longer open", "return the cabinet's compartment to its place"),
    ),
    "PushCubeToTarget": Phrases(
        (
            "push the cube to the target",
            "slide the cube onto the target",
            "move the cube onto the target",
            "push the cube to the marked square",
            "slide the cube over the table to the target",
            "please push the cube onto the square",
        ),
        ("nudge the cube until it covers the mark", "get the block to the teal patch"),
    ),
    "PlaceRedThenBlueInBin": Phrases(
        (
            "first put the red cube in the bin, then the blue cube",
            "place the red cube and then the blue cube in the bin",
            "drop the red cube into the bin, then drop the blue cube into the bin",
            "put both cubes in the bin, the red one first",
            "move the red cube into the bin and after that the blue cube",
            "bin the red cube, then bin the blue cube",
        ),
        ("fill the bin with the red cube before the blue one", "blue follows red into the container"),
    ),
    "PlaceCubeInDrawer": Phrases(
        (
            "open the drawer and place the cube in it",
            "pull the drawer open, then drop the cube inside",
            "open the drawer and put the cube in",
            "first open the drawer, then move the cube into it",
            "slide the drawer out and put the cube inside",
            "please open the drawer and drop the cube into it",
        ),
        ("store the cube in the drawer, which is still shut", "stow the cube inside the cabinet's compartment"),
    ),
}
