"""A tiny suite with the interface of ``worldrl.workers.link.server``: a point in the plane that must reach a mark.

It runs in real worker processes. ``fault`` (JSON) plans an accident:
``{"task", "init_id", "at": step, "kind": "kill" | "hang" | "raise" | "exit", "marker": path or null, "share": p}``;
with a marker it happens once. ``share`` kills at any step with that probability, drawn anew in each process.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from worldrl.workers.link.server import Refusal

TASKS = {"reach_right": (0.5, 0.0), "reach_up": (0.0, 0.5)}
REACHED = 0.05


class Fake:
    def __init__(
        self,
        *,
        image_size=0,
        fault=None,
        drift=0.0,
        suite="fake",
        boom="",
        wrist=False,
        lazy=False,
        undone="",
        unsettled="",
        refused="",
        pause_s=0.0,
    ):
        self.pause_s = pause_s  # of each step
        self.unsettled = unsettled
        if refused:
            raise Refusal(refused)
        if boom:
            raise RuntimeError(boom)
        self.image_size, self.fault, self.suite, self.wrist = image_size, fault or {}, suite, wrist
        self.undone = undone  # a task that is fulfilled for one step only
        self.lazy = lazy  # the expert stands still, so every episode fails
        self.drift = drift * os.getpid()  # a simulator that is not deterministic
        self.draws = np.random.default_rng(os.getpid())

    def describe(self):
        tasks = [{"name": name, "instruction": name.replace("_", " ")} for name in TASKS]
        return {
            "suite": self.suite,
            "tasks": tasks,
            "stored_states": 50,
            "control_hz": 20.0,
            "packages": {"mujoco": "3.3.7"},
            "assets": "0123",
            "sources": {"bddl": "b0", "robosuite": "r0", "libero": "l0"},
            "pid": os.getpid(),
        }

    def make(self, task):
        return Point(self, task)

    def probe(self):
        if self.unsettled:
            raise RuntimeError(self.unsettled)
        return {"distance_mm": 0.0, "frame": "00ff"}


class Point:
    def __init__(self, suite, task):
        self.suite, self.task, self.mark = suite, task, np.array(TASKS[task])

    def reset(self, init_id, seed, *, render):
        sys.stdout.write("a simulator prints what it likes\n")
        sys.stdout.flush()
        self.init_id, self.steps, self.asked, self.gripper = init_id, 0, 0, -1
        self.reached = 0
        self.place = np.random.default_rng([init_id, seed]).uniform(-0.5, 0.0, 2)
        return self.row(render)

    def reset_to(self, state, *, render):
        self.reset(0, 0, render=False)
        self.place = state[1:3].copy()  # after the time, as a simulator's flattened state has it
        return self.row(render)

    def step(self, action, *, render):
        self.steps += 1
        time.sleep(self.suite.pause_s)
        self.accident()
        self.gripper = action[6]
        self.place = self.place + 0.05 * action[:2].astype(float) + self.suite.drift
        return self.row(render)

    def expert(self):
        self.asked += 1  # remembers the episode: without the replay of questions its gripper would differ
        motion = (not self.suite.lazy) * np.clip(10 * (self.mark - self.place), -1, 1)
        return np.array([*motion, 0, 0, 0, 0, (self.asked % 7) / 7], np.float32)

    def succeeds(self):
        here = bool(np.linalg.norm(self.place - self.mark) < REACHED)
        self.reached += here
        return here and (self.reached == 1 or self.task != self.suite.undone)

    def row(self, render):
        row = {
            "state": np.array([*self.place, 0, 0, 0, 0, 0, 0], np.float32),
            "command": np.array([*self.place, 0, 0, 0, 0, self.gripper], np.float32),
            "success": np.array(self.succeeds()),
            "contact": np.array(False),
        }
        if render and self.suite.image_size:
            size = self.suite.image_size
            row["image"] = np.full((size, size, 3), int(255 * abs(np.sin(self.place.sum()))), np.uint8)
            if self.suite.wrist:
                row["wrist_image"] = row["image"]
        return row

    def accident(self):
        plan = self.suite.fault
        if self.suite.draws.random() < plan.get("share", 0.0):
            os.kill(os.getpid(), signal.SIGKILL)
        if (plan.get("task"), plan.get("init_id"), plan.get("at")) != (self.task, self.init_id, self.steps):
            return
        if plan.get("marker"):
            if Path(plan["marker"]).exists():
                return
            Path(plan["marker"]).touch()
        if plan["kind"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif plan["kind"] == "exit":
            os._exit(7)
        elif plan["kind"] == "hang":
            time.sleep(3600)
        raise RuntimeError("the arm fell off")

    def close(self):
        pass
