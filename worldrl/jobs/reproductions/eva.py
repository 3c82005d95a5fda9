"""``eva``: an inverse dynamics reward makes a video model's plans executable, says EVA (arXiv 2603.17808).

A video model sees the first frame and an instruction of the bimanual suite and plans a video; inverse dynamics decodes it into
fourteen joint targets, and the simulator executes these, open loop. Arms, each on the same test states:

- ``recorded``: what the frames of kept demonstrations show, executed: how much the decoding alone loses;
- ``restored``: the same frames through the video model's codec;
- ``imagined-true-actions``: the same demonstrations imagined from their first frame and true actions: how much the dynamics lose;
- ``none``: the video model as it was trained;
- ``best-of-n``: the best of N videos by the reward, N such that the tests cost as much computation as the alignment did;
- ``staged``: MIND-V's staged rollouts, the best of a few at the middle and at the end;
- ``flow-grpo``, ``branch-grpo``, ``sol-rl``: the model aligned by each method with the same reward.

The first three plan nothing: they say which link is weak where the others fail.

Computation is counted in rows that the network was evaluated on; a row that was trained on counts three times (forward and
backward). Wall time depends on the machine and never repeats; it is in each stage's ``metrics.jsonl``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.evaluation.report.model import Curve, Table
from worldrl.jobs.reproductions.catalogue import Cell
from worldrl.jobs.reproductions.eva_arms import (
    ALIGNED,
    GIVEN,
    MEASURES,
    METHODS,
    TRAINED,
    aligned,
    equal_compute,
    executed,
    executed_again,
    picture_rows,
)
from worldrl.jobs.reproductions.eva_parts import TERM, EvaSettings, open_parts
from worldrl.jobs.reproductions.findings import Claim, Findings, side_by_side
from worldrl.jobs.reproductions.strips import save_strip
from worldrl.rewards.basis import REAL_SHARE

SETTINGS: Mapping[str, EvaSettings] = {
    "full": EvaSettings(),
    "quick": EvaSettings(
        seeds=3, tasks="BimanualOpenDrawer", codec_steps=1800, width=144, depth=4, world_steps=6000, first_chunk_share=0.5,
        idm_width=32, idm_steps=4000, iterations=10, prompts=4, tests=20, explored=16, horizon=48,
    ),
    "tiny": EvaSettings(
        seeds=2, tasks="BimanualOpenDrawer", demonstrations=4, kept=0.9, image_size=16, chunk=8, codec_width=16, codec_steps=2,
        width=24, depth=1, world_steps=2, batch=4, idm_width=8, idm_steps=2, iterations=1, prompts=1, denoising=2, explored=8,
        tests=1, horizon=24, proposals=2,
    ),
}  # fmt: skip


def run(settings: EvaSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Make one arm and execute its plans; ``folder`` holds its checkpoints."""
    parts = open_parts(settings, cell.seed, folder)
    trained = aligned(settings, cell, parts, folder) if cell.method in ALIGNED else {}
    measured = executed_again(settings, cell, parts) if cell.method in GIVEN else executed(settings, cell, parts)
    rows = picture_rows(settings, cell, parts)
    save_strip(folder, rows, [f"step {k * settings.stride}" for k in range(max(map(len, rows.values())))])
    return {**trained, **measured}


# --- what was found -------------------------------------------------------------------------------------------------


def conclude(settings: EvaSettings, results: Mapping[str, Sequence[dict[str, Any]]]) -> Findings:
    """Hold the arms against each other, seed by seed."""
    tables = [measures_table(results), cost_table(results)]
    success = np.stack([column(results, m, "success") for m in METHODS], axis=1).tolist()
    figure = side_by_side("Executed plans", "success", METHODS, {"success": success}, percent=True)
    return Findings(claims(results), tables, [figure, artefact_figure(results)], notes(settings))


def column(results: Mapping[str, Sequence[dict[str, Any]]], method: str, name: str) -> np.ndarray:
    """One number of one arm, by seed."""
    return np.array([found[name] for found in results[method]], dtype=float)


def claims(results: Mapping[str, Sequence[dict[str, Any]]]) -> list[Claim]:
    """Make the paper's statements, each as numbers that should lie above zero."""

    def values(method: str, name: str) -> np.ndarray:
        return column(results, method, name)

    def gain_per_cost(method: str) -> np.ndarray:
        return 1e4 * (values(method, "reward") - values("none", "reward")) / values(method, "cost")

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
            "BranchGRPO gains 1.8 times as much reward for its cost as plain GRPO",
            "gain per 10,000 rows, less 1.8 of plain GRPO's",
            gain_per_cost("branch-grpo") - 1.8 * gain_per_cost("flow-grpo"),
        ),
        (
            "Sol-RL gains twice as much reward for its cost as plain GRPO",
            "gain per 10,000 rows, less 2 of plain GRPO's",
            gain_per_cost("sol-rl") - 2 * gain_per_cost("flow-grpo"),
        ),
    ]
    return [Claim(sentence, quantity, numbers.tolist()) for sentence, quantity, numbers in said]


def measures_table(results: Mapping[str, Sequence[dict[str, Any]]]) -> Table:
    """Every arm's means over seeds."""
    rows = []
    for method in METHODS:
        known = [name for name in MEASURES if name in results[method][0]]
        means = {name: f"{column(results, method, name).mean():.3g}" for name in known}
        rows.append((method, *(means.get(name, "") for name in MEASURES), str(results[method][0]["episodes"])))
    heads = ("Arm", "Success", "Limits broken", "Jerk spikes", "Motion", f"Reward ({TERM})", "Episodes per seed")
    return Table("Executed plans, means over seeds", heads, rows)


def cost_table(results: Mapping[str, Sequence[dict[str, Any]]]) -> Table:
    """What each method cost, in rows of the network."""
    rows = [
        (
            method,
            *(f"{column(results, method, name).mean():.0f}" for name in ("imagined_rows", "trained_rows", "cost")),
            f"{(column(results, method, 'reward') - column(results, 'none', 'reward')).mean():.3g}",
        )
        for method in ALIGNED
    ]
    heads = ("Method", "Rows imagined", "Rows trained on", "Cost", "Gain in reward")
    return Table("Cost of alignment, means over seeds", heads, rows)


def artefact_figure(results: Mapping[str, Sequence[dict[str, Any]]]) -> Curve:
    """Broken limits and jerk spikes of every planned arm."""
    arms = METHODS[len(GIVEN) :]
    series = {
        label: np.stack([column(results, m, name) for m in arms], axis=1).tolist()
        for label, name in (("limits broken", "violation_rate"), ("jerk spikes", "jerk_spike_rate"))
    }
    return side_by_side("Artefacts of plans", "share of frames", arms, series, percent=True)


def notes(settings: EvaSettings) -> list[str]:
    """How it was done, and limits."""
    return [
        f"{settings.tasks}: {settings.demonstrations} demonstrations per task and seed, {settings.tests} test states per task.",
        f"Best-of-N draws {equal_compute(settings)} videos per test; a trained row counts {TRAINED} times.",
        "Plans are executed open loop; the inverse dynamics reads the command, gripper included, so that a grasp is held.",
        "Limits are measured on the demonstrations' own motion, not a data sheet's.",
    ]
