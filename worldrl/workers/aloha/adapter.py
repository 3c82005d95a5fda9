"""ALOHA's two arms as an adapter: Zhao et al. 2023 (arXiv:2304.13705), the package gym-aloha.

Actions are absolute joint targets. The expert follows the authors' waypoints by inverse kinematics (damped least squares).
"""

from importlib import import_module

import numpy as np

JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
# Rows: step, place of the tool (m), gripper, quaternion. Those of CUBE are from the cube.
START, DOWN = ([0, -0.182, 0.5, 0.308, 0, 1, 0, 0, 0], [0, 0.182, 0.5, 0.308, 0, 0, 0, 0, 1]), (0, -0.5, 0, 0.866)
CUBE = [[s, 0, 0, z, grip, *DOWN] for s, z, grip in ((90, 0.08, 1), (130, -0.015, 1), (170, -0.015, 0))]
MEET = [[s, x, 0.5, 0.25, grip, *DOWN] for s, x, grip in ((200, 0.05, 0), (220, 0, 0), (310, 0, 1), (360, 0.1, 1))]
LEFT = [[s, x, 0.5, 0.23, grip, 1, 1, 0, 0] for s, x, grip in ((100, -0.1, 1), (260, 0.02, 1), (310, 0.02, 0))]


class Aloha:
    """One environment; the package draws from a seed of index and seed."""

    low, high = [-3.14, -1.85, -1.76, -3.14, -1.86, -3.14, 0] * 2, [3.14, 1.25, 1.6, 3.14, 2.23, 3.14, 1] * 2
    names = [*(f"left_{name}" for name in JOINTS), *(f"right_{name}" for name in JOINTS)]
    robot = {"kind": "joints", "names": names, "low": low, "high": high, "max_speed": [10.0] * 14, "control_hz": 50}
    tasks = {"transfer-cube": "pass the red cube from the right arm to the left arm"}
    horizon = 400
    cameras = ("scene", "angle")
    packages = ("gym-aloha", "dm-control", "mujoco")

    def __init__(self, task, cameras, image_size):
        self.aloha, self.mujoco = import_module("gym_aloha.env"), import_module("mujoco")
        self.env = self.aloha.AlohaEnv("transfer_cube")._env
        self.env.task.get_observation = self.env.task.get_qpos  # instead of three large images
        self.physics, self.cameras, self.side = self.env.physics, cameras, image_size
        self.physics.model.vis.quality.shadowsize = self.physics.model.vis.quality.offsamples = 0  # 10 times faster

    def reset(self, index, seed):
        cube = self.aloha.sample_box_pose(int(np.random.SeedSequence([index, seed]).generate_state(1)[0]))
        self.aloha.BOX_POSE[0], self.reward, self.taken = cube, 0, 0
        self.env.reset()
        self.aim = self.physics.copy().data.ptr
        self.ways = [START[0], *LEFT], [START[1], *np.add(CUBE, [0, *cube[:3], 0, 0, 0, 0, 0]), *MEET]

    def step(self, action):
        self.reward, self.taken = self.env.step(np.asarray(action, np.float64)).reward, self.taken + 1

    def state(self):
        return self.env.task.get_qpos(self.physics)

    def success(self):
        return self.reward == 4

    def images(self):
        return {name: self.physics.render(self.side, self.side, name.replace("scene", "top")) for name in self.cameras}

    def expert(self):
        return np.clip([*self.follow("left", 0), *self.follow("right", 8)], self.low, self.high)

    def follow(self, side, first):
        steps, *columns = np.transpose(self.ways[first > 0])
        place, grip, turn = np.split([np.interp(self.taken + 1, steps, column) for column in columns], [3, 4])
        hand, joints = self.aim.body(f"vx300s_{side}/gripper_link"), slice(first, first + 6)
        moved, turned, model = np.zeros((6, len(self.aim.qvel))), np.zeros(3), self.physics.model.ptr
        for _ in range(10):
            self.mujoco.mj_fwdPosition(model, self.aim)
            tool = hand.xpos + 0.135 * hand.xmat[::3]
            self.mujoco.mj_jac(model, self.aim, moved[:3], moved[3:], tool, hand.id)
            self.mujoco.mju_subQuat(turned, turn / np.linalg.norm(turn), hand.xquat)
            error, part = np.append(place - tool, hand.xmat.reshape(3, 3) @ turned), moved[:, joints]
            self.aim.qpos[joints] += part.T @ np.linalg.solve(part @ part.T + 1e-4 * np.eye(6), error)
        return np.append(self.aim.qpos[joints], grip)
