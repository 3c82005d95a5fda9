"""``worldrl train-world-model``: datasets to a video simulator with success head, calibrated and gated."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.table import Table

from worldrl.core.artefact import artefact_hash
from worldrl.core.device import resolve_device, resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.log import MetricLog, console
from worldrl.core.run import RunDirectory
from worldrl.core.types import Episode
from worldrl.data.dataset import EpisodeDataset
from worldrl.evaluation.gates import Gate, GateThresholds, measure_gates, require
from worldrl.jobs.opening import open_run
from worldrl.jobs.stages import (
    BUNDLED,
    WORLD_MODEL,
    calibrate,
    learn_world_model,
    split_held_out,
    starting_world_model,
)
from worldrl.settings import fraction, one_of, setting
from worldrl.world_models.config import VideoWorldModelConfig
from worldrl.world_models.training import WorldModelTraining
from worldrl.world_models.video import VideoWorldModel

DTYPES = {"float32": None, "float16": torch.float16}


@dataclass
class TrainWorldModelSettings:
    """What is learned from what."""

    run_dir: str = setting(
        "runs/train-world-model", "where everything is written; the model goes to run_dir/world_model"
    )
    seed: int = setting(0, "root of every random stream")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    data: list[str] = setting(["runs/collect/dataset"], "dataset folders; episodes of all are pooled")
    start: str = setting(BUNDLED, "weights to begin with: bundled, scratch, or a world-model folder")
    model: VideoWorldModelConfig = field(default_factory=VideoWorldModelConfig)
    training: WorldModelTraining = field(default_factory=WorldModelTraining)
    held_out: float = setting(
        0.1, "share of the episodes kept apart, half to calibrate the success head, half for the gates"
    )
    target_precision: float = setting(0.85, "precision at which the success threshold is calibrated")
    gates: str = setting("stop", "what a failed gate does: stop or warn")
    thresholds: GateThresholds = field(default_factory=GateThresholds)
    store_dtype: str = setting("float32", "number type of the stored weights: float32 or float16")

    def __post_init__(self) -> None:
        """Check the ranges."""
        fraction("held_out", self.held_out)
        fraction("target_precision", self.target_precision)
        one_of("gates", self.gates, ("stop", "warn"))
        one_of("store_dtype", self.store_dtype, tuple(DTYPES))
        if not self.data:
            raise SettingError("data must name at least one dataset folder; record one with worldrl collect")


def main(settings: TrainWorldModelSettings) -> dict[str, Any]:
    """Learn, calibrate, measure the gates, save.

    Args:
        settings: what to learn.

    Returns:
        The metrics: last training numbers, every gate, rates with intervals.

    Raises:
        GateError: a gate failed and ``gates=stop``; the model is saved all the same.
    """
    device = resolve_device(settings.device)
    datasets = [EpisodeDataset.open(folder) for folder in settings.data]
    with open_run("train-world-model", settings) as run, MetricLog(run.path) as log:
        model = starting_world_model(
            settings.start, settings.model, datasets[0].embodiment, seed=settings.seed, device=device
        )
        episodes = [episode for dataset in datasets for episode in dataset.load()]
        training, calibration, held_out = split_held_out(episodes, settings.held_out, seed=settings.seed)
        numbers = learn_world_model(run.path, model, training, settings.training, seed=settings.seed, log=log)
        if settings.store_dtype == "float16":
            model.half().float()  # gate what is stored
        gates, metrics = _measure(model, calibration, held_out, settings, device)
        parents = [
            {"path": folder, "hash": dataset.fingerprint}
            for folder, dataset in zip(settings.data, datasets, strict=True)
        ]
        model.save(run.path / WORLD_MODEL, store_dtype=DTYPES[settings.store_dtype], parents=parents)
        return _finish(run, settings, gates, {"training": numbers, "episodes": len(training), **metrics}, device)


def _measure(
    model: VideoWorldModel,
    calibration: list[Episode],
    held_out: list[Episode],
    settings: TrainWorldModelSettings,
    device: torch.device,
) -> tuple[list[Gate], dict[str, Any]]:
    if not held_out:
        return [], {}
    model.compute_dtype = resolve_dtype(settings.training.dtype, device)
    rule = calibrate(model, calibration, target_precision=settings.target_precision, seed=settings.seed)
    gates, metrics = measure_gates(model, held_out, rule, settings.thresholds, seed=settings.seed)
    return gates, {"held_out_episodes": len(held_out), "threshold": rule.threshold, **metrics}


def _finish(
    run: RunDirectory,
    settings: TrainWorldModelSettings,
    gates: list[Gate],
    metrics: dict[str, Any],
    device: torch.device,
) -> dict[str, Any]:
    metrics |= {"gates": [asdict(gate) for gate in gates], "hash": artefact_hash(run.path / WORLD_MODEL)}
    run.write_result(metrics, seed=settings.seed, device=str(device))
    show_gates(gates, f"world model in {run.path / WORLD_MODEL}")
    if settings.gates == "stop":
        require(gates)
    return metrics


def show_gates(gates: list[Gate], title: str) -> None:
    """Print the gates as a table."""
    table = Table(title=title)
    for heading in ("gate", "value", "needs", "", "meaning"):
        table.add_column(heading)
    for gate in gates:
        verdict = "passed" if gate.passed else "[bold]failed[/bold]"
        table.add_row(gate.name, str(gate), f"{gate.threshold:.3g}", verdict, gate.meaning)
    console().print(table)
