"""The arms of ``eva``: align a video model, plan from test states, execute the plans, and count the cost in rows."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldrl.core.interfaces import RewardMix
from worldrl.core.rng import stream_seed
from worldrl.core.storage.log import MetricLog, read_metrics
from worldrl.core.types import Episode, ResetRecord
from worldrl.diffusion.sde import Denoising, RatioRule
from worldrl.evaluation.report.model import Frames
from worldrl.evaluation.world_model.rollout_error import padded_actions, replay, whole_chunks
from worldrl.methods.alignment.align import MethodConfigs
from worldrl.methods.alignment.branch_grpo import BranchGrpoConfig
from worldrl.methods.alignment.dance_grpo import DanceGrpoConfig
from worldrl.methods.alignment.diffusion_nft import DiffusionNftConfig
from worldrl.methods.alignment.flow_grpo import FlowGrpoConfig
from worldrl.methods.alignment.sol_rl import SolRlConfig
from worldrl.methods.alignment.step_aware_preference import StepAwarePreferenceConfig
from worldrl.methods.alignment.task import AlignmentConfig, AlignmentTask, Starts
from worldrl.methods.rl.config import PartNames
from worldrl.recipes.motion.idm_stages import through_codec
from worldrl.recipes.motion.planned_execution import ExecutedPlans, Planning, executed_plans
from worldrl.recipes.rl_parts import make_method
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.eva.climb import climb, climb_summary, costs, scales
from worldrl.reproductions.eva.limits import MEASURED, planned_violations
from worldrl.reproductions.eva.parts import Parts
from worldrl.reproductions.eva.settings import (
    GIVEN,
    TERM,
    EvaSettings,
    alignment_rows,
    chunks_to,
    group_size,
    plan_rows,
    task_names_of,
    term_weights,
)
from worldrl.rewards.execution_critic import TERM as EXECUTION
from worldrl.rewards.mixing import mean_of_terms, mix
from worldrl.rewards.motion.executability import jerk_spike_rate, violation_rate
from worldrl.rewards.motion.moving import motion_content
from worldrl.rewards.motion.training import as_shown
from worldrl.rollout.imagined.decoded_plans import execute_recorded
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.rollout.imagined.staged_rollouts import StagedConfig
from worldrl.world_models.video.model import VideoWorldModel

MEASURES = ("success", "violation_rate", "jerk_spike_rate", "motion", "reward")
MOTIONS = "motions"  # Motion content of every plan, in the order of the tests, so two arms form pairs
MIXED_BETA = 0.1  # DiffusionNFT's β where several rewards are mixed
FORESEEN = "foreseen_success"  # Mean reward of an arm's plans by the critic, if there is one


# --- alignment ------------------------------------------------------------------------------------------------------


METHOD_OF = {
    "full-pool": "sol_rl",
    "coupled-nft": "diffusion_nft",
    "fork-relative": "branch_grpo",
    "mean-mixing": "flow_grpo",
}
"""Method of an arm that has another name."""


def alignment_method(settings: EvaSettings, arm: str) -> tuple[str, MethodConfigs]:
    """Return an arm's method and its settings, with the same denoising steps, ranges and leaves for all.

    Steps that keep the noise level give rewards the videos of the tests' own sampler; an SDE's few steps leave noise in
    them.
    """
    steps = settings.denoising
    noisy, plain = Denoising(steps=steps, noise="cps"), Denoising(steps=steps, noise="none")
    rule, splits = RatioRule(clip=settings.ratio_clip), [steps * chunk for chunk in range(settings.chunks)]
    nft = DiffusionNftConfig(denoising=plain)
    cheap = SolRlConfig(settings.explored, max(1, steps // 4), nft=nft)
    in_full = replace(cheap, explore_steps=steps, explore_dtype="float32", resample=False)
    width = "none" if arm == "fork-relative" else "extremes"  # a fork has all of its children
    return METHOD_OF.get(arm, arm.replace("-", "_")), MethodConfigs(
        # Evaluations of a reference would distort the comparison.
        flow_grpo=FlowGrpoConfig(denoising=noisy, ratio=rule, kl=0.0),
        dance_grpo=DanceGrpoConfig(denoising=noisy, ratio=rule),
        branch_grpo=BranchGrpoConfig(denoising=noisy, ratio=rule, splits=splits, prune_width=width),
        diffusion_nft=replace(nft, beta=MIXED_BETA, coupled=arm == "coupled-nft"),
        sol_rl=in_full if arm == "full-pool" else cheap,
        step_aware_preference=StepAwarePreferenceConfig(denoising=noisy),
    )


def alignment_config(settings: EvaSettings, arm: str) -> AlignmentConfig:
    """Return what an arm shares with the others, with fewer videos where each draws several candidates a step."""
    candidates = StepAwarePreferenceConfig().candidates if arm == "step-aware-preference" else 1
    return AlignmentConfig(
        iterations=settings.iterations,
        prompts=settings.prompts,
        group_size=max(2, group_size(settings) // candidates),
        chunks=settings.chunks,
        learning_rate=settings.rate,
        parts=PartNames(advantage="fork_relative" if arm == "fork-relative" else ""),
    )


def mixture(settings: EvaSettings, arm: str = "") -> RewardMix:
    """Mix the terms by GDPO, or in one arm add them as they are reported; the executability alone needs no mixture."""
    weights = list(term_weights(settings).values())
    if arm == "mean-mixing":
        return partial(mean_of_terms, weights=list(scales(settings).values()))
    return partial(mix, weights=weights) if len(weights) > 1 else mean_of_terms


def aligned(settings: EvaSettings, cell: Cell, parts: Parts, folder: Path) -> dict[str, Any]:
    """Align the arm's copy of the video model in place; return the cost."""
    model = parts.model
    starts = [demonstrated_start(model, e, f"demonstration {n}") for n, e in enumerate(parts.learned)]
    config, mixing = alignment_config(settings, cell.method), mixture(settings, cell.method)
    scaled = len(term_weights(settings)) > 1 and cell.method != "mean-mixing"
    task = AlignmentTask(model, Starts(starts), parts.reward, mixing, parts.frame_s, config, cell.seed, scaled)
    seen = replace(task, starts=Starts([demonstrated_start(model, e, f"kept {n}") for n, e in enumerate(parts.kept)]))
    with MetricLog(folder) as log:
        name, configs = alignment_method(settings, cell.method)
        method = make_method(name, task, configs)
        history, found = climb(settings, task, seen, method, folder, log)
        log.flush()
    return {**costs(history), "climb": climb_summary(settings, history, found, read_metrics(folder))}


# --- kept demonstrations ----------------------------------------------------------------------------------------------


def shown(cell: Cell, parts: Parts, episode: Episode) -> Tensor:
    """Return a kept demonstration as the arm's input, uint8 ``[1 + T, Y, X, 3]``, every ``frame_stride``-th frame."""
    model = parts.model
    frames = torch.from_numpy(episode.main_view[:: model.frame_stride].copy())
    if cell.method == "recorded":
        return frames
    if cell.method == "restored":
        return as_shown(frames, through_codec(model))
    actions = padded_actions(episode, whole_chunks(len(episode), model.chunk_length))[None]
    imagined = replay(model, [episode], actions, seed=stream_seed(cell.seed, "eva", "true actions")).imagined[0]
    return torch.cat([frames[:1], torch.from_numpy(imagined)])[: len(frames)]


def executed_again(settings: EvaSettings, cell: Cell, parts: Parts) -> dict[str, Any]:
    """Execute the decoded actions of every held-out demonstration as the arm shows it."""

    def read(episode: Episode) -> Tensor:
        return parts.idm.decode(shown(cell, parts, episode)[None]).mean[0, 1:].float().cpu()

    found = execute_recorded(parts.kept, settings.stride, read)
    return {"success": float(found.mean()), "episodes": len(found), "hits": found.tolist()}


# --- plans and their execution ----------------------------------------------------------------------------------------


def equal_compute(settings: EvaSettings) -> int:
    """N of best-of-N: one video per test, and as many more as plain GRPO's alignment costs."""
    return 1 + round(alignment_rows(settings) / (settings.tests * plan_rows(settings)))


def staging(settings: EvaSettings, method: str, chunks: int) -> StagedConfig:
    """Return an arm's staging; stages have equal length and are as few as the plan's chunks allow."""
    if method == "staged":
        stages = next((n for n in range(2, chunks + 1) if chunks % n == 0), 1)
        return StagedConfig(proposals=settings.proposals, stages=stages, stage_chunks=chunks // stages)
    proposals = equal_compute(settings) if method == "best-of-n" else 1
    return StagedConfig(proposals=proposals, stages=1, stage_chunks=chunks)


def planning_of(settings: EvaSettings, cell: Cell, parts: Parts) -> Planning:
    """Return the planning of the arm's model, with the reward of its alignment."""
    return Planning(parts.model, parts.idm, parts.reward, mixture(settings), cell.seed)


def executed(settings: EvaSettings, cell: Cell, parts: Parts) -> dict[str, Any]:
    """Plan from every test state, execute the plans, and count their artefacts."""
    success: list[bool] = []
    measured: dict[str, list[float]] = {}
    evaluations, planning = 0, planning_of(settings, cell, parts)
    for task in task_names_of(settings):
        config = staging(settings, cell.method, chunks_to(settings, task))
        for found in executed_plans(
            planning, task, config, count=settings.tests, purpose="tests", domain=settings.domain
        ):
            evaluations += found.plans.chunks * settings.denoising
            success += (found.step >= 0).tolist()
            for name, values in artefacts(parts, found).items():
                measured.setdefault(name, []).extend(values)
    means = {name: float(np.mean(values)) for name, values in measured.items()}
    rate = {"success": float(np.mean(success)), "episodes": len(success), "hits": success}
    per_plan = {name: measured[name] for name in ("reward", FORESEEN) if name in measured}
    limits = planned_violations(settings, parts, planning) if cell.method in MEASURED else {}
    worth = {} if parts.critic_worth is None else {"critic": dict(parts.critic_worth)}
    paths = {MOTIONS: measured["motion"]}
    return {**rate, **means, **worth, **paths, **limits, "per_plan": per_plan, "test_rows": evaluations}


def image_rows(settings: EvaSettings, cell: Cell, parts: Parts) -> dict[str, Frames]:
    """Rows of a filmstrip: a held-out demonstration as recorded, and as the arm shows or plans it from its first frame."""
    episode = parts.kept[0]
    recorded = shown(Cell("recorded", cell.seed), parts, episode).numpy()
    if cell.method == "recorded":
        return {"recorded": recorded}
    if cell.method in GIVEN:
        return {"recorded": recorded, cell.method: shown(cell, parts, episode).numpy()}
    start = demonstrated_start(parts.model, episode, "filmstrip")
    config = staging(settings, cell.method, chunks_to(settings, episode.task))
    plans = planning_of(settings, cell, parts).plan([start], config, "filmstrip")
    return {"recorded": recorded, "planned": plans.frames[0].numpy()}


def demonstrated_start(model: VideoWorldModel, episode: Episode, source: str) -> ResetRecord:
    """Make the record of a demonstration's first frame."""
    return record_at(episode, 0, memory_frames=model.memory_frames, frame_stride=model.frame_stride, source=source)


def artefacts(parts: Parts, found: ExecutedPlans) -> dict[str, list[float]]:
    """Measure every plan's decoded joints: broken limits, jerk spikes, motion content, executability, and the critic's reward."""
    basis, names, terms = parts.executability.basis, parts.reward.names, found.plans.terms
    measures = {"violation_rate": violation_rate, "jerk_spike_rate": jerk_spike_rate, "motion": motion_content}
    motion = {name: measure(found.decoded, basis.dt, basis.limits).tolist() for name, measure in measures.items()}
    named = {TERM: "reward", EXECUTION: FORESEEN}
    by_term = {named[name]: terms[:, names.index(name)].tolist() for name in names if name in named}
    return {**motion, **by_term}
