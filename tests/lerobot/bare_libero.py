"""Runs in LIBERO's own interpreter, without worldrl: what hf-libero's environment gives after a few actions.

usage: python bare_libero.py GIVEN.npz FOUND.npz

``GIVEN``: ``task`` of ``libero_goal``, ``state`` to begin at, ``actions``, ``size`` of the images, ``assets``. ``FOUND``: the
observation of robosuite before the first action and after the last, as it comes, one of each in a row.
"""

import sys
from pathlib import Path

import libero.libero
import numpy as np

SETTLE = [[0, 0, 0, 0, 0, 0, -1]] * 10  # as published evaluations do
OBSERVED = (
    "agentview_image",
    "robot0_eye_in_hand_image",
    "robot0_eef_pos",
    "robot0_eef_quat",
    "robot0_gripper_qpos",
)


def play(env, actions):
    for action in actions:
        obs = env.step(np.asarray(action, np.float64))[0]
    return obs


def main(given_file, found):
    given = np.load(given_file)
    libero.libero._assets_path_cache = str(given["assets"])
    from libero.libero.envs import OffScreenRenderEnv

    file = Path(libero.libero.__file__).parent / "bddl_files" / "libero_goal" / f"{given['task']}.bddl"
    size = int(given["size"])
    env = OffScreenRenderEnv(bddl_file_name=str(file), camera_heights=size, camera_widths=size)
    env.seed(0)
    env.reset()
    env.set_init_state(given["state"])
    seen = [play(env, SETTLE), play(env, given["actions"])]
    np.savez(found, **{name: np.stack([obs[name] for obs in seen]) for name in OBSERVED})


if __name__ == "__main__":
    main(*sys.argv[1:])
