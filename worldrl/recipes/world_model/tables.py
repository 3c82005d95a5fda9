"""The tables of ``worldrl evaluate-world-model``, for its report page and for the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worldrl.evaluation.policy.ranking import LEAST_POLICIES
from worldrl.evaluation.report.model import Table
from worldrl.evaluation.report.words import with_interval, with_rate
from worldrl.evaluation.world_model.battery import WITH_GRASP, Drift
from worldrl.evaluation.world_model.fvd import USUAL_VIDEOS
from worldrl.evaluation.world_model.measures import Measures
from worldrl.recipes.world_model.policy_rollouts import SCORE_AND_GRASP, TOGETHER
from worldrl.rollout.real.execution import HOLD_STEPS
from worldrl.rollout.trust.confidence import CONFIDENCE_SCORES

HEADLINE = 64
"""Control steps of the first screen's numbers: the time limit of a picking task; the nearest horizon below is taken."""
BIAS = f"with fewer than {USUAL_VIDEOS} clips it comes out too large: compare it only with distances of as many clips"
NO_WEIGHTS = "no weights given; {name}=FILE computes it (docs/reference/video-metrics.md says which file)"
QUANTITY = {
    "psnr": ("PSNR", "dB"),
    "ssim": ("SSIM", ""),
    "lpips": ("LPIPS", ""),
    "view_psnr": ("PSNR of the worst further view", "dB"),
    "state_cm": ("Measured position error", "cm"),
    "state_deg": ("Measured rotation error", "degrees"),
    "state_error": ("Measured state error", ""),
    "probe_error_cm": ("Position error", "cm"),
    "probe_error_cm_real": ("Position error in real frames", "cm"),
    "probe_across_cm": ("Across the line of sight", "cm"),
    "probe_across_cm_real": ("Across it, in real frames", "cm"),
    "views_apart_cm": ("Objects, between two views", "cm"),
    "views_apart_cm_real": ("Between them, in real frames", "cm"),
}
"""Name and unit of each drift, for people."""


@dataclass(frozen=True)
class Findings:
    """What the page is made from."""

    metrics: Mapping[str, Any]  # as in `result.json`
    measures: Measures  # raw numbers and images of each episode
    drift: Mapping[str, Drift]  # each quantity over the predicted frames
    horizons: Sequence[int]  # control steps
    frame_stride: int  # control steps between frames
    strips: int  # filmstrips of each kind

    @property
    def headline(self) -> int:
        """The horizon of the first screen."""
        return max((h for h in self.horizons if h <= HEADLINE), default=min(self.horizons))


def tables(findings: Findings) -> list[Table]:
    """Every number with its interval."""
    metrics = findings.metrics
    found = [drift_table(findings), test_table(metrics), outcome_table(metrics)]
    if "probe_error_cm_by_point" in metrics:
        found.append(point_table(metrics["probe_error_cm_by_point"]))
    if "policies" in metrics:
        found += [policy_table(metrics), trust_table(metrics["trust"])]
    found.append(speed_table(metrics["imagined_frames_per_s"]))
    if metrics["not_computed"]:
        rows = [(name, reason) for name, reason in metrics["not_computed"].items()]
        found.append(Table("Not computed", ("Quantity", "Why"), rows))
    return found


def drift_table(findings: Findings) -> Table:
    """The closed loop, one row per horizon."""
    recorded = findings.metrics["recorded"]
    rows = [
        (f"{h} steps", *(with_interval(curve.at(h)) for curve in findings.drift.values()), str(recorded[str(h)]))
        for h in findings.horizons
    ]
    note = (
        "The model sees the first frame and the actions, and continues from its own frames. 95 % intervals over episodes. "
        "Position errors are read by a probe, whose own error is that in real frames."
    )
    headers = ("After", *(named(*QUANTITY[name]) for name in findings.drift), "Episodes still recorded")
    return Table("Closed loop", headers, rows, note)


def test_table(metrics: Mapping[str, Any]) -> Table:
    """The tests of the whole model."""
    rows = [
        ("Action-swap ratio", with_interval(metrics["action_swap_ratio"]), "error under another episode's actions over the error under the true ones; 1 ignores them"),
        ("Static test (dB)", with_interval(metrics["static_psnr"]), "first frame against the image after holding still"),
        ("Replays as recorded", with_rate(metrics["repeated"]), "episodes that the simulator repeated as they were recorded"),
    ]  # fmt: skip
    if "fvd" in metrics:
        rows.append(("Fréchet video distance", with_interval(metrics["fvd"]), clips_said(metrics["fvd"])))
    words = "median on all real frames of these episodes, which it did not learn from"
    for name, key in (("Probe's own error (cm)", "error"), ("Across the line of sight (cm)", "across")):
        if f"probe_{key}_cm@real" in metrics:
            rows.append((name, with_interval(metrics[f"probe_{key}_cm@real"]), words))
    return Table("Tests", ("Test", "Measured", "What it says"), rows)


def clips_said(found: Mapping[str, Any]) -> str:
    """Say what a Fréchet video distance is of, and how far it can be trusted."""
    what = f"{found['videos']} real and as many imagined clips of {found['clip_frames']} frames, from {found['n']} episodes"
    few = f"; {BIAS}" if found["videos"] < USUAL_VIDEOS else ""
    return f"{what}; I3D's logits{few}"


def outcome_table(metrics: Mapping[str, Any]) -> Table:
    """Imagined against real outcomes of the same actions, task by task."""
    headers = ("Task", "Imagined and real", "Imagined only: false success", "Real only: missed", "Neither")
    rows = [_outcome_row(task, group) for task, group in {**metrics["tasks"], "all": metrics}.items()]
    note = f"Recorded actions and {HOLD_STEPS} steps of holding still, in the model and in the simulator."
    if f"confusion{WITH_GRASP}" in metrics:
        rows.append(_outcome_row("all, predicted by score and grasp", metrics, WITH_GRASP))
        note += " Score and grasp together: by a threshold that was fitted on other episodes."
    return Table(
        "Outcomes", (*headers, "Predicted correctly", "Precision", "Recall", "F1", "False successes"), rows, note
    )


def _outcome_row(name: str, found: Mapping[str, Any], ending: str = "") -> tuple[str, ...]:
    counts = (str(found[f"confusion{ending}"][key]) for key in ("tp", "fp", "fn", "tn"))
    right, precision, recall, false = (
        with_rate(found[f"{rate}{ending}"])
        for rate in ("outcome_alignment", "precision", "recall", "false_success_rate")
    )
    f1 = found[f"f1{ending}"]
    return name, *counts, right, precision, recall, "nothing to count" if f1 is None else with_interval(f1), false


def point_table(points: Mapping[str, Mapping[str, float]]) -> Table:
    """Position error point by point."""
    keys = ("imagined", "real", "imagined_across", "real_across")
    rows = [(name, *(f"{found[key]:.2g}" for key in keys)) for name, found in points.items()]
    headers = ("Point", "Imagined", "Real", "Across the line of sight, imagined", "Across, real")
    return Table("Positions", headers, rows, "Median error over all frames of all episodes (cm).")


def policy_table(metrics: Mapping[str, Any]) -> Table:
    """Each policy's imagined success beside its real one."""
    rows = [
        (
            one["path"],
            with_rate(one["imagined"]),
            with_rate(one["real"]),
            with_rate(one["same_actions"]["precision"]),
            with_rate(one["same_actions"]["outcome_alignment"]),
        )
        for one in metrics["policies"]
    ]
    r = metrics["imagined_real_pearson"]
    over = f"Pearson r of imagined and real success over {len(rows)} policies: "
    note = over + (
        f"{r['r']:.2f} [{r['lo']:.2f}, {r['hi']:.2f}]."
        if r
        else f"not computed: fewer than {LEAST_POLICIES}, or all alike."
    )
    headers = ("Policy", "Imagined success", "Real success", "Confirmed successes", "Outcome predicted correctly")
    return Table("Policies", headers, rows, note)


def trust_table(trust: Mapping[str, Any]) -> Table:
    """What each sign of trust is worth, the best one first, and what it is worth beyond the rollout's own score."""
    words = {**CONFIDENCE_SCORES, SCORE_AND_GRASP: TOGETHER}
    order = sorted(trust["auroc"].items(), key=lambda item: -item[1]["value"])
    over, within = trust["over_score"], trust["within"]
    rows: list[tuple[str, ...]] = []
    for name, found in order:
        alike, more = within[name], with_interval(over[name]) if name in over else ""
        inside = "no pair" if alike["value"] is None else f"{alike['value']:.3g} ({alike['pairs']} pairs)"
        rows.append((words[name], with_interval(found), inside, more))
    rows += [(words[name], "not measured", "", why) for name, why in trust["not_measured"].items()]
    note = (
        f"Area under the ROC curve among imagined successes, of which {with_rate(trust['imagined_successes'])} were confirmed by the "
        "same actions in the simulator; 0.5 is chance. 95 % intervals over rollouts. A score that only separates easy tasks or good "
        "policies from others is above 0.5, too; the next column compares pairs of one policy and task. A score is better than the own "
        "score where the whole interval of their difference is above 0."
    )
    return Table(
        "Trust", ("Confidence score", "AUROC", "Within policy and task", "More than the own score"), rows, note
    )


def speed_table(speeds: Mapping[str, Mapping[str, float]]) -> Table:
    """Imagined frames per second by batch."""
    rows = [(number, f"{found['latent']:.0f}", f"{found['decoded']:.0f}") for number, found in speeds.items()]
    headers = ("Rows at once", "Frames per second, not decoded", "Frames per second, decoded")
    return Table("Speed", headers, rows, "All rows together.")


def named(name: str, unit: str) -> str:
    """A quantity with its unit in brackets, if it has one."""
    return f"{name} ({unit})" if unit else name
