"""Runs in lerobot's own interpreter: lerobot's own rollout of worldrl's scripted expert, as `lerobot-eval` plays a policy.

usage: python play_expert.py TASK ENVIRONMENTS

Prints one line of JSON: per environment the steps up to its first `done`, its success there, and the sum of rewards.
"""

import json
import sys

import numpy as np
import torch
from make_policies import import_lerobot  # it lies beside this script


def main(task, rows):
    library, _ = import_lerobot()
    from lerobot.envs.factory import make_env, make_env_config
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.scripts.lerobot_eval import rollout
    from lerobot.utils.import_utils import register_third_party_plugins

    from worldrl_envs.experts import ScriptedExpert

    register_third_party_plugins()
    config = make_env_config("worldrl", task=task, image_size=32)
    vector = make_env(config, n_envs=int(rows), use_async_envs=False)[task][0]

    class Expert(torch.nn.Module):
        """Row 0 rests for ten steps, so that the rows end at different steps."""

        def reset(self):
            self.step = 0
            self.experts = [ScriptedExpert(task, generator=np.random.default_rng(row)) for row in range(int(rows))]

        def select_action(self, observation):
            assert observation["observation.images.scene"].shape == (int(rows), 3, 32, 32)
            assert observation["task"] == ["pick up the red cube"] * int(rows)
            envs = [env.unwrapped.inner for env in vector.envs]
            actions = [expert.act(env) for expert, env in zip(self.experts, envs, strict=True)]
            actions[0] = np.array([0, 0, 0, 0, 0, 0, -1], np.float32) if self.step < 10 else actions[0]
            self.step += 1
            return torch.from_numpy(np.stack(actions))

    nothing = PolicyProcessorPipeline(steps=[])
    identity = [nothing, nothing, lambda batch: batch, lambda action: action]
    found = rollout(vector, Expert(), *identity, seeds=list(range(int(rows))))
    first = found["done"].int().argmax(1).tolist()
    success = [bool(found["success"][row, step]) for row, step in enumerate(first)]
    vector.close()
    del library
    sys.stdout.write(json.dumps({"steps": first, "success": success, "reward": found["reward"].sum(1).tolist()}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
