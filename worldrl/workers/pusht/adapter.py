"""PushT as an adapter: Florence et al. 2021 (arXiv:2109.00137), the package gym-pusht. It brings no scripted expert."""

from importlib import import_module

import numpy as np


class PushT:
    """Actions are where the round tool is to be, in pixels of a plane of 512 by 512; a spring pulls it there."""

    robot = dict(kind="joints", names=["x", "y"], low=[0, 0], high=[512, 512], max_speed=[5120, 5120], control_hz=10)
    tasks = {"push-t": "push the block onto the green T"}
    packages = ("gym-pusht", "pymunk")

    def __init__(self, task, cameras, image_size):
        kind = import_module("gym_pusht.envs.pusht").PushTEnv
        self.env = kind("state", "rgb_array", None, None, image_size, image_size)

    def reset(self, index, seed):
        self.info = self.env.reset(seed=int(np.random.SeedSequence([index, seed]).generate_state(1)[0]))[1]

    def step(self, action):
        self.info = self.env.step(action)[4]

    def state(self):
        return self.info["pos_agent"]

    def success(self):
        return self.info["is_success"]

    def contact(self):
        return self.info["n_contacts"] > 0

    def images(self):
        return {"scene": self.env._render()}
