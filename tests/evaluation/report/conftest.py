"""A realistic, made-up run: enough of everything to show, and small enough to render in a moment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

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

Z = 1.959963984540054


def wilson(k: int, n: int) -> dict[str, Any]:
    """Wilson's interval, written out here so that the page's numbers have an independent source."""
    p = k / n
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return {"k": k, "n": n, "rate": p, "lo": max(0.0, centre - half), "hi": min(1.0, centre + half), "method": "wilson"}


def pairing(n: int, both: int, only_a: int, only_b: int) -> dict[str, Any]:
    """A paired comparison with a normal interval and an exact McNemar p-value."""
    diff = (only_b - only_a) / n
    half = Z * math.sqrt(max(only_a + only_b - (only_b - only_a) ** 2 / n, 0)) / n
    m, k = only_a + only_b, min(only_a, only_b)
    p = min(1.0, 2 * sum(math.comb(m, i) for i in range(k + 1)) / 2**m)
    return {
        "n": n, "both": both, "only_a": only_a, "only_b": only_b, "diff": diff,
        "lo": max(-1.0, diff - half), "hi": min(1.0, diff + half), "p": p,
    }  # fmt: skip


def success_row(task: str, kind: str, n: int, both: int, only_a: int, only_b: int) -> SuccessRow:
    return SuccessRow(task, kind, wilson(both + only_a, n), wilson(both + only_b, n), pairing(n, both, only_a, only_b))


def frames(steps: int, wobble: float, seed: int) -> NDArray[np.uint8]:
    """A cube that is carried over a table, 64 × 64; ``wobble`` makes it an imagined one."""
    rng = np.random.default_rng(seed)
    shots = np.full((steps, 64, 64, 3), (201, 196, 186), np.uint8)
    shots[:, 40:] = (158, 124, 92)
    for t, shot in enumerate(shots):
        x, lift = 10 + round(36 * t / max(steps - 1, 1)), round(14 * math.sin(math.pi * t / max(steps - 1, 1)))
        y = 44 - lift + round(wobble * rng.normal())
        shot[y : y + 10, x : x + 10] = (196, 52, 44)
        shot[max(0, y - 16) : y + 2, x + 2 : x + 8] = (70, 78, 90)
        shot[48:60, 50:62, 1] = 140
    noise = rng.normal(0, 4 * wobble, shots.shape) if wobble else 0
    return np.clip(shots + noise, 0, 255).astype(np.uint8)


def curve_points(seed: int, steps: int, start: float, end: float, noise: float) -> list[tuple[float, float]]:
    rng = np.random.default_rng(seed)
    decay = [end + (start - end) * math.exp(-4 * i / steps) for i in range(steps)]
    return [(float(i), float(y + noise * rng.normal())) for i, y in enumerate(decay)]


def example() -> ReportData:
    tasks = [
        success_row("PickRedCube", "object identity", 100, 44, 4, 24),
        success_row("PushBowlToPlate", "spatial relation", 100, 39, 6, 21),
        success_row("OpenDrawerThenPlaceTheBlueCylinder", "long two-step", 100, 22, 11, 14),
    ]
    practice = curve_points(1, 40, 0.42, 0.78, 0.02)
    real = [(0.0, 0.42), (10.0, 0.51), (20.0, 0.57), (39.0, 0.547)]
    return ReportData(
        title="train-vla, preset cpu",
        overall=success_row("All tasks", "", 300, 105, 21, 59),
        tasks=tasks,
        headline=[
            Number("Wall time", 14.3, "min", note="two cores, no GPU"),
            Number("Peak memory", 3.41, "GB"),
            Number("Success after training", 0.78, imagined=True, note="1,024 imagined rollouts"),
            Number("Real episodes used", 120, note="80 demonstrations, 40 rollouts"),
        ],
        imagined_real=[
            ImaginedReal("Supervised policy", wilson(118, 256), wilson(126, 300)),
            ImaginedReal("After round 1", wilson(177, 256), wilson(151, 300)),
            ImaginedReal("After round 2", wilson(200, 256), wilson(164, 300)),
        ],
        curves=[
            Curve(
                "Success while practising", "GRPO iteration", "success rate",
                {"practice": practice, "simulator": real},
                {
                    "practice": [(x, y - 0.05, y + 0.05) for x, y in practice],
                    "simulator": [(x, y - 0.055, y + 0.055) for x, y in real],
                },
                imagined=["practice"], percent=True,
            ),
            Curve("World model loss", "optimiser step", "flow-matching loss", {"training": curve_points(2, 3000, 0.9, 0.12, 0.03), "held out": [(100 * x, y) for x, y in curve_points(3, 30, 0.9, 0.15, 0.01)]}),
            Curve("Policy imitation", "epoch", "cross-entropy, nats", {"held-out demonstrations": curve_points(4, 12, 2.3, 1.1, 0.02)}),
            Curve(
                "Reward per task", "GRPO iteration", "mean reward",
                {t.task: curve_points(5 + i, 40, 0.3 + 0.1 * i, 0.5 + 0.1 * i, 0.02) for i, t in enumerate(tasks)},
                imagined=[t.task for t in tasks[:1]],
            ),
        ],
        gates=[
            Gate("psnr", 24.7, 22.0, True, "Closed-loop image error after 32 control steps (dB), held-out episodes.", "Train longer."),
            Gate("action_swap_ratio", 2.31, 1.5, True, "Error with another episode's actions over the error with the true ones.", "The model ignores its actions."),
            Gate("precision", 0.861, 0.9, False, "Share of imagined successes that were real.", "Collect more near misses or raise outcome.threshold."),
            Gate("recall", None, 0.8, None, "Share of successes that the model imagines too.", "Collect more successes."),
        ],
        filmstrips=[
            Filmstrip("PickRedCube, initial state 12", "The same actions in both worlds; success at step 56 in both.", {"real": frames(8, 0, 0), "imagined": frames(8, 1.2, 1)}, [f"step {8 * i}" for i in range(8)]),
            Filmstrip("PushBowlToPlate, initial state 3", "Imagination declared success at step 40 and stopped.", {"real": frames(8, 0, 2), "imagined": frames(6, 2.0, 3)}, [f"step {8 * i}" for i in range(8)]),
        ],
        videos=[Video("PickRedCube", "Real on the left, imagined on the right.", b"\x00\x00\x00\x18ftypmp42" + bytes(400))],
        stages=[Stage("01 demonstrations", 41.2), Stage("02 policy", 95.0, "from 80 demonstrations"), Stage("03 world model", 4.4), Stage("04 gates", 22.0), Stage("05 practice", 388.5), Stage("06 evaluation", 307.0)],
        data_budget=[DataUse("Expert demonstrations", 80, "supervised policy, world model"), DataUse("Policy rollouts", 40, "world model, success head, keyframes"), DataUse("Held-out rollouts", 24, "validation gates only"), DataUse("Evaluation", 600, "300 before, 300 after; never trained on")],
        seeds=[0],
        configuration={"preset": "cpu", "policy": {"width": 192, "chunk": 8, "lr": 3e-4}, "grpo": {"groups": 8, "clip": [0.2, 0.28], "kl": None, "filter": True}},
        versions={"worldrl": "0.1.0", "torch": "2.13.0", "mujoco": "3.9.0"},
        provenance={"command": "worldrl train-vla seed=0", "config_hash": "5be1f00d", "protocol_hash": "c0ffee12", "device": "cpu, 2 threads"},
        notes=["One training seed: the interval covers the evaluation's chance, not the training's.", "Objects are at least 8 pixels wide; smaller ones were not tried."],
    )  # fmt: skip


@pytest.fixture
def data() -> ReportData:
    return example()


@pytest.fixture
def row() -> Any:
    """Maker of success rows: ``row(task, kind, n, both, only_a, only_b)``."""
    return success_row


@pytest.fixture
def rate() -> Any:
    """Maker of Wilson rates: ``rate(k, n)``."""
    return wilson


@pytest.fixture
def paired() -> Any:
    """Maker of paired comparisons: ``paired(n, both, only_a, only_b)``."""
    return pairing
