"""Paraphrases of the bimanual tasks' instructions; the held-out ones use words that no training phrase has."""

from worldrl_envs.language import Phrases

PARAPHRASES = {
    "BimanualHandoverBlock": Phrases(
        (
            "hand the block over from the left arm to the right arm",
            "give the block to the right arm",
            "pick up the block on the left and pass it to the right hand",
            "hand over the red block",
            "let the left arm pass the block to the right arm",
            "please hand the block to the right hand",
        ),
        ("transfer the bar between the grippers, left to right", "the right gripper should end up with the bar"),
    ),
    "BimanualLiftPot": Phrases(
        (
            "lift the pot with both hands",
            "pick up the pot by its two handles",
            "raise the pot with both arms",
            "take the pot by both handles and lift it",
            "lift the pot up together",
            "please lift the pot with two hands",
        ),
        ("hoist the saucepan evenly off the tabletop", "carry the saucepan upward without tilting it"),
    ),
    "BimanualPlaceCubeOnPlate": Phrases(
        (
            "put the cube on the plate using the closer arm",
            "place the cube on the plate with the arm that is nearer",
            "take the nearer arm and put the cube on the plate",
            "move the cube onto the plate",
            "the cube goes on the plate, use the arm on its side",
            "please put the cube on the plate",
        ),
        ("serve the block on the dish", "rest the block upon the dish with whichever hand is next to it"),
    ),
    "BimanualStackCubes": Phrases(
        (
            "place the red cube on the target, then the green cube on the red cube",
            "stack the green cube on the red cube in the middle",
            "build a stack on the target, red below and green above",
            "move the red cube to the target and stack the green one on it",
            "put the green cube on top of the red cube on the target",
            "please stack the two cubes on the square",
        ),
        ("make a tower with the red block as its base", "let the green block ride on the red one at the mark"),
    ),
    "BimanualOpenDrawer": Phrases(
        (
            "pull the drawer open with the nearer arm",
            "pull out the drawer",
            "open up the drawer",
            "slide the drawer out with the closer arm",
            "please open the drawer",
            "pull the drawer by its knob",
        ),
        ("get the cabinet's compartment to stand open", "draw the compartment toward the robot"),
    ),
    "BimanualPutCubeInDrawer": Phrases(
        (
            "pull the drawer open with the left arm, then drop the cube in with the right arm",
            "open the drawer and place the cube in it",
            "open the drawer with one arm and put the cube inside with the other",
            "first open the drawer, then move the cube into it",
            "slide the drawer out and put the cube inside",
            "please open the drawer and drop the cube into it",
        ),
        ("store the block in the cabinet, which is still shut", "stow the block inside the compartment"),
    ),
    "BimanualPutCubesInBin": Phrases(
        (
            "put the red and the blue cube in the bin",
            "place both cubes in the bin, each with its own arm",
            "drop both cubes into the bin",
            "move the two cubes into the bin",
            "put the cubes away in the bin with both arms",
            "please put both cubes in the bin",
        ),
        ("clear the table of blocks", "tidy the pair of blocks away into the container"),
    ),
}
