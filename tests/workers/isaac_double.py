"""Modules with the interface of Isaac Lab, as read in the sources of the wheel isaaclab 2.3.2.

Recorded there: ``isaaclab.app.AppLauncher(headless, enable_cameras, device).app`` before any other import; tasks registered with
Gymnasium by importing ``isaaclab_tasks``; ``isaaclab_tasks.utils.parse_env_cfg(id, device, num_envs)``; configuration groups
``terminations``, ``observations.policy``, ``commands``, ``scene``; ``ManagerBasedRLEnv`` with ``reset(seed, env_ids)``, ``step`` on
batched tensors that resets by itself what a termination term ends, ``observation_manager.compute()``, ``action_manager
.total_action_dim``, ``command_manager.get_command(name)`` (in the robot's frame), ``scene[name]`` with ``data.body_pos_w``,
``body_quat_w`` (w first), ``root_pos_w``, ``root_quat_w``, ``joint_pos``, ``find_bodies``, ``find_joints``, and tensors that are
written again. The physics is made up: a hand obeys its deltas, a cube hangs on the closed hand.
"""

import sys
import types
from types import SimpleNamespace

from worldrl.workers.isaac.worker import Isaac

STARTED = []


class AppLauncher:
    def __init__(self, *, headless, enable_cameras, device):
        assert headless
        assert "isaaclab_tasks" not in sys.modules, "the launcher must come first"
        STARTED.append((enable_cameras, device))
        self.app = SimpleNamespace(close=lambda: None)


def parse_env_cfg(task, device, num_envs):
    assert STARTED, "nothing may be imported before the launcher has run"
    visual = "Visuomotor" in task
    ends = {"time_out": SimpleNamespace(func=None, params={}), "object_dropping": SimpleNamespace(func=None, params={})}
    if visual:
        ends["success"] = SimpleNamespace(func=lambda env, height: env.cube[:, 2] > height, params={"height": 0.3})
    goals = [name for kind, name in (("Reach", "ee_pose"), ("Lift", "object_pose")) if kind in task]

    def camera():
        return SimpleNamespace(height=84, width=84)

    return SimpleNamespace(
        task=task,
        episode_length_s=5.0,
        terminations=SimpleNamespace(**ends),
        observations=SimpleNamespace(policy=SimpleNamespace(enable_corruption=True)),
        commands=SimpleNamespace(**{name: SimpleNamespace(resampling_time_range=(4.0, 4.0)) for name in goals}),
        scene=SimpleNamespace(num_envs=num_envs, **({"table_cam": camera(), "wrist_cam": camera()} if visual else {})),
    )


class Env:
    """All environments in one object; environment ``i`` stands at (3 i, 0, 0) and its robot's base is turned by 90 degrees."""

    def __init__(self, cfg):
        import torch

        assert all(term is None for term in vars(cfg.terminations).values()), "it would reset itself within a step"
        assert cfg.episode_length_s > 1e6
        assert not cfg.observations.policy.enable_corruption
        assert all(term.resampling_time_range[0] > 1e6 for term in vars(cfg.commands).values())
        self.torch, self.cfg, self.n, self.device = torch, cfg, cfg.scene.num_envs, "cpu"
        origins = torch.zeros(self.n, 3)
        origins[:, 0] = 3 * torch.arange(self.n)
        self.hand, self.cube = torch.zeros(self.n, 3), torch.zeros(self.n, 3)
        self.goal, self.fingers = torch.zeros(self.n, 7), torch.full((self.n, 9), 0.04)
        self.origins = origins
        self.action_manager = SimpleNamespace(total_action_dim=6 if "Reach" in cfg.task else 7)
        self.observation_manager = SimpleNamespace(compute=self.compute)
        self.command_manager = SimpleNamespace(get_command=lambda name: self.goal)
        down = torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat(self.n, 1)  # w first: half a turn about x
        turned = torch.tensor([0.5**0.5, 0.0, 0.0, 0.5**0.5]).repeat(self.n, 1)
        robot = SimpleNamespace(find_bodies=lambda name: ([0], [name]), data=SimpleNamespace())
        robot.data.body_quat_w, robot.data.root_pos_w, robot.data.root_quat_w = down[:, None], origins, turned
        robot.data.joint_pos = self.fingers
        self.robot = robot
        self.drawer = torch.zeros(self.n, 4)
        cabinet = SimpleNamespace(find_joints=lambda name: ([3], [name]), data=SimpleNamespace(joint_pos=self.drawer))
        parts = {"robot": robot, "object": SimpleNamespace(data=SimpleNamespace()), "cabinet": cabinet}
        self.scene = type("Scene", (dict,), {"env_origins": origins})(parts)
        self.publish()

    def publish(self):
        self.robot.data.body_pos_w = (self.hand + self.origins)[:, None]
        self.scene["object"].data.root_pos_w = self.cube + self.origins

    def reset(self, seed=None, env_ids=None, options=None):
        self.torch.manual_seed(seed)
        ids = self.torch.arange(self.n) if env_ids is None else env_ids
        self.hand[ids] = self.torch.tensor([0.4, 0.0, 0.3])
        self.cube[ids] = 0.1 * self.torch.rand(len(ids), 3)
        self.goal[ids, :3] = 0.2 + 0.1 * self.torch.rand(len(ids), 3)
        self.drawer[ids] = 0.0
        self.publish()
        return {"policy": self.compute()["policy"]}, {}

    def step(self, action):
        assert action.shape == (self.n, self.action_manager.total_action_dim)
        motion = 0.5 * action[:, :3]
        self.hand += motion
        self.drawer[:, 3] += motion[:, 0].abs()
        if action.shape[1] == 7:  # positive opens
            self.fingers[:, -2:] = self.torch.where(action[:, 6:] > 0, 0.04, 0.01)
            self.cube += motion * (action[:, 6:] < 0)
        self.publish()
        return self.compute(), None, None, None, {}

    def compute(self):
        numbers = self.torch.cat([self.hand, self.cube], dim=1)
        if "Visuomotor" not in self.cfg.task:
            return {"policy": numbers}
        size = self.cfg.scene.table_cam.height
        picture = (255 * self.hand[:, 2]).to(self.torch.uint8)[:, None, None, None].repeat(1, size, size, 3)
        return {"policy": {"eef_pos": self.hand, "cubes": self.cube, "table_cam": picture, "wrist_cam": picture + 1}}

    def close(self):
        pass


def install():
    """Put the double where Isaac Lab would be."""
    package, app, tasks, utils = (types.ModuleType(name) for name in ("isaaclab", "app", "isaaclab_tasks", "utils"))
    app.AppLauncher, utils.parse_env_cfg = AppLauncher, parse_env_cfg
    sys.modules.update({"isaaclab": package, "isaaclab.app": app, "isaaclab_tasks.utils": utils})

    class Finder:
        """Registers the tasks when they are first imported, as the real package does."""

        def find_spec(self, name, path=None, target=None):
            if name != "isaaclab_tasks":
                return None
            import importlib.machinery

            return importlib.machinery.ModuleSpec(name, self, is_package=True)

        def create_module(self, spec):
            return tasks

        def exec_module(self, module):
            import gymnasium

            for kind in ("Lift-Cube-Franka-IK-Rel", "Reach-Franka-IK-Rel", "Open-Drawer-Franka-IK-Rel"):
                gymnasium.register(f"Isaac-{kind}-v0", entry_point=make, disable_env_checker=True)
            name = "Isaac-Stack-Cube-Franka-IK-Rel-Visuomotor-v0"
            gymnasium.register(name, entry_point=make, disable_env_checker=True)

    sys.meta_path.insert(0, Finder())


def make(cfg, **_):
    import gymnasium

    return type("ManagerBasedRLEnv", (Env, gymnasium.Env), {})(cfg)


class Double(Isaac):
    """The worker's suite with the double in Isaac Lab's place."""

    def __init__(self, **options):
        install()
        super().__init__(device="cpu", **{name: value for name, value in options.items() if name != "device"})
