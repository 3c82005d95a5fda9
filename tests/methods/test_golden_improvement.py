"""Tiny improvements end at recorded weights: what is moved in the code moves no number."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.storage.log import MetricLog, TrackerName
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.methods.rl.config import FilteredCloning, GrpoConfig
from worldrl.methods.rl.imagination import imagined_env
from worldrl.methods.rl.improve import Improvement, improve
from worldrl.methods.rl.trust import FilterResult
from worldrl.policies.exploration import ExplorationSettings
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore

GRPO = GrpoConfig(iterations=3, checkpoint_every=2, groups=4, group_size=8, learning_rate=1e-2, minibatch=16, epochs=2)
CLONING = BehaviourCloning(steps=8, batch_size=16, warmup_steps=2, learning_rate=1e-2, checkpoint_every=4)
SELF = FilteredCloning(cycles=2, rollouts=64, rows=32, cloning=CLONING)


JUDGES = {
    "masked": lambda r: FilterResult(r, trust=(torch.arange(len(r.success)) % 3 > 0).float()),
    "term": lambda r: FilterResult(r, agreement=-(torch.arange(len(r.success)) % 5).float()),
}
CASES = {
    "grpo": Improvement("grpo", grpo=GRPO),
    "grpo_kl": Improvement("grpo", grpo=replace(GRPO, kl=0.1, keep_low=0, keep_high=1, length_normalise=False)),
    "grpo_masked": Improvement("grpo", grpo=replace(GRPO, keep_low=0, keep_high=1)),
    "grpo_term": Improvement("grpo", grpo=replace(GRPO, keep_low=0, keep_high=1)),
    "self_training": Improvement(self_training=SELF, exploration=ExplorationSettings(noise_correlation=0.3)),
    "self_training_groups": Improvement(self_training=replace(SELF, group_size=4), p_keyframe=0.5),
    "self_training_masked": Improvement(self_training=replace(SELF, group_size=4)),
}


@pytest.mark.parametrize("case", CASES)
def test_an_improvement_ends_where_it_did(
    case, scripted_world, make_record, tiny_policy, no_demonstrations, tmp_path, golden, fingerprint
):
    keyframes = [make_record(grey, step=2) for grey in (60, 160)]
    store = ResetStore([make_record(grey) for grey in (20, 120, 220)], keyframes)
    env = imagined_env(scripted_world, store, SuccessRule(0.4, 2), rows=32, horizon={"PickRedCube": 12})
    made = JUDGES.get(case.rpartition("_")[2])
    judge = made and SimpleNamespace(
        term_weight=0.2 * case.endswith("term"), judge=lambda env, rollouts, seed: made(rollouts)
    )
    policy = tiny_policy(waypoint=False)  # the numbers are of the older policy, which still learns as it did
    with MetricLog(tmp_path, tracker=TrackerName.none) as log:
        history = improve(
            policy,
            env,
            CASES[case],
            demonstrations=no_demonstrations,
            paraphrases={},
            seed=3,
            folder=tmp_path / "checkpoints",
            log=log,
            judge=judge,
        )
    golden(case, {"history": history, "weights": fingerprint(policy)})
