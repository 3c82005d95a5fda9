"""``worldrl gpu-check``: what only a GPU can show, in about 20 minutes: speed, utilisation, memory, recorded updates.

Each check runs in a process of its own and is a stage of the run: an interrupted run resumes with the first check that
has no numbers. A check that fails or is skipped stops no other, and is tried again by a rerun.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from worldrl.core.device import driver, hardware, resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.storage.jsonfile import plain
from worldrl.core.storage.log import console
from worldrl.core.storage.run import RunDirectory
from worldrl.evaluation.report.store import publish
from worldrl.jobs.environment.gpu_check_report import line, report_page
from worldrl.recipes.gpu.checks import Check, checks
from worldrl.recipes.gpu.outcome import (
    MEASURED,
    SCHEMA,
    SKIPPED,
    Card,
    GpuCheck,
    Outcome,
    outcome_from,
    write_gpu_check,
)
from worldrl.recipes.gpu.process import run_apart
from worldrl.recipes.gpu.rows import SIZES
from worldrl.recipes.run import open_run
from worldrl.settings import one_of, setting

Run = Callable[[Check, torch.device, float], Outcome]


@dataclass
class GpuCheckSettings:
    """Which checks, on which device."""

    run_dir: str = setting("runs/gpu-check", "where gpu_check.json, result.json and report.html are written")
    seed: int = setting(0, "recorded only: weights and noise of every check are fixed")
    device: str = setting("auto", "cpu, cuda, cuda:N or auto")
    size: str = setting("full", "full: published sizes, which need a GPU; tiny: the same code, on any machine")
    only: list[str] = setting([], "names of checks, or what they begin with; empty runs all")
    batches: list[int] = setting([], "batches that replace each world model's own; empty keeps them")
    minutes: float = setting(20.0, "after these minutes no further check starts; a rerun takes the rest")

    def __post_init__(self) -> None:
        """Check the names."""
        one_of("size", self.size, tuple(SIZES))
        checks(self.size, self.batches, self.only)


def main(settings: GpuCheckSettings, run_one: Run = run_apart) -> dict[str, Any]:
    """Run every check, print one line each, and write ``gpu_check.json``, ``result.json`` and ``report.html``.

    Returns the metrics: the content of ``gpu_check.json``.
    """
    device = resolve_device(settings.device)
    if device.type == "cpu" and settings.size == "full":
        raise SettingError(
            f"size=full on device={device} takes days; give preset=tiny to try the code, or device=cuda with a CUDA build of torch"
        )
    with open_run("gpu-check", settings) as run:
        found = GpuCheck(SCHEMA, settings.size, card(device), tuple(run_checks(settings, run, device, run_one)))
        path = write_gpu_check(run.path, found)
        metrics = plain(asdict(found), where="metrics", nonfinite="null")
        run.write_result(metrics, seed=settings.seed, device=str(device))
        page = publish(run, report_page(found))
        console().print(f"numbers: {path}\nreport: {page}", markup=False)
    return metrics


def run_checks(settings: GpuCheckSettings, run: RunDirectory, device: torch.device, run_one: Run) -> list[Outcome]:
    """Run what has no numbers yet."""
    wanted, ends = checks(settings.size, settings.batches, settings.only), time.monotonic() + 60 * settings.minutes
    found: list[Outcome] = []
    for number, check in enumerate(wanted, 1):
        stage = run.stage(check.name)
        if stage.finished:
            outcome = outcome_from(stage.summary)
        elif (left := ends - time.monotonic()) <= 0:
            reason = f"the {settings.minutes:g} minutes of this session were over; the same command takes the rest"
            outcome = Outcome(check.name, SKIPPED, 0.0, check.budget_s, reason=reason)
        else:
            outcome = run_one(check, device, min(check.budget_s, left))
            if outcome.status == MEASURED:
                stage.finish(asdict(outcome))
        found.append(outcome)
        console().print(f"{number}/{len(wanted)} {line(outcome)}", markup=False, highlight=False, soft_wrap=True)
    return found


def card(device: torch.device) -> Card:
    """What the checks run on; asked once, before or after them."""
    facts: Any = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return Card(
        device=str(device),
        name=hardware(str(device)),
        memory_gb=None if facts is None else facts.total_memory / 1e9,
        cuda=str(torch.version.cuda or ""),
        driver=driver(),
        torch=str(torch.__version__),
        cores=os.cpu_count() or 1,
    )
