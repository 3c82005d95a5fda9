"""Meta-World's MT10 at 20 Hz: each action is held for four of its steps, so that an episode has few images."""

import importlib

BASE = importlib.import_module("worldrl.workers.metaworld.adapter").MetaWorldMt10


class MetaWorldMt10At20Hz(BASE):
    """The same tasks with 40 actions to an episode (2 s); the experts need 11 to 23 in the median."""

    name = "metaworld_mt10_20hz"
    robot = {**BASE.robot, "position_scale": 0.04, "control_hz": 20.0}
    horizon = 40

    def step(self, action):
        solved = False
        for _ in range(4):
            super().step(action)
            solved = solved or self.solved
        self.solved = solved
