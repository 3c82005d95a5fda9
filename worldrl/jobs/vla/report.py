"""What the report page of ``worldrl train-vla`` shows, gathered from the run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from worldrl.core.storage.artefact import read_config
from worldrl.core.storage.log import read_metrics
from worldrl.core.storage.run import RunDirectory
from worldrl.evaluation.report.model import (
    Curve,
    DataUse,
    Filmstrip,
    Gate,
    ImaginedReal,
    Number,
    ReportData,
    Stage,
    SuccessRow,
    Video,
)
from worldrl.evaluation.report.page import POLICY_PAGE
from worldrl.evaluation.report.words import count, duration
from worldrl.jobs.vla.branch import branch_notes
from worldrl.jobs.vla.checks import exploited
from worldrl.jobs.vla.combining import from_before
from worldrl.jobs.vla.loop import Loop
from worldrl.jobs.vla.planning import planning_tables
from worldrl.methods.rl.improve import Improvement, hallucination
from worldrl.recipes.paired_films import pair_film, pair_strip
from worldrl.recipes.world_model.start import WORLD_MODEL

LIMITS = (
    "The scripted expert that records demonstrations and varied episodes reads the simulator's state; the policy sees "
    "the scene image, the commanded pose and the instruction.",
    "Collected episodes are real rollouts in the simulator, counted below; only the improvement itself is imagined.",
)

PLANNED_PAGE = (POLICY_PAGE[0], "measurements", *POLICY_PAGE[1:])
"""Sections of the page of a run with a planner."""


def report_page(loop: Loop, metrics: Mapping[str, Any]) -> ReportData:
    """Gather what the page shows from the finished stages."""
    before, after, comparison, rounds = (metrics[key] for key in ("before", "after", "comparison", "rounds"))
    lines = read_metrics(loop.run.path)
    return ReportData(
        title=f"train-vla on {', '.join(loop.plan.tasks)}",
        overall=SuccessRow("all tasks", "", before["success"], after["success"], comparison["paired"]),
        tasks=[
            SuccessRow(task, "", before["tasks"][task], after["tasks"][task], comparison["tasks"][task]["paired"])
            for task in loop.plan.tasks
        ],
        headline=[
            *headline(loop.run, metrics),
            *undone_rounds(rounds),
            *distilled_rounds(rounds),
            *keyframe_numbers(loop.plan.improvement, rounds),
            *staleness_numbers(rounds),
        ],
        sections=PLANNED_PAGE if "planning" in metrics else (),
        tables=planning_tables(metrics),
        imagined_real=imagined_beside_real(rounds, metrics["verify"]),
        curves=[*improvement_curves(rounds), *training_curves(lines)],
        gates=report_gates(rounds[-1]["gates"]["gates"]),
        filmstrips=filmstrips(loop),
        videos=videos(loop),
        stages=stage_times(loop),
        data_budget=data_budget(loop, metrics),
        seeds=[loop.plan.seed],
        provenance={
            "protocol": before["protocol"].get("hash", ""),
            "evaluation seed": str(loop.plan.evaluation.seed),
            "device": str(loop.plan.device),
        },
        notes=(
            *exploited_limit(loop, metrics),
            *assets_limit(metrics),
            *branch_notes(metrics),
            *loop.plan.suite.limits,
            *LIMITS,
        ),
    )


def exploited_limit(loop: Loop, metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """What must be said of a final policy whose imagined successes are too seldom real."""
    said = exploited(metrics["verify"]["precision"], loop.plan.confirmed)
    return (f"{said[0].upper()}{said[1:]}.",) if said else ()


def assets_limit(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """What must be said of a suite whose assets are not the benchmark's own."""
    if not metrics.get("assets_note"):
        return ()
    return (f"Assets: {metrics['assets_note']}. No number on this page is a {metrics['suite']} result.",)


def headline(run: RunDirectory, metrics: Mapping[str, Any]) -> list[Number]:
    """Numbers of the first screen."""
    precision = metrics["verify"]["precision"]
    last = metrics["rounds"][-1]["improve"]["imagined_after"]
    return [
        Number("Wall time", duration(run.wall_s)),
        Number(
            "Imagined success", round(100 * last["rate"]), "%", imagined=True, note="final policy, with exploration"
        ),
        Number(
            "Imagined successes confirmed",
            None if precision is None else round(100 * precision["rate"]),
            "%",
            note="same actions replayed in the simulator",
        ),
    ]


def undone_rounds(rounds: Sequence[Mapping[str, Any]]) -> list[Number]:
    """Rounds whose policy lost real success and was undone; nothing where all were kept."""
    found = [(number, part["accept"]) for number, part in enumerate(rounds, start=1) if "accept" in part]
    return [
        Number(
            f"Round {number} undone",
            round(100 * accept["paired"]["diff"]),
            "points",
            note=f"{accept['before']['k']} to {accept['after']['k']} of {accept['before']['n']} on training states",
        )
        for number, accept in found
        if not accept["kept"]
    ]


def distilled_rounds(rounds: Sequence[Mapping[str, Any]]) -> list[Number]:
    """Rounds after which one policy was distilled from two; nothing where no round was mixed."""
    found = [(number, part["distil"]) for number, part in enumerate(rounds, start=1) if was_distilled(part)]
    return [
        Number(
            f"Round {number} distilled",
            distil["after"]["k"],
            f"of {distil['after']['n']}",
            note=f"real successes on training states; {from_before(distil)}{'' if distil['kept'] else '; left out'}",
        )
        for number, distil in found
    ]


def was_distilled(part: Mapping[str, Any]) -> bool:
    """Whether a policy was distilled after the round."""
    return "after" in part.get("distil", {})


def keyframe_numbers(config: Improvement, rounds: Sequence[Mapping[str, Any]]) -> list[Number]:
    """How often each round's rollouts began at keyframes, and what decided that; nothing where none ever do."""
    if not config.p_keyframe:
        return []
    return [
        Number(
            f"Rollouts from keyframes, round {number}",
            round(100 * part["improve"]["p_keyframe"]),
            "%",
            imagined=True,
            note="as set" if config.keyframe_schedule == "fixed" else _measured_hallucination(part["gates"]),
        )
        for number, part in enumerate(rounds, start=1)
    ]


def staleness_numbers(rounds: Sequence[Mapping[str, Any]]) -> list[Number]:
    """How fast each round imagined while it learned, and how far the batches lagged; nothing without a lag."""
    found = []
    for number, part in enumerate(rounds, start=1):
        if not (pace := part["improve"].get("staleness")):
            continue
        lags = [
            f"lag {lag}: {row['batches']} batches, mean ratio {row['ratio']:.3f}, KL {row['kl']:.3f} per decision"
            for lag, row in pace["lags"].items()
            if row["ratio"] is not None
        ]
        waited = f"the learner waited {100 * pace['waited_wall_s'] / pace['wall_s']:.0f} % of the time"
        speed = round(pace["imagined_frames"] / pace["wall_s"], 1)
        note = "; ".join([waited, *lags])
        found.append(Number(f"Imagined frames per second, round {number}", speed, "/s", imagined=True, note=note))
    return found


def _measured_hallucination(gates: Mapping[str, Any]) -> str:
    initial, keyframe = gates["policy"]["precision"], gates["keyframes"] and gates["keyframes"]["precision"]
    wrong = [f"{100 * hallucination(rate):.0f} %" if rate else "unknown, as if all" for rate in (initial, keyframe)]
    return f"imagined successes that failed when executed: from initial states {wrong[0]}, from keyframes {wrong[1]}"


def imagined_beside_real(rounds: Sequence[Mapping[str, Any]], verified: Mapping[str, Any]) -> list[ImaginedReal]:
    """Imagined and real success of the same actions, of each round's first policy and of the final one, then by task."""
    measured = [part["gates"]["policy"] for part in rounds] + [verified]
    tasks = verified.get("tasks", {}) if len(verified.get("tasks", {})) > 1 else {}
    return [
        *(
            _imagined_real(f"after {count(number, 'round')}" if number else "before the first round", found)
            for number, found in enumerate(measured)
        ),
        *(_imagined_real(f"after the last round, {task}", found) for task, found in tasks.items()),
    ]


def _imagined_real(label: str, found: Mapping[str, Any]) -> ImaginedReal:
    return ImaginedReal(label, found.get("imagined"), found.get("same_actions_real"), found.get("exploitability"))


def improvement_curves(rounds: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Imagined success over iterations, one line per round."""
    series = {f"round {n}": list(enumerate(part["improve"]["history"])) for n, part in enumerate(rounds, start=1)}
    return [
        Curve(
            "Imagined success during improvement",
            "batch of rollouts",
            "success",
            series,
            imagined=tuple(series),
            percent=True,
        )
    ]


def training_curves(lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Losses of the supervised trainings; one line per round of the world model."""
    cloning = {"token cross-entropy": _points(lines, "behaviour-cloning", "loss")}
    rounds = sorted({line["series"] for line in lines if line["series"].startswith("dynamics-")})
    losses = {
        name.replace("dynamics-", "round "): _points(lines, name, "wm/flow_loss") or _points(lines, name, "wm/edm_loss")
        for name in rounds
    }
    curves = [
        Curve("Behaviour cloning", "step", "nats per token", cloning),
        Curve("World model: dynamics", "step", "weighted squared error", losses),
    ]
    return [curve for curve in curves if any(curve.series.values())]  # a policy that was given was not cloned here


def _points(lines: Sequence[Mapping[str, Any]], series: str, key: str) -> list[tuple[float, float]]:
    return [(line["step"], line["values"][key]) for line in lines if line["series"] == series and key in line["values"]]


def report_gates(gates: Sequence[Mapping[str, Any]]) -> list[Gate]:
    """The last round's gates."""
    known = {item.name for item in fields(Gate)}
    return [Gate(**{key: value for key, value in gate.items() if key in known}) for gate in gates]


def _replays(loop: Loop) -> list[tuple[str, np.ndarray, np.ndarray]]:
    path = loop.run.stage(f"round-{loop.plan.rounds}-3-gates").folder / "replays.npz"
    if not path.exists():
        return []
    with np.load(path, allow_pickle=False) as data:
        return list(zip(data["names"].tolist(), data["real"], data["imagined"], strict=True))


def _frame_stride(loop: Loop) -> int:
    folder = loop.run.stage(f"round-{loop.plan.rounds}-2-world-model").folder / WORLD_MODEL
    return read_config(folder)["dynamics"]["frame_stride"]


def filmstrips(loop: Loop) -> list[Filmstrip]:
    """Held-out episodes, real above imagined, the same actions."""
    caption, stride = "Held-out episode; the model saw the first frame and the actions.", _frame_stride(loop)
    return [
        pair_strip(name, caption, real, imagined, stride=stride, first=stride)
        for name, real, imagined in _replays(loop)
    ]


def videos(loop: Loop) -> list[Video]:
    """The same episodes as side-by-side videos, and the filmed evaluations."""
    fps = loop.plan.suite.embodiment.control_hz / _frame_stride(loop)
    caption = "Left the recording, right the world model."
    found = [
        Video(f"{name}: real | imagined", caption, pair_film(real, imagined, fps))
        for name, real, imagined in _replays(loop)
    ]
    for label, stage in (("before", "03-before"), ("after", "05-after")):
        for path in sorted((loop.run.stage(stage).folder / "videos").glob("*.mp4")):
            found.append(Video(f"{label}: {path.stem}", "Real rollout of the evaluation.", path.read_bytes()))
    return found


def stage_times(loop: Loop) -> list[Stage]:
    """Wall time of each stage, from the run's clock at their ends."""
    ends = []
    for folder in (loop.run.path / "stages").iterdir():
        stage = loop.run.stage(folder.name)
        if stage.finished:
            ends.append((stage.summary["run_wall_s"], folder.name))
    times, earlier = [], 0.0
    for end, name in sorted(ends):
        times.append(Stage(name, end - earlier))
        earlier = end
    return times


def data_budget(loop: Loop, metrics: Mapping[str, Any]) -> list[DataUse]:
    """Real episodes, and what they were used for."""
    demos = loop.run.stage("01-demonstrations").summary["success"]
    uses = [DataUse("demonstrations", sum(rate["n"] for rate in demos.values()), "supervised policy, world model")]
    for number, part in enumerate(metrics["rounds"], start=1):
        for source, rate in part["collection"]["success"].items():
            uses.append(DataUse(f"round {number}: {source}", rate["n"], "world model, keyframes, gates"))
        if "accept" in part:
            uses.append(
                DataUse(f"round {number}: both policies", 2 * part["accept"]["before"]["n"], "keep or undo the round")
            )
        if was_distilled(part):
            uses.append(
                DataUse(f"round {number}: distilled policy", part["distil"]["after"]["n"], "keep or leave it out")
            )
    sides = "before and after, alone and with the planner" if "planning" in metrics else "before and after"
    count = (4 if "planning" in metrics else 2) * metrics["before"]["success"]["n"]
    uses.append(DataUse("evaluation", count, f"{sides}, the same states"))
    return uses
