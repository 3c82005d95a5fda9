"""Meta-World's MT10 as an adapter: Yu et al. 2019 (arXiv:1910.10897), the package metaworld 3.1.1.

An action's numbers 0-2 move the hand (1 is 0.01 m at 80 Hz), number 6 is the gripper; the hand keeps its rotation.
"""

import hashlib
import importlib

import numpy as np


class MetaWorldMt10:
    """One environment of one task; Meta-World draws from a seed of task, index and seed."""

    name = "metaworld_mt10"
    workspace = {"workspace_low": [-0.5, 0.4, 0.05], "workspace_high": [0.5, 1.0, 0.5]}
    scales = {"position_scale": 0.01, "rotation_scale": 0.01, "max_rotation": 0.1}
    robot = {**scales, **workspace, "control_hz": 80.0}
    tasks = {
        "reach-v3": "reach the target",
        "push-v3": "push the puck to the target",
        "pick-place-v3": "pick up the puck and place it at the target",
        "door-open-v3": "open the door",
        "drawer-open-v3": "open the drawer",
        "drawer-close-v3": "close the drawer",
        "button-press-topdown-v3": "press the button from above",
        "peg-insert-side-v3": "insert the peg into the hole from the side",
        "window-open-v3": "open the window",
        "window-close-v3": "close the window",
    }
    horizon = 500
    packages = ("metaworld", "mujoco")

    def __init__(self, task, cameras, image_size):
        kind = importlib.import_module("metaworld.env_dict").ALL_V3_ENVIRONMENTS[task]
        drawn = {"render_mode": "rgb_array", "camera_name": "corner2", "width": image_size, "height": image_size}
        self.env = kind(**drawn)
        self.env.model.cam("corner2").pos[:] = 0.75, 0.075, 0.7  # nearer, as lerobot's environment has it
        self.env.model.vis.quality.shadowsize = self.env.model.vis.quality.offsamples = 0  # a CPU draws 10 times faster
        self.env._partially_observable = False  # the expert sees the goal, and the cached bounds hide it
        self.env.__dict__.pop("sawyer_observation_space", None)
        self.env._set_task_called, self.env._freeze_rand_vec, self.env.seeded_rand_vec = True, False, True
        self.task, self.policy = task, importlib.import_module("metaworld.policies").ENV_POLICY_MAP[task]

    def reset(self, index, seed):
        self.env.seed(int(hashlib.sha256(f"{self.task}/{index}/{seed}".encode()).hexdigest()[:7], 16))
        self.obs, _ = self.env.reset()
        self.expert_policy, self.solved, self.gripper = self.policy(), False, -1.0

    def step(self, action):
        self.gripper = float(action[6])
        self.obs, _, _, _, info = self.env.step(np.append(action[:3], action[6]))
        self.solved = bool(info["success"])

    def state(self):
        finger = 0.05 * self.obs[3]  # the normalised opening is 1 at 0.1 m
        return [*self.obs[:3], 0.0, 0.0, 0.0, finger, -finger]

    def command(self):
        return [*self.env.data.mocap_pos[0], 0.0, 0.0, 0.0, self.gripper]

    def success(self):
        return self.solved

    def images(self):
        return {"scene": np.flip(self.env.render(), (0, 1))}  # this camera hangs upside down

    def expert(self):
        x, y, z, gripper = np.clip(self.expert_policy.get_action(self.obs), -1, 1)
        return [x, y, z, 0.0, 0.0, 0.0, gripper]
