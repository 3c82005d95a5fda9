"""Tiny alignments end at recorded weights and print the recorded numbers: what is moved in the code moves no number."""

from dataclasses import replace

import pytest
import torch

from worldrl.diffusion.sde import Denoising, RatioRule
from worldrl.methods.alignment.align import MethodConfigs, align
from worldrl.methods.alignment.branch_grpo import BranchGrpoConfig
from worldrl.methods.alignment.dance_grpo import DanceGrpoConfig
from worldrl.methods.alignment.diffusion_nft import DiffusionNftConfig
from worldrl.methods.alignment.flow_grpo import FlowGrpoConfig
from worldrl.methods.alignment.sol_rl import SolRlConfig
from worldrl.methods.alignment.step_aware_preference import StepAwarePreferenceConfig
from worldrl.recipes.rl_parts import make_method
from worldrl.rewards.mixing import mix

SDE, RULE = Denoising(steps=3, noise="constant", eta=0.6), RatioRule("mean", 1e-2)
NFT = DiffusionNftConfig(Denoising(steps=3, noise="none"))
BRANCH = BranchGrpoConfig(SDE, RULE, splits=[0, 1])
POOL = SolRlConfig(8, 1, "float32", nft=NFT)
CASES = {
    "flow_grpo": FlowGrpoConfig(SDE, RULE),
    "flow_grpo global": FlowGrpoConfig(SDE, RULE, kl=0.0, global_std=True),
    "flow_grpo gdpo": FlowGrpoConfig(SDE, RULE, kl=0.0),
    "dance_grpo": DanceGrpoConfig(SDE, RULE),
    "branch_grpo": BRANCH,
    "branch_grpo best": replace(BRANCH, fusion=1.0, prune_width="parent_best"),
    "branch_grpo extremes": replace(BRANCH, prune_width="extremes", prune_depth=1, prune_interval=1),
    "branch_grpo gdpo": BRANCH,
    "diffusion_nft": NFT,
    "diffusion_nft late": replace(NFT, old_decay="late", kl=0.0, levels=1),
    "sol_rl": POOL,
    "sol_rl explored": replace(POOL, normalise_on="explored"),
    "sol_rl explored gdpo": replace(POOL, normalise_on="explored"),
    "sol_rl once": SolRlConfig(8, 3, "float32", resample=False, nft=NFT),
    "step_aware_preference": StepAwarePreferenceConfig(SDE, RatioRule("mean", 0.5), candidates=3, gap=0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_an_alignment_ends_where_it_did(case, make_task, golden, fingerprint, monkeypatch):
    # A large epsilon makes updates linear in the gradients: otherwise the sign of a gradient near zero, which depends on
    # the processor, moves a weight by the whole learning rate.
    adamw = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda *a, **k: adamw(*a, **k, eps=1.0))
    task = make_task(iterations=3, minibatch=12, epochs=2, seed=5, names=("bright", "even"), learning_rate=1e-2)
    if case.endswith("gdpo"):
        task = replace(task, mix=mix, batch_scale=True)
    name = case.split()[0]
    history = align(task, make_method(name, task, MethodConfigs(**{name: CASES[case]})), folder=None, log=None)
    told = {key: [numbers.get(key) for numbers in history] for key in sorted(set().union(*history))}
    golden(case, {"weights": fingerprint(task.dynamics), **told}, rel=5e-2, abs=1e-2)
