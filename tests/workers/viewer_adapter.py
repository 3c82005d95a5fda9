import importlib

import numpy as np

SCENE = """<mujoco><visual><quality shadowsize="0"/></visual>
<asset><texture name="t" type="2d" builtin="flat" rgb1="{colour}" width="8" height="8"/><material name="m" texture="t"/></asset>
<worldbody><light pos="0 0 3"/><geom type="plane" size="2 2 .1" material="m"/>
<body><joint type="slide" axis="1 0 0"/><geom size=".2" pos="0 0 .3" rgba="1 1 1 1"/></body>
<camera name="above" pos="0 0 2"/></worldbody></mujoco>"""


class Viewer:
    limits = {"low": [-1], "high": [1], "max_speed": [2]}
    robot = {"kind": "joints", "names": ["x"], **limits, "control_hz": 10}
    tasks = {"red": "move on red", "blue": "move on blue"}
    horizon = 20

    def __init__(self, task, cameras, image_size):
        mujoco = importlib.import_module("mujoco")
        renderer = importlib.import_module("gymnasium.envs.mujoco.mujoco_rendering").MujocoRenderer
        self.model = mujoco.MjModel.from_xml_string(SCENE.format(colour={"red": "1 0 0", "blue": "0 0 1"}[task]))
        self.data, self.forward = mujoco.MjData(self.model), mujoco.mj_forward
        self.renderer = renderer(self.model, self.data, width=image_size, height=image_size, camera_name="above")

    def reset(self, index, seed):
        self._place(np.random.default_rng([index, seed]).uniform(-0.3, 0.3))

    def step(self, action):
        self._place(np.clip(np.clip(action[0], -1, 1), self.data.qpos[0] - 0.2, self.data.qpos[0] + 0.2))

    def state(self):
        return self.data.qpos

    def success(self):
        return self.data.qpos[0] > 0.8

    def images(self):
        return {"scene": self.renderer.render("rgb_array")}

    def _place(self, x):
        self.data.qpos[0] = x
        self.forward(self.model, self.data)
