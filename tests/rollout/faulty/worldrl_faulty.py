"""The real tabletop environment, with one planned accident: what a worker must survive.

The plan is JSON in the environment variable WORLDRL_TEST_FAULT:
``{"index": 3 or null, "at": 2, "kind": "kill" | "exit" | "hang" | "raise" | "slow", "marker": path or null, "times": 1}``.
Without an index every episode meets it. With a marker it happens so many times to each: a file counts them.
"""

import json
import os
import signal
import time
from pathlib import Path

import gymnasium

from worldrl_envs.tabletop import TabletopEnv

TASK = "PickRedCube"


class FaultyEnv(TabletopEnv):
    def reset(self, *, seed=None, options=None):
        self.index, self.count = (options or {}).get("index"), 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.count += 1
        plan = json.loads(os.environ["WORLDRL_TEST_FAULT"])
        if plan["index"] in (None, self.index) and plan["at"] == self.count:
            self.accident(plan)
        return super().step(action)

    def accident(self, plan):
        if plan["marker"]:
            with Path(f"{plan['marker']}-{self.index}").open("ab") as counted:
                if counted.tell() >= plan["times"]:
                    return
                counted.write(b"x")
        if plan["kind"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif plan["kind"] == "exit":
            os._exit(7)
        elif plan["kind"] == "hang":
            time.sleep(3600)
        elif plan["kind"] == "slow":
            time.sleep(3)
        else:
            raise RuntimeError("the arm fell off")


gymnasium.register(id=f"faulty/{TASK}-v0", entry_point=FaultyEnv, max_episode_steps=64, kwargs={"task": TASK})
