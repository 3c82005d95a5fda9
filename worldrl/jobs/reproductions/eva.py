"""``eva``: an inverse dynamics reward makes a video model's plans executable, says EVA (arXiv 2603.17808).

A video model sees the first frame and an instruction of the bimanual suite and plans a video; inverse dynamics decodes it into
fourteen joint targets, and the simulator executes these, open loop. Arms, each on the same test states:

- ``recorded``: what the frames of kept demonstrations show, executed: how much the decoding alone loses;
- ``restored``: the same frames through the video model's codec;
- ``imagined-true-actions``: the same demonstrations imagined from their first frame and true actions: how much the dynamics lose;
- ``none``: the video model as it was trained;
- ``best-of-n``: the best of N videos by the reward, N such that the tests cost as much computation as the alignment did;
- ``staged``: MIND-V's staged rollouts, the best of a few at the middle and at the end;
- ``flow-grpo``, ``branch-grpo``, ``sol-rl``: the model aligned by each method with the same reward;
- ``full-pool``: what Sol-RL is held against, the same pool of videos with all steps in full precision.

The first three plan nothing: they say which link is weak where the others fail.

Computation is counted in rows that the network was evaluated on; a row that was trained on counts three times (forward and
backward). Wall time depends on the machine: each stage's ``metrics.jsonl`` has it, and what two methods take to the same reward, on
starts that neither learned from, is read off there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.stats import auroc, paired, wilson
from worldrl.evaluation.report.model import Curve, Table
from worldrl.jobs.reproductions.catalogue import Cell
from worldrl.jobs.reproductions.eva_arms import (
    ALIGNED,
    FORESEEN,
    GIVEN,
    MEASURES,
    METHODS,
    TRAINED,
    aligned,
    equal_compute,
    executed,
    executed_again,
    look_points,
    picture_rows,
    times_less,
)
from worldrl.jobs.reproductions.eva_critic import with_critic
from worldrl.jobs.reproductions.eva_parts import open_parts
from worldrl.jobs.reproductions.eva_settings import TERM, EvaSettings
from worldrl.jobs.reproductions.findings import Claim, Findings, across_seeds, side_by_side
from worldrl.jobs.reproductions.strips import save_strip
from worldrl.jobs.world_model_tables import with_rate
from worldrl.rewards.basis import REAL_SHARE

REWARDS = {"reward": TERM, FORESEEN: "execution, foreseen"}
"""What the rewards of single plans are called."""
BASELINES = {"branch-grpo": "flow-grpo", "sol-rl": "full-pool"}
"""What a cheaper method is held against."""
SETTINGS: Mapping[str, EvaSettings] = {
    "full": EvaSettings(),
    "quick": EvaSettings(
        seeds=3, tasks="BimanualOpenDrawer", codec_steps=1800, width=144, depth=4, world_steps=6000, first_chunk_share=0.5,
        idm_width=32, idm_steps=4000, iterations=10, prompts=4, tests=20, look_every=2, horizon=48,
    ),
    "tiny": EvaSettings(
        seeds=2, tasks="BimanualOpenDrawer", demonstrations=4, kept=0.9, image_size=16, chunk=8, codec_width=16, codec_steps=2,
        width=24, depth=1, world_steps=2, batch=4, idm_width=8, idm_steps=2, iterations=1, prompts=1, denoising=2, explored=8,
        look_every=1, tests=1, horizon=24, proposals=2,
    ),
}  # fmt: skip


def run(settings: EvaSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Make one arm and execute its plans; ``folder`` holds its checkpoints."""
    parts = open_parts(settings, cell.seed, folder)
    if settings.practice:
        parts = with_critic(settings, cell.seed, folder, parts)
    trained = aligned(settings, cell, parts, folder) if cell.method in ALIGNED else {}
    measured = executed_again(settings, cell, parts) if cell.method in GIVEN else executed(settings, cell, parts)
    rows = picture_rows(settings, cell, parts)
    save_strip(folder, rows, [f"step {k * settings.stride}" for k in range(max(map(len, rows.values())))])
    return {**trained, **measured}


# --- what was found -------------------------------------------------------------------------------------------------


def conclude(settings: EvaSettings, results: Mapping[str, Sequence[dict[str, Any]]]) -> Findings:
    """Hold the arms against each other, seed by seed."""
    tables = [measures_table(results), paired_table(results), knowledge_table(results), cost_table(results)]
    success = np.stack([column(results, m, "success") for m in METHODS], axis=1).tolist()
    figure = side_by_side("Executed plans", "success", METHODS, {"success": success}, percent=True)
    return Findings(
        claims(results),
        tables,
        [figure, artefact_figure(results), climb_figure(settings, results)],
        notes(settings, results),
    )


def column(results: Mapping[str, Sequence[dict[str, Any]]], method: str, name: str) -> np.ndarray:
    """One number of one arm, by seed."""
    return np.array([found[name] for found in results[method]], dtype=float)


def climbs(results: Mapping[str, Sequence[dict[str, Any]]], method: str) -> list[dict[str, list[float]]]:
    """What one aligned arm reached on its way, by seed."""
    return [found["climb"] for found in results[method]]


def hits(results: Mapping[str, Sequence[dict[str, Any]]], method: str) -> np.ndarray:
    """Which tests of one arm succeeded, of all seeds one after the other, bool ``[n]``."""
    return np.concatenate([np.array(found["hits"], dtype=bool) for found in results[method]])


def claims(results: Mapping[str, Sequence[dict[str, Any]]]) -> list[Claim]:
    """Make the paper's statements, each as numbers that should lie above zero."""

    def values(method: str, name: str) -> np.ndarray:
        return column(results, method, name)

    def sooner(base: str, method: str, by: str) -> np.ndarray:
        return np.array(
            [times_less(*pair, by) for pair in zip(climbs(results, base), climbs(results, method), strict=True)]
        )

    was, now = ({name: values(arm, name) for name in MEASURES} for arm in ("none", "flow-grpo"))
    said = [
        ("alignment raises the success of executed plans", "success, difference", now["success"] - was["success"]),
        (
            "alignment at least halves the frames that break a limit",
            "half the share before less the share after",
            was["violation_rate"] / 2 - now["violation_rate"],
        ),
        (
            "alignment keeps nine tenths of the motion",
            f"motion content after less {REAL_SHARE} of before",
            now["motion"] - REAL_SHARE * was["motion"],
        ),
        (
            "alignment beats best-of-N at equal computation",
            "success, difference",
            now["success"] - values("best-of-n", "success"),
        ),
        (
            "BranchGRPO takes 1.8 times less time than plain GRPO to the same reward",
            "seconds of plain GRPO over its own, less 1.8",
            sooner("flow-grpo", "branch-grpo", "seconds") - 1.8,
        ),
        (
            "Sol-RL imagines half as long as its whole pool in full takes to the same reward",
            "seconds of imagining in full over its own, less 2",
            sooner("full-pool", "sol-rl", "rollout_seconds") - 2,
        ),
    ]
    return [Claim(sentence, quantity, numbers.tolist()) for sentence, quantity, numbers in said]


def measures_table(results: Mapping[str, Sequence[dict[str, Any]]]) -> Table:
    """Every arm's means over seeds."""
    foreseen = FORESEEN in results["none"][0]
    shown = (*MEASURES, FORESEEN) if foreseen else MEASURES
    rows = []
    for method in METHODS:
        known = [name for name in shown if name in results[method][0]]
        means = {name: f"{column(results, method, name).mean():.3g}" for name in known}
        rows.append((method, *(means.get(name, "") for name in shown), str(results[method][0]["episodes"])))
    heads = ("Arm", "Success", "Limits broken", "Jerk spikes", "Motion", f"Reward ({TERM})")
    heads = (*heads, *(("Foreseen success",) if foreseen else ()), "Episodes per seed")
    return Table("Executed plans, means over seeds", heads, rows)


def knowledge_table(results: Mapping[str, Sequence[dict[str, Any]]]) -> Table:
    """Does a reward know which plans succeed? Where it does not, climbing it can raise success only by chance."""
    rows = []
    for method in METHODS[len(GIVEN) :]:
        hit = hits(results, method)
        for name in results[method][0]["per_plan"]:
            value = np.concatenate([np.array(found["per_plan"][name]) for found in results[method]])
            area = f"{auroc(value[hit], value[~hit]):.2f}" if 0 < hit.sum() < len(hit) else "unknown: one outcome only"
            rows.append((method, REWARDS[name], area, str(int(hit.sum())), str(int((~hit).sum()))))
    heads = ("Arm", "Reward", "Area under the ROC curve", "Successes", "Failures")
    note = "Of a plan's reward for the success of its execution, all seeds pooled; 0.5 is chance. EVA's reward knows smoothness alone."
    return Table("What the rewards know of success", heads, rows, note)


def paired_table(results: Mapping[str, Sequence[dict[str, Any]]]) -> Table:
    """Every planned arm against the model as it was trained, test by test."""
    before, rows = hits(results, "none"), []
    for method in METHODS[len(GIVEN) + 1 :]:
        after = hits(results, method)
        found = paired(before, after)
        points = " to ".join(f"{100 * found[end]:+.1f}" for end in ("lo", "hi"))
        rate = with_rate(wilson(int(after.sum()), len(after)))
        won, lost = found["only_b"], found["only_a"]
        rows.append((method, rate, f"{100 * found['diff']:+.1f}", points, f"{won} / {lost}", f"{found['p']:.3g}"))
    heads = ("Arm", "Success", "Against none, points", "95 % interval", "Won / lost", "p (McNemar)")
    note = "The same test states, all seeds pooled: intervals hold for these models and new states; the claims' hold for new seeds."
    return Table("Success against the model as it was trained", heads, rows, note)


def cost_table(results: Mapping[str, Sequence[dict[str, Any]]]) -> Table:
    """What each method cost, in rows of the network and in seconds, and against its baseline at equal reward."""
    rows = []
    for method in ALIGNED:
        counted = (f"{column(results, method, name).mean():.0f}" for name in ("imagined_rows", "trained_rows", "cost"))
        ways = climbs(results, method)
        spent = (f"{np.mean([way[name][-1] for way in ways]):.0f}" for name in ("seconds", "rollout_seconds"))
        gain = np.mean([way["reward"][-1] - way["reward"][0] for way in ways])
        rows.append((method, *counted, *spent, f"{gain:.3g}", *against_baseline(results, method)))
    heads = ("Method", "Rows imagined", "Rows trained on", "Cost", "Seconds", "of these imagining", "Gain in reward")
    less = ("Times less seconds", "rollout seconds", "rows")
    note = "Gain on kept starts. Times less: than plain GRPO, and Sol-RL than its whole pool in full, to the same reward; 1 without a gain."
    return Table("Cost of alignment, means over seeds", (*heads, *less), rows, note)


def against_baseline(results: Mapping[str, Sequence[dict[str, Any]]], method: str) -> list[str]:
    """How many times less a method took than its baseline, in seconds, rollout seconds and rows; empty of a baseline."""
    base = BASELINES.get(method)
    if base is None:
        return [""] * 3
    pairs = list(zip(climbs(results, base), climbs(results, method), strict=True))
    return [
        f"{np.mean([times_less(*pair, by) for pair in pairs]):.2f}" for by in ("seconds", "rollout_seconds", "rows")
    ]


def climb_figure(settings: EvaSettings, results: Mapping[str, Sequence[dict[str, Any]]]) -> Curve:
    """The reward on kept starts while each method aligns."""
    series = {method: [way["reward"] for way in climbs(results, method)] for method in ALIGNED}
    return across_seeds("Reward while aligning, on kept starts", "iterations", TERM, look_points(settings), series)


def artefact_figure(results: Mapping[str, Sequence[dict[str, Any]]]) -> Curve:
    """Broken limits and jerk spikes of every planned arm."""
    arms = METHODS[len(GIVEN) :]
    series = {
        label: np.stack([column(results, m, name) for m in arms], axis=1).tolist()
        for label, name in (("limits broken", "violation_rate"), ("jerk spikes", "jerk_spike_rate"))
    }
    return side_by_side("Artefacts of plans", "share of frames", arms, series, percent=True)


def notes(settings: EvaSettings, results: Mapping[str, Sequence[dict[str, Any]]]) -> list[str]:
    """How it was done, and limits."""
    return [
        f"{settings.tasks}: {settings.demonstrations} demonstrations per task and seed, {settings.tests} test states per task.",
        f"Best-of-N draws {equal_compute(settings)} videos per test; a trained row counts {TRAINED} times.",
        "Plans are executed open loop; the inverse dynamics reads the command, gripper included, so that a grasp is held.",
        "Limits are measured on the demonstrations' own motion, not a data sheet's.",
        *critic_notes(settings, results),
    ]


def critic_notes(settings: EvaSettings, results: Mapping[str, Sequence[dict[str, Any]]]) -> list[str]:
    """What is climbed besides, what it cost, and how well it knows plans that it has not learned from."""
    if not settings.practice:
        return ["The reward is EVA's: it knows smoothness alone, so smooth failures have nothing to gain."]
    worth = [found["critic"] for found in results["none"]]
    areas = ", ".join("unknown" if one["auroc"] is None else f"{one['auroc']:.2f}" for one in worth)
    seen = sum(one["successes"] for one in worth), sum(one["failures"] for one in worth)
    return [
        f"A critic of executed plans weighs {settings.critic_weight:g} beside the executability's 1 (GDPO). It learned from "
        f"{worth[0]['learned']} plans per seed, executed in the simulator; no other cost is counted for them. Its area under the ROC "
        f"curve, seed by seed: {areas}, over {seen[0]} kept successes and {seen[1]} failures."
    ]
