"""A folder with the interface of a RoboTwin 2.0 checkout, as read at commit cf47ab5697c81c39f78522ba24102f789b6bce5e.

Recorded there, in ``scripts/eval_policy_xpolicylab.py``, ``envs/_base_task.py`` and ``env_cfg``: files and their keys,
``envs.<task>.<task>()`` with ``setup_demo(now_ep_num, seed, is_test, **args)``, ``play_once`` -> ``{"info": ...}``,
``plan_success``, ``check_success``, ``take_action(vector, action_type)``, ``eval_success``, ``get_obs``, ``set_instruction``,
``close_env``, ``robot.get_left_arm_jointState`` (six joints and the gripper, a list), ``UnStableError``, paths relative to the
checkout, and instructions filled from Python's unseeded generator. The physics is made up: both arms jump to their targets,
and the task is solved when the left gripper is closed.
"""

from pathlib import Path

TASK = """
import numpy as np
from envs.utils.create_actor import UnStableError

class Robot:
    def __init__(self, joints): self.joints = joints
    def get_left_arm_jointState(self): return list(self.joints[:7])
    def get_right_arm_jointState(self): return list(self.joints[7:])

class close_gripper:
    def setup_demo(self, **args):
        assert args["is_test"] and args["eval_mode"] and args["render_freq"] == 0
        assert args["data_type"]["rgb"] and args["data_type"]["qpos"] and args["dual_arm_embodied"]
        assert (args["head_camera_h"], args["head_camera_w"]) == (240, 320)
        assert args["left_embodiment_config"] == {"arm_joints_name": [["a"] * 6, ["b"] * 6]}
        assert not getattr(self, "open", False), "a scene is set up over an open one"
        self.open, self.seed = True, args["seed"]
        if self.seed % 5 == 1:
            raise UnStableError("objects are unstable")
        if self.seed % 5 == 2:
            raise ValueError("a planner failed")
        if BROKEN:
            raise FileNotFoundError("assets/objects/001_bottle")
        self.cluttered = args["domain_randomization"]["cluttered_table"]
        joints = np.random.default_rng(self.seed).uniform(-1, 1, 14)
        joints[[6, 13]] = 1.0
        self.robot, self.eval_success, self.plan_success = Robot(joints), False, True
        self.take_action_cnt, self.step_lim, self.played = 0, 7, False
    def play_once(self):
        self.played = self.seed % 5 != 3
        return {"info": {"{A}": "001_bottle/base0", "{a}": "left"}}
    def check_success(self): return self.played or self.robot.joints[6] < 0.1
    def set_instruction(self, instruction=None): self.instruction = instruction
    def take_action(self, action, action_type="qpos"):
        assert action_type == "qpos" and action.shape == (14,)
        self.take_action_cnt += 1
        self.robot.joints = np.array(action)
        self.eval_success = self.check_success()
    def get_obs(self):
        level = {"head_camera": 10, "left_camera": 20, "right_camera": 30}
        picture = lambda value: np.full((240, 320, 3), value, np.uint8)
        return {"observation": {name: {"rgb": picture(v)} for name, v in level.items()},
                "joint_action": {"vector": np.array(self.robot.joints)}}
    def close_env(self, clear_cache=False): self.open = False
"""
SENTENCES = """
import random
def generate_episode_descriptions(task_name, episodes, max_descriptions=1000000):
    assert episodes == [{"{A}": "001_bottle/base0", "{a}": "left"}]
    told = [f"{verb} the {thing}" for verb in ("grip", "hold", "take") for thing in ("bottle", "flask", "jar")]
    random.shuffle(told)
    return [{"seen": told, "unseen": [text + " please" for text in told]}]
"""
CONFIG = """
embodiment: [aloha-agilex]
eval_instruction: {kind}
camera: {{head_camera_type: D435, wrist_camera_type: D435}}
data_type: {{rgb: true, depth: false}}
domain_randomization: {{cluttered_table: {clutter}}}
"""


def make_checkout(folder: Path, *, broken: bool = False) -> Path:
    """Write the files."""
    files = {
        "envs/__init__.py": "",
        "envs/_base_task.py": "",
        "envs/utils/__init__.py": "",
        "envs/utils/create_actor.py": "class UnStableError(Exception):\n    pass\n",
        "envs/close_gripper.py": f"BROKEN = {broken}\n{TASK}",
        "description/utils/generate_episode_instructions.py": SENTENCES,
        "env_cfg/task_config/_eval_step_limit.yml": "close_gripper: 7\n",
        "env_cfg/task_config/_embodiment_config.yml": "aloha-agilex:\n  file_path: ./assets/embodiments/aloha-agilex/\n",
        "env_cfg/task_config/_camera_config.yml": "D435: {fovy: 37, w: 320, h: 240}\n",
        "env_cfg/task_config/demo_clean.yml": CONFIG.format(kind="seen", clutter="false"),
        "env_cfg/task_config/demo_randomized.yml": CONFIG.format(kind="unseen", clutter="true"),
        "assets/embodiments/aloha-agilex/config.yml": "arm_joints_name: [[a, a, a, a, a, a], [b, b, b, b, b, b]]\n",
        "assets/objects/.keep": "",
        "assets/background_texture/.keep": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
