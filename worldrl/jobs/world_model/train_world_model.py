"""``worldrl train-world-model``: datasets to a video simulator with success head, calibrated and gated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from worldrl.core.device import resolve_device, resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.image_fit import Fit, ImageFit
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.jsonfile import difference
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.run import RunDirectory
from worldrl.core.training.ranks import keep_silent, rank, rank_device
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset, assumed
from worldrl.evaluation.report.card import write_card
from worldrl.evaluation.world_model.gates import Gate, GateThresholds, measure_gates, require
from worldrl.recipes.gates_output import show_gates
from worldrl.recipes.run import open_run
from worldrl.recipes.sampler import Sampler
from worldrl.recipes.several import together
from worldrl.recipes.stages import calibrate, learn_world_model, split_held_out
from worldrl.recipes.tracking import Tracked
from worldrl.recipes.training_data import (
    note_events,
    offers,
    open_datasets,
    require_cameras,
    require_debounce,
    require_image_size,
    require_instructions,
)
from worldrl.recipes.visual_styles import refuse_test_styles
from worldrl.recipes.world_model.learn_wan import whole_wan
from worldrl.recipes.world_model.lineage import lineage
from worldrl.recipes.world_model.start import (
    BUNDLED,
    SCRATCH,
    SHIPPED,
    WORLD_MODEL,
    check_start,
    check_wan_start,
    check_weights,
    images_of,
    is_wan,
    require_trained_codec,
    starting_world_model,
    stored_config,
    transferred_world_model,
    weights_folder,
)
from worldrl.recipes.world_model.wan_settings import WanSettings
from worldrl.settings import fraction, one_of, setting
from worldrl.world_models.loading import BACKBONES, VIDEO, WAN, AnyVideoModel, open_world_model
from worldrl.world_models.video.codec import IdentityCodec
from worldrl.world_models.video.config import DynamicsKind, VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training_config import WorldModelTraining
from worldrl.world_models.wan.model import WanWorldModel

WAN_SIDES = 32
"""Images whose sides are multiples of this fit every published Wan autoencoder."""
DTYPES = {"float32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass
class TrainWorldModelSettings(Tracked):
    """What is learned from what."""

    run_dir: str = setting(
        "runs/train-world-model", "where everything is written; the model goes to run_dir/world_model"
    )
    seed: int = setting(0, "root of every random stream")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    data: list[str] = setting(["runs/collect/dataset"], "dataset folders; episodes of all are pooled")
    backbone: str = setting(VIDEO, "world model: video (worldrl's own transformer) or wan (published Wan weights)")
    start: str = setting(
        BUNDLED,
        f"weights to start from: {SHIPPED}, scratch (of wan: the published ones in wan.folder), or a world-model folder",
    )
    codec: str | None = setting(
        None,
        "with start=scratch: bundled or a world-model folder, whose trained frame codec is taken; null begins with none",
    )
    weights: str | None = setting(
        None,
        "with start=scratch: bundled or a world-model folder, also of another robot; what fits is taken, the rest is untrained",
    )
    model: VideoWorldModelConfig = field(
        default_factory=VideoWorldModelConfig, metadata={"only_with": "backbone=video"}
    )
    training: WorldModelTraining = field(default_factory=WorldModelTraining, metadata={"only_with": "backbone=video"})
    wan: WanSettings = field(default_factory=WanSettings, metadata={"only_with": "backbone=wan"})
    sampler: Sampler = field(default_factory=Sampler)
    held_out: float = setting(
        0.1, "share of the episodes kept apart, half to calibrate the success head, half for the gates"
    )
    target_precision: float = setting(0.85, "precision at which the success threshold is calibrated")
    gates: str = setting("stop", "what a failed gate does: stop or warn")
    thresholds: GateThresholds = field(default_factory=GateThresholds)
    store_dtype: str = setting("float32", "number type of the stored weights: float32, float16 or bfloat16")

    def __post_init__(self) -> None:
        """Check the ranges."""
        fraction("held_out", self.held_out)
        fraction("target_precision", self.target_precision)
        one_of("gates", self.gates, ("stop", "warn"))
        one_of("backbone", self.backbone, BACKBONES)
        one_of("store_dtype", self.store_dtype, tuple(DTYPES))
        if not self.data:
            raise SettingError("data must name at least one dataset folder; record one with worldrl collect")
        latents = self.backbone == VIDEO and self.model.dynamics.kind is DynamicsKind.flow_transformer
        if self.codec is not None and not (self.start == SCRATCH and latents):
            raise SettingError(
                f"codec={self.codec}: is for a flow transformer of backbone=video with start=scratch; leave it out otherwise"
            )
        if self.weights is not None:
            self._check_weights(self.weights)
        elif self.backbone == VIDEO and self.start == SCRATCH and self.codec is None:
            wanted = "training.codec_steps above 0 (2000 for 64 pixels), or codec=bundled or a world-model folder"
            require_trained_codec(self.model, self.training, wanted)
        if self.backbone != VIDEO and self.sampler != Sampler():
            raise SettingError("sampler: is of backbone=video; give wan.model.dynamics.sampling_steps")
        if self.sampler.steps is not None and self.training.flow_map_steps:
            raise SettingError("sampler.steps: a flow map's are training.flow_map_sampling_steps; give those instead")

    def _check_weights(self, weights: str) -> None:
        """Refuse weights of another robot where nothing would train them, or something else is the start."""
        if self.backbone != VIDEO or self.start != SCRATCH:
            raise SettingError(
                f"weights={weights}: is for backbone=video with start=scratch; give start={weights} to continue with "
                "weights of this robot"
            )
        if self.codec is not None:
            raise SettingError(f"codec={self.codec}: weights={weights} has a frame codec; give one of them")
        check_weights(weights, self.model, self.training, "training")

    @property
    def held(self) -> str | None:
        """The weights that training begins with; None from nothing."""
        return self.weights if self.start == SCRATCH else self.start


def main(settings: TrainWorldModelSettings) -> dict[str, Any]:
    """Learn, calibrate, measure the gates, save.

    Returns the metrics: last training numbers, every gate, rates with intervals. Raises GateError (a gate failed and
    ``gates=stop``; the model is saved all the same).
    """
    device = rank_device(resolve_device(settings.device))
    if settings.backbone == WAN:  # Accelerate starts its processes
        return _train(settings, device)
    with together(settings, device):
        return _train(settings, device)


def _train(settings: TrainWorldModelSettings, device: torch.device) -> dict[str, Any]:
    datasets = open_datasets(settings.data, wanted_images(settings))
    require_instructions(datasets)
    refuse_test_styles(dict(zip(settings.data, datasets, strict=True)))
    if rank() > 0:
        return _help(settings, datasets, device)
    if settings.backbone == VIDEO:
        check_start(settings.start, settings.model, settings.training)
    else:
        check_wan_start(settings.start, settings.wan)
    check_size(settings, datasets[0])
    require_cameras(datasets, wanted_cameras(settings))
    with open_run("train-world-model", settings) as run, MetricLog(run.path, settings.tracker) as log:
        model, training, calibration, held_out = _begin(settings, datasets, device)
        part = settings.wan.training if settings.backbone == WAN else settings.training
        numbers = learn_world_model(run.path, model, training, part, seed=settings.seed, log=log)
        if isinstance(model, WanWorldModel):
            model = whole_wan(model, run.path)
        if (stored := DTYPES[settings.store_dtype]) is not None:
            _round(model, stored)  # gate what is stored
        gates, metrics = _measure(model, calibration, held_out, settings, device)
        weights = [one for one in (settings.start, settings.codec, settings.weights) if one is not None]
        parents, learned = lineage(dict(zip(settings.data, datasets, strict=True)), weights)
        model.save(run.path / WORLD_MODEL, store_dtype=stored, parents=parents, learned=learned)
        assumptions = assumed(record for dataset in datasets for record in dataset.records)
        facts = {"training": numbers, "episodes": len(training), "assumed": list(assumptions)}
        return _finish(run, settings, gates, {**facts, **metrics}, device)


def _begin(
    settings: TrainWorldModelSettings, datasets: list[EpisodeDataset], device: torch.device
) -> tuple[AnyVideoModel, Sequence[Episode], list[Episode], list[Episode]]:
    """Return the model to train, and the episodes for training, calibration and gates."""
    config = settings.wan if settings.backbone == WAN else settings.model
    begun = {"seed": settings.seed, "device": device}
    if settings.weights is not None:
        model = transferred_world_model(settings.weights, settings.model, datasets[0].embodiment, **begun)
    else:
        model = starting_world_model(settings.start, config, datasets[0].embodiment, **begun)
    if isinstance(model, VideoWorldModel):
        settings.sampler.apply(model.config.dynamics)
        if settings.codec is not None:
            take_codec(model, settings.codec)
    if settings.backbone == WAN:
        # Its frames are large and its processes many: each decodes its own share, where clips are drawn.
        episodes = datasets[0].concatenate(*datasets[1:])
    else:
        scratch = Path(settings.run_dir)
        episodes = [episode for dataset in datasets for episode in dataset.load(scratch=scratch)]
    training, calibration, gates = split_held_out(episodes, settings.held_out, seed=settings.seed)
    longest = max(record.rows for dataset in datasets for record in dataset.records)
    require_debounce(model.config.outcome.debounce, longest)
    note_events(training, f"the {len(training)} training episodes")
    return model, training, calibration, gates


def wanted_images(settings: TrainWorldModelSettings) -> ImageFit:
    """The world model's images; a given ``fit`` replaces that of the weights to begin with."""
    codec = (settings.wan.model if settings.backbone == WAN else settings.model).codec
    if settings.held is None:
        return codec.images
    held = images_of(settings.held)
    return held if codec.fit is Fit.refuse else replace(held, fit=codec.fit)


def wanted_cameras(settings: TrainWorldModelSettings) -> list[str]:
    """Names of the images that the world model will imagine."""
    asked = (settings.wan.model if settings.backbone == WAN else settings.model).cameras
    return asked if settings.held is None or len(asked) > 1 else stored_config(settings.held).cameras


def check_size(settings: TrainWorldModelSettings, dataset: EpisodeDataset) -> None:
    """Refuse images of another size than the world model's, before any is decoded.

    Raises SettingError (naming both sizes and what to do).
    """
    codec, wan, fresh = settings.model.codec, settings.backbone == WAN, settings.held is None
    if settings.held is not None and is_wan(settings.held) != wan:
        return  # other weights than the backbone's are refused where they are opened
    field = "wan.model.codec.image_size" if wan else "model.codec.image_size"
    given = ["" if fresh else "start=scratch ", "" if fresh or wan else "training.codec_steps=2000 ", field, "={side}"]
    larger = offers(
        "".join(given),
        lambda side: side % WAN_SIDES == 0 if wan else replace(settings.model, codec=replace(codec, image_size=side)),
    )
    held_in = "weights" if settings.start == SCRATCH else "start"
    named = field if fresh else f"the size of {held_in}={settings.held}"
    fit = field.replace("image_size", "fit")
    require_image_size(dataset, wanted_images(settings).side, named, larger, fit=fit)


def take_codec(model: VideoWorldModel, source: str) -> None:
    """Give a world model the trained frame codec of another one.

    ``source`` is ``bundled`` or a folder. Raises ArtefactError (no world model there) and SettingError (its codec is of
    other sizes).
    """
    folder = weights_folder(source)
    other = open_world_model(folder, model.device)
    if not isinstance(other, VideoWorldModel) or isinstance(other.codec, IdentityCodec):
        raise SettingError(f"codec: the world model in {folder} has no trained frame codec")
    sizes = ("image_size", "patch", "channels", "width", "depth", "heads")
    own, its = ({name: getattr(m.config.codec, name) for name in sizes} for m in (model, other))
    if own != its:
        raise SettingError(f"codec: the one in {folder} differs from model.codec: {difference(its, own)}")
    model.codec.load_state_dict(other.codec.state_dict())


def _help(settings: TrainWorldModelSettings, datasets: list[EpisodeDataset], device: torch.device) -> dict[str, Any]:
    """Train along in another process than the first, which alone writes, measures and saves."""
    keep_silent()
    model, training, _, _ = _begin(settings, datasets, device)
    part = settings.wan.training if settings.backbone == WAN else settings.training
    learn_world_model(Path(settings.run_dir), model, training, part, seed=settings.seed, log=None)
    return {}


def _round(model: AnyVideoModel, dtype: torch.dtype) -> None:
    if isinstance(model, WanWorldModel):
        model.round_trained(dtype)
    else:
        model.to(dtype).float()


def _measure(
    model: AnyVideoModel,
    calibration: list[Episode],
    held_out: list[Episode],
    settings: TrainWorldModelSettings,
    device: torch.device,
) -> tuple[list[Gate], dict[str, Any]]:
    if not held_out:
        return [], {}
    part = settings.wan.training if settings.backbone == WAN else settings.training
    model.compute_dtype = resolve_dtype(part.dtype, device)
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
    write_card(run.path / WORLD_MODEL, [run.path / "result.json"] if gates else [])
    show_gates(gates, f"world model in {run.path / WORLD_MODEL}")
    if settings.gates == "stop":
        require(gates)
    return metrics
