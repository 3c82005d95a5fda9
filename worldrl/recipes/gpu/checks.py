"""The checks of ``worldrl gpu-check``: a name, a time budget and one small function each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import torch

from worldrl.core.errors import SettingError, nearest
from worldrl.methods.offline.updates import COMPILED, GRAPHED
from worldrl.recipes.gpu.learning import measure_grpo, measure_updates
from worldrl.recipes.gpu.outcome import Number
from worldrl.recipes.gpu.rows import FULL, IMAGINE, LORA, TRAIN, Row, measure
from worldrl.recipes.gpu.sharded_resume import measure_resume
from worldrl.recipes.gpu.warp import measure_warp
from worldrl.world_models.video.config import DynamicsKind

FLOW, UNET = DynamicsKind.flow_transformer, DynamicsKind.edm_unet
SMALL_WAN, LARGE_WAN = "Wan2.1-T2V-1.3B", "Wan2.2-TI2V-5B"
Measure = Callable[[torch.device], dict[str, Number]]


class SkippedError(Exception):
    """A check does not apply here; its text is the reason."""


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str
    budget_s: float
    measure: Measure  # returns numbers, or raises


# -- world models ----------------------------------------------------------------------------------------------------

ROWS: Mapping[str, Sequence[tuple[Row, float]]] = {
    "full": (
        *((Row("cpu", IMAGINE, 64, dtype, kind), 40) for kind in (FLOW, UNET) for dtype in ("float32", "bfloat16")),
        *((Row("gpu", IMAGINE, 64, dtype, kind), 50) for kind in (FLOW, UNET) for dtype in ("float32", "bfloat16")),
        *((Row("gpu", IMAGINE, batch), 50) for batch in (1, 512)),
        (Row("gpu", TRAIN, 128, "float32"), 80),
        (Row("gpu", TRAIN, 128), 60),
        (Row("gpu", TRAIN, 128, compiled=True), 180),
        (Row("gpu", TRAIN, 32, kind=UNET), 60),
        (Row("gpu", TRAIN, 32, kind=UNET, compiled=True), 180),
        (Row(SMALL_WAN, IMAGINE, 1, "float32"), 80),
        *((Row(SMALL_WAN, IMAGINE, batch), 80) for batch in (1, 4)),
        (Row(SMALL_WAN, LORA, 8), 90),
        (Row(SMALL_WAN, LORA, 8, compiled=True), 180),
        (Row(SMALL_WAN, FULL, 8), 90),
        (Row(LARGE_WAN, IMAGINE, 1), 90),
        (Row(LARGE_WAN, LORA, 2), 90),
    ),
    "tiny": (
        (Row("tiny", IMAGINE, 2), 120),
        *((Row("tiny", IMAGINE, 2, "float32", kind), 120) for kind in (FLOW, UNET)),
        (Row("tiny", TRAIN, 2, "float32"), 120),
        (Row(SMALL_WAN, IMAGINE, 2, "float32"), 120),
        (Row(SMALL_WAN, LORA, 2, "float32"), 120),
    ),
}
"""What of world models is measured, and the seconds that each may take."""


def row_name(row: Row) -> str:
    """Name a row, such as ``imagine-gpu-flow_transformer-bfloat16-64``."""
    model = row.model.lower() if row.wan else f"{row.model}-{row.kind.value}"
    words = (row.work.replace(" ", "-"), model, row.dtype, str(row.batch), "compiled" if row.compiled else "")
    return "-".join(filter(None, words))


def measure_row(row: Row, size: str, device: torch.device) -> dict[str, Number]:
    """Measure a world model, where its packages are installed."""
    if row.wan:
        missing = [name for name in ("diffusers", "peft", "accelerate") if find_spec(name) is None]
        if missing:
            raise SkippedError(f"{', '.join(missing)} not installed; pip install -c constraints.txt -e '.[wan]'")
    return measure(row, size, device)


# -- the rest --------------------------------------------------------------------------------------------------------


def check_updates(kind: str, size: str, device: torch.device) -> dict[str, Number]:
    """Compiled or graphed offline-RL updates beside eager ones."""
    if kind == COMPILED and device.type == "cpu":
        raise SkippedError("compiling on a CPU takes minutes, and shows nothing about a GPU")
    try:
        return measure_updates(kind, size, device)
    except SettingError as error:
        raise SkippedError(str(error)) from error


def check_fsdp_resume(size: str, device: torch.device) -> dict[str, Number]:
    """A training that is sharded (FSDP2), stopped and resumed."""
    processes = torch.cuda.device_count() if device.type == "cuda" else 2
    if processes < 2:
        raise SkippedError("sharding needs two GPUs of one machine")
    return measure_resume(size, device, processes)


def checks(size: str, batches: Sequence[int] = (), only: Sequence[str] = ()) -> list[Check]:
    """All checks of a size, or those whose names begin with one of ``only``.

    ``batches`` replaces the batch of each world-model row by several. Raises SettingError: no name begins so.
    """
    rows = [(replace(row, batch=n), budget) for row, budget in ROWS[size] for n in batches or (row.batch,)]
    found = [Check(row_name(row), budget, partial(measure_row, row, size)) for row, budget in dict(rows).items()]
    found += [
        Check("grpo-iteration", 120, partial(measure_grpo, size)),
        Check("updates-compiled", 180, partial(check_updates, COMPILED, size)),
        Check("updates-graphed", 60, partial(check_updates, GRAPHED, size)),
        Check("mujoco-warp", 240, partial(measure_warp, size)),
        Check("fsdp-resume", 240, partial(check_fsdp_resume, size)),
    ]
    for name in only:
        if not any(check.name.startswith(name) for check in found):
            raise SettingError(f"only: no check begins with {name!r}{nearest(name, [c.name for c in found])}")
    return [check for check in found if not only or check.name.startswith(tuple(only))]
