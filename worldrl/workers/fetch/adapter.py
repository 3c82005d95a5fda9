"""Three Fetch tasks as an adapter: Plappert et al. 2018 (arXiv:1802.09464), the package gymnasium-robotics.

An action's numbers 0-2 move the gripper, number 6 closes it. 1 asks for 0.05 m from the measured place, which the arm
follows at once by 0.032 m (at 25 Hz); the gripper keeps its rotation. States that begin fulfilled are drawn again.
"""

import importlib

import numpy as np

TASKS = {"reach": "FetchReach", "push": "FetchPush", "pick-and-place": "FetchPickAndPlace"}


class Fetch:
    """One environment of one task; the package draws from a seed of index and seed."""

    workspace = {"workspace_low": [0.8, 0.2, 0.3], "workspace_high": [1.8, 1.3, 1.2]}
    robot = {"position_scale": 0.032, "rotation_scale": 0.01, "max_rotation": 0.1, **workspace, "control_hz": 25.0}
    tasks = {
        "reach": "move the gripper to the red mark",
        "push": "push the block to the red mark",
        "pick-and-place": "pick up the block and hold it at the red mark",
    }
    horizon = 50
    packages = ("gymnasium-robotics", "mujoco")

    def __init__(self, task, cameras, image_size):
        module = importlib.import_module(f"gymnasium_robotics.envs.fetch.{task.replace('-', '_')}")
        self.env, mujoco = getattr(module, f"Mujoco{TASKS[task]}Env")(), importlib.import_module("mujoco")
        self.env.model.vis.quality.shadowsize = self.env.model.vis.quality.offsamples = 0  # a CPU draws 10 times faster
        self.task, self.view = task, mujoco.MjvCamera()
        self.view.lookat[:], self.view.distance = (1.3, 0.75, 0.5), 1.0
        self.view.azimuth, self.view.elevation = 120, -40
        self.renderer = cameras and mujoco.Renderer(self.env.model, image_size, image_size)

    def reset(self, index, seed):
        self.obs, _ = self.env.reset(seed=int(np.random.SeedSequence([index, seed]).generate_state(1)[0]))
        while self.success():
            self.obs, _ = self.env.reset()
        self.env._render_callback()  # moves the red mark to the goal
        self.stage = 0

    def step(self, action):
        self.obs, *_ = self.env.step(np.append(action[:3], -action[6]))

    def state(self):
        right, left = self.env.data.qpos[13:15]
        return [*self.obs["observation"][:3], 0.0, 0.0, 0.0, left, -right]

    def success(self):
        return bool(self.env._is_success(self.obs["achieved_goal"], self.obs["desired_goal"]))

    def images(self):
        self.renderer.update_scene(self.env.data, camera=self.view)
        return {"scene": self.renderer.render()}

    def expert(self):
        hand, block, goal = self.obs["observation"][:3], self.obs["achieved_goal"], self.obs["desired_goal"]
        if self.task == "reach":
            place, closed = goal, 1.0
        elif self.task == "push":  # above the place behind the block, down, along
            way = (goal - block) / np.linalg.norm(goal - block)
            behind, closed = block - 0.07 * way, 1.0
            self.stage += [np.linalg.norm((hand - behind)[:2]) < 0.02, hand[2] < 0.44, False][self.stage]
            place = [behind + np.array([0, 0, 0.1]), behind, block + 0.05 * way][self.stage]
        else:  # above the block, down, close, to the goal
            held, above = np.linalg.norm(hand - block) < 0.02, np.linalg.norm((hand - block)[:2]) < 0.02
            self.stage, closed = self.stage + held, 1.0 if held else -1.0
            place = (goal if self.stage > 3 and held else block) + [0, 0, 0.0 if above else 0.08]
        return [*np.clip((place - hand) / 0.05, -1, 1), 0.0, 0.0, 0.0, closed]
