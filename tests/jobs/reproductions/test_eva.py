"""The arithmetic of ``eva``: what an arm costs, how many videos best-of-N may draw for it, and which claims follow."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.jobs.reproductions import eva_parts
from worldrl.jobs.reproductions.catalogue import changed
from worldrl.jobs.reproductions.eva import SETTINGS, claims
from worldrl.jobs.reproductions.eva_arms import METHODS, chunks_to, costs, equal_compute, method_configs, staging
from worldrl.jobs.reproductions.eva_parts import planner_config, planner_training

QUICK = SETTINGS["quick"]


def test_cost_counts_imagined_rows_once_and_trained_rows_three_times():
    history = [
        {"cost/evaluations": 10.0, "cost/trained_steps": 4.0},
        {"cost/explore_evaluations": 6.0, "reward/x": 1.0},
    ]
    assert costs(history) == {"imagined_rows": 16.0, "trained_rows": 4.0, "cost": 28.0}


def test_best_of_n_draws_what_the_alignment_would_have_cost():
    # 2 iterations of 3 starts, 8 videos of 3 chunks: 144 chunks of 4 steps, 3 of which are trained on.
    settings = replace(QUICK, iterations=2, prompts=3, chunks=3, denoising=4, tests=5, chunk=16, horizon=160)
    training = 144 * (4 + 3 * 3)
    assert equal_compute(settings) == 1 + round(training / (5 * 4 * 10))
    assert staging(settings, "none", 10).proposals == 1
    assert staging(settings, "best-of-n", 10).proposals == equal_compute(settings)
    staged = staging(settings, "staged", 9)
    assert (staged.stages, staged.stage_chunks, staged.proposals) == (2, 5, settings.proposals)


def test_every_method_has_the_same_leaves_and_steps():
    configs = method_configs(QUICK)
    assert configs.branch_grpo.splits == [0, 4, 8]
    steps = {configs.flow_grpo.denoising.steps, configs.branch_grpo.denoising.steps, configs.sol_rl.nft.denoising.steps}
    assert steps == {QUICK.denoising}


def test_alignment_and_tests_sample_alike():
    """As many steps, and noise that leaves no more behind than the ODE that plans are made with."""
    configs, planner = method_configs(QUICK), planner_config(QUICK)
    assert planner.dynamics.sampling_steps == QUICK.denoising
    assert {configs.flow_grpo.denoising.noise, configs.branch_grpo.denoising.noise} == {"cps"}


def test_a_plan_lasts_as_long_as_a_demonstration():
    """Not to the time limit: what nothing was learned of would fill most of a plan, and every rate measured on it."""
    assert QUICK.chunks * QUICK.chunk == QUICK.horizon == 48
    assert chunks_to(QUICK, QUICK.tasks) == 3
    assert QUICK.video_frames == 13


def test_every_setting_of_the_planner_is_a_number_that_can_be_changed():
    numbers = {
        "world_rate": 1e-4, "ema": 0.9, "batch": 7, "first_chunk_share": 0.25, "event_share": 0.125, "static_share": 0.5,
        "action_dropout": 0.75, "bootstrap": 0.625, "unroll": 4, "codec_steps": 11, "world_steps": 12,
    }  # fmt: skip
    training = planner_training(changed(QUICK, numbers))
    found = {
        "world_rate": training.learning_rate, "ema": training.ema_decay, "world_steps": training.steps,
        **{name: getattr(training, name) for name in numbers if hasattr(training, name)},
    }  # fmt: skip
    assert found == numbers
    assert planner_config(changed(QUICK, {"codec_width": 64})).codec.width == 64
    with pytest.raises(SettingError, match="noisy_share"):
        changed(QUICK, {"noisy_share": 2})


def test_demonstrations_are_steady_and_disturbed_and_only_successes_are_learned_from(tmp_path, monkeypatch):
    settings = replace(SETTINGS["tiny"], demonstrations=5, noisy_share=0.4, noise=0.3, hold_steps=3)
    seen = {}
    monkeypatch.setattr(eva_parts, "collect_dataset", lambda folder, plans, **over: seen.update(plans=plans, **over))
    eva_parts.record(settings, 0, tmp_path)
    steady, disturbed = seen["plans"]
    assert (steady.actor.noise, disturbed.actor.noise, seen["hold_steps"]) == (0, 0.3, 3)
    assert [spec.index for spec in (*steady.specs, *disturbed.specs)] == [0, 1, 2, 3, 4]
    assert len({spec.key for spec in (*steady.specs, *disturbed.specs)}) == 5
    assert len(disturbed.specs) == 2


def results(**flow: float):
    same = {"success": 0.4, "violation_rate": 0.2, "jerk_spike_rate": 0.1, "motion": 0.5, "reward": 2.0, "cost": 1000.0}
    rows = {method: dict(same) for method in METHODS}
    rows["flow-grpo"] |= flow
    rows["branch-grpo"] |= {"reward": 3.0, "cost": 500.0}
    return {method: [row, dict(row)] for method, row in rows.items()}


def test_claims_are_differences_that_should_lie_above_zero():
    found = claims(results(success=0.5, violation_rate=0.05, motion=0.5, reward=3.0))
    means = [claim.mean for claim in found]
    assert means[:4] == pytest.approx([0.1, 0.05, 0.05, 0.1])
    # Per 10,000 rows: BranchGRPO 1/500, plain GRPO 1/1000, Sol-RL nothing.
    assert means[4:] == pytest.approx([20 - 18, 0 - 20])
    assert np.isfinite(means).all()
