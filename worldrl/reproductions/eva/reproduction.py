"""``eva``: EVA (arXiv 2603.17808) states that an inverse dynamics reward makes a video model's plans executable.

A video model plans a video from the first frame and an instruction of the bimanual suite. An inverse dynamics model
decodes it into fourteen joint targets, and the simulator executes these, open loop. Arms, on the same test states:

- ``recorded``: frames of held-out demonstrations, executed: the loss of decoding alone;
- ``restored``: the same frames through the video model's codec;
- ``imagined-true-actions``: the same demonstrations imagined from their first frame and true actions: the dynamics' loss;
- ``none``: the video model as it was trained;
- ``longer``, ``imitate``: trained on at alignment's cost, without or with successful executed plans (``controls.py``);
- ``best-of-n``: the best of N videos by the reward, N such that the tests cost as much computation as the alignment did;
- ``staged``: MIND-V's staged rollouts, the best of a few at the middle and at the end;
- ``flow-grpo``, ``branch-grpo``, ``sol-rl``: the model aligned by each method with the same reward;
- ``full-pool``: Sol-RL's baseline, the same pool of videos with all steps in full precision;
- those of ``settings.OTHERS``, only by name: other methods, and plain GRPO by the mean of the terms in place of GDPO.

The first three plan nothing: they show which part fails where the others fail.

Cost is counted in rows that the network was evaluated on; a trained row counts three times (forward and backward).
Seconds depend on the machine; each stage's ``metrics.jsonl`` has them, on the wall and of the processors.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.intervals import paired
from worldrl.evaluation.report.model import Curve
from worldrl.evaluation.world_model.motion_correlation import motion_ratio
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.eva.arms import FORESEEN, MEASURES, MOTIONS, aligned, executed, executed_again, image_rows
from worldrl.reproductions.eva.climb import SPENT, climb_label, look_points
from worldrl.reproductions.eva.controls import trained_on
from worldrl.reproductions.eva.critic import with_critic
from worldrl.reproductions.eva.film_strips import save_strip
from worldrl.reproductions.eva.limits import MEASURED, PLANNED, halved, limits_table, rates_of
from worldrl.reproductions.eva.parts import open_parts
from worldrl.reproductions.eva.settings import ALIGNED, ARMS, CONTROLS, GIVEN, EvaSettings, term_weights
from worldrl.reproductions.eva.tables import (
    arms_in,
    climbs,
    cost_table,
    hits,
    knowledge_table,
    measures_table,
    notes,
    paired_table,
    sooner,
)
from worldrl.reproductions.findings import Claim, Findings, Judged, Results, Verdict, across_seeds, column, side_by_side
from worldrl.rewards.motion.basis import REAL_SHARE

METHODS = ARMS
GAIN, EPISODES = 0.06, 400  # Success gained by EVA's alignment, and the paired episodes needed for a verdict
CRITIC_READ = (
    "learned", "executed", "successes", "failures", "auroc", "auroc_pooled", "imagined_rows", "cpu_seconds", "seconds",
)  # fmt: skip
"""Reported numbers of a critic and its collection."""
QUICK = EvaSettings(
    seeds=3, tasks="BimanualOpenDrawer", codec_steps=1800, width=144, depth=4, world_steps=6000, first_chunk_share=0.5,
    idm_width=32, idm_steps=4000, iterations=10, prompts=4, tests=20, look_every=2, horizon=48,
)  # fmt: skip
SETTINGS: Mapping[str, EvaSettings] = {
    "paper": EvaSettings(),
    # A video model stopped early has something to align; the critic and the penalty align it.
    "full": replace(
        QUICK, world_steps=1350, executed_plans=960, iterations=24, prompts=8, look_every=6, tests=140, limits_weight=4.0,
        limits_margin=0.3, limit_plans=4000, arms="none+flow-grpo+branch-grpo",
    ),
    "quick": QUICK,
    "tiny": EvaSettings(
        seeds=2, tasks="BimanualOpenDrawer", demonstrations=4, kept=0.9, image_size=16, chunk=8, codec_width=16, codec_steps=2,
        width=24, depth=1, world_steps=2, batch=4, idm_width=8, idm_steps=2, iterations=1, prompts=1, denoising=2, explored=8,
        look_every=1, tests=1, horizon=24, proposals=2,
    ),
}  # fmt: skip


def run(settings: EvaSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Make one arm and execute its plans; ``folder`` holds its checkpoints."""
    parts = open_parts(settings, cell.seed, folder)
    if settings.executed_plans:
        parts = with_critic(settings, cell.seed, folder, parts)
    train = {**dict.fromkeys(ALIGNED, aligned), **dict.fromkeys(CONTROLS, trained_on)}.get(cell.method)
    trained = {} if train is None else train(settings, cell, parts, folder)
    measured = executed_again(settings, cell, parts) if cell.method in GIVEN else executed(settings, cell, parts)
    rows = image_rows(settings, cell, parts)
    save_strip(folder, rows, [f"step {k * settings.stride}" for k in range(max(map(len, rows.values())))])
    return {**trained, **measured}


def numbers_read(settings: EvaSettings, method: str) -> list[str]:
    """Return the names that :func:`conclude` reads from an arm's stage, dotted where nested."""
    names = ["success", "episodes", "hits"]
    if method in GIVEN:
        return names
    names += [*MEASURES, MOTIONS, "per_plan.reward", "test_rows"]
    if settings.executed_plans:
        names += [FORESEEN, f"per_plan.{FORESEEN}"]
    if settings.executed_plans and method == "none":
        names += [f"critic.{name}" for name in CRITIC_READ]
    if settings.limit_plans and method in MEASURED:
        names.append(PLANNED)
    if method in (*CONTROLS, *ALIGNED):
        names += ["imagined_rows", "trained_rows", "cost"]
    if method in CONTROLS:
        names.append("further_steps")
    if method in ALIGNED:
        names += [f"climb.{name}" for name in ("reward", "rows", *SPENT)]
        names += [f"climb.terms.{name}" for name in term_weights(settings)]
    return names


# --- what was found -------------------------------------------------------------------------------------------------


def conclude(settings: EvaSettings, results: Results) -> Findings:
    """Compare the arms, seed by seed."""
    arms = arms_in(results)
    planned = arms[len(arms_in(results, GIVEN)) :]
    tables = [
        measures_table(results),
        paired_table(results, "none", [arm for arm in planned if arm != "none"]),
        paired_table(results, "flow-grpo", arms_in(results, (*CONTROLS, "best-of-n", "staged"))),
        limits_table(results),
        knowledge_table(settings, results),
        cost_table(settings, results),
    ]
    success = np.stack([column(results, m, "success") for m in arms], axis=1).tolist()
    figure = side_by_side("Executed plans", "success", arms, {"success": success}, percent=True)
    figures = [figure, artefact_figure(results, planned), *climb_figures(settings, results)]
    return Findings(claims(results), [table for table in tables if table.rows], figures, notes(settings, results))


def claims(results: Results) -> list[Claim]:
    """Return the paper's statements about the arms that were run, each as numbers that should be above zero."""
    was, now = ({name: column(results, arm, name) for name in MEASURES} for arm in ("none", "flow-grpo"))
    success = "alignment raises the success of executed plans", "success, difference"
    said = [
        Claim(*success, now["success"] - was["success"]),
        gain_claim(results),
        limits_claim(results, was["violation_rate"] / 2 - now["violation_rate"]),
        motion_claim(results, now["motion"] - REAL_SHARE * was["motion"]),
    ]
    if "best-of-n" in results:
        more = now["success"] - column(results, "best-of-n", "success")
        said.append(Claim("alignment beats best-of-N at equal computation", "success, difference", more))
    return [*said, *cost_claims(results)]


def gain_claim(results: Results) -> Claim:
    """Alignment gains as much as EVA's, over all seeds' paired episodes; open with few episodes."""
    found = paired(hits(results, "none"), hits(results, "flow-grpo"))
    verdict: Verdict = "reproduced" if found["diff"] >= GAIN and found["lo"] > 0 else "not reproduced"
    verdict = "contrary" if found["hi"] < 0 else verdict
    judged = Judged(found["lo"], found["hi"], verdict if found["n"] >= EPISODES else "open")
    gained = column(results, "flow-grpo", "success") - column(results, "none", "success")
    sentence = (
        f"alignment gains {100 * GAIN:.0f} points, and the interval over at least {EPISODES} episodes lies above 0"
    )
    return Claim(sentence, f"success, difference over {found['n']} paired episodes", gained, judged)


def limits_claim(results: Results, values: NDArray[np.float64]) -> Claim:
    """Broken limits are halved: of planned videos where they were counted, else of executed plans, over seeds."""
    counted = halved(results)
    share = column(results, "none", "violation_rate").mean() if counted is None else rates_of(results, "none").mean()
    sentence = f"alignment at least halves the frames that break a limit ({100 * share:.2g} % of the frames before)"
    quantity = "half the share before less the share after"
    if not share:  # nothing to halve: a difference of 0 says nothing against alignment
        return Claim(sentence, quantity, [], undecided=len(values))
    if counted is None:
        return Claim(sentence, quantity, values)
    verdict: Verdict = "reproduced" if counted["lo"] > 0 else "contrary" if counted["hi"] < 0 else "not reproduced"
    pairs = zip(results["none"], results["flow-grpo"], strict=True)
    by_seed = [float(np.mean(one[PLANNED])) / 2 - float(np.mean(other[PLANNED])) for one, other in pairs]
    measure = f"{quantity}, over {counted['n']} planned videos"
    return Claim(sentence, measure, by_seed, Judged(counted["lo"], counted["hi"], verdict))


def motion_claim(results: Results, values: NDArray[np.float64]) -> Claim:
    """Alignment keeps the motion, plan by plan: the same test and noise before and after."""
    before, after = ([m for one in results[arm] for m in one[MOTIONS]] for arm in ("none", "flow-grpo"))
    found = motion_ratio(before, after, generator=numpy_stream(0, "eva", MOTIONS))
    verdicts: dict[str, Verdict] = {"kept": "reproduced", "lost": "contrary", "not decided": "not reproduced"}
    verdict: Verdict = verdicts[found["verdict"]] if found["n"] > 1 else "open"
    quantity = f"motion content after less {REAL_SHARE} of before, over {found['n']} pairs of plans"
    judged = Judged(found["lo"], found["hi"], verdict)
    return Claim("alignment keeps nine tenths of the motion", quantity, values, judged)


def cost_claims(results: Results) -> list[Claim]:
    """Savings of cheaper methods, in processor seconds up to the same reward."""
    said: list[Claim] = []
    if "branch-grpo" in results:
        sentence = "BranchGRPO takes 1.8 times less time than plain GRPO to the same reward"
        quantity = "processor seconds of plain GRPO over its own"
        said.append(factor_claim(sentence, quantity, sooner(results, "branch-grpo", "cpu_seconds"), 1.8))
    if {"sol-rl", "full-pool"} <= set(results):
        sentence = "Sol-RL imagines half as long as its whole pool in full takes to the same reward"
        quantity = "processor seconds of imagining in full over its own"
        said.append(factor_claim(sentence, quantity, sooner(results, "sol-rl", "cpu_rollout_seconds"), 2.0))
    return said


def factor_claim(sentence: str, quantity: str, factors: list[float | None], least: float) -> Claim:
    """A cost is ``least`` times smaller; seeds whose climbs are within their noise leave it open."""
    known = [factor - least for factor in factors if factor is not None]
    return Claim(sentence, f"{quantity}, less {least:g}", known, undecided=len(factors) - len(known))


def climb_figures(settings: EvaSettings, results: Results) -> list[Curve]:
    """The reward on held-out starts during each alignment, and each term by itself where there are several."""
    ways = {method: climbs(results, method) for method in arms_in(results, ALIGNED)}
    weights, looks = term_weights(settings), look_points(settings)

    def figure(title: str, label: str, rows: dict[str, list[list[float]]]) -> Curve:
        return across_seeds(title, "iterations", label, looks, rows)

    rewards = {m: [w["reward"] for w in each] for m, each in ways.items()}
    every = figure("Reward while aligning, on kept starts", climb_label(settings), rewards)
    single: list[Curve] = []
    for name, weight in weights.items() if len(weights) > 1 else ():
        rows = {m: [w["terms"][name] for w in each] for m, each in ways.items()}
        single.append(figure(f"{name} while aligning (weight {weight:g})", name, rows))
    return [every, *single]


def artefact_figure(results: Results, arms: list[str]) -> Curve:
    """Broken limits and jerk spikes of every planned arm, in per cent on an axis of their own."""
    series = {
        label: (100 * np.stack([column(results, m, name) for m in arms], axis=1)).tolist()
        for label, name in (("limits broken", "violation_rate"), ("jerk spikes", "jerk_spike_rate"))
    }
    return side_by_side("Artefacts of plans", "% of frames", arms, series)
