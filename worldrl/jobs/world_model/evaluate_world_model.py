"""``worldrl evaluate-world-model``: one world model against the simulator, on episodes that it has never seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.device import peak_device_mb, peak_rss_mb, resolve_device, resolve_dtype, set_threads
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.observation import IMAGE, images_among
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.jsonfile import digest, read_json
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.storage.run import RunDirectory
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.report.store import publish
from worldrl.evaluation.world_model.battery import HORIZONS, check_horizons, drifts, summarise
from worldrl.evaluation.world_model.fvd import Fvd, check_videos
from worldrl.evaluation.world_model.lpips import Lpips
from worldrl.evaluation.world_model.measures import Instruments, Measures, measure
from worldrl.evaluation.world_model.probe import ProbeSettings
from worldrl.evaluation.world_model.rollout_error import whole_chunks
from worldrl.evaluation.world_model.throughput import imagined_frames_per_s
from worldrl.jobs.world_model.evaluation_probe import given_probe, trained_probes
from worldrl.jobs.world_model.evaluation_room import require_room
from worldrl.jobs.world_model.grasp_outcome import FIT, FITTED_HERE, NO_RULE, check_choice, fitted, made_for, open_rule
from worldrl.jobs.world_model.report import report_page, show
from worldrl.recipes.run import claim_inputs, open_run
from worldrl.recipes.sampler import Sampler, sampled
from worldrl.recipes.suites.reality import Processes, Reality, open_reality
from worldrl.recipes.tracking import Tracked
from worldrl.recipes.training_data import require_cameras, require_image_size
from worldrl.recipes.world_model.policy_rollouts import (
    PolicyRolloutConfig,
    check_policies,
    open_readers,
    policies_beside_reality,
)
from worldrl.recipes.world_model.start import BUNDLED, SCRATCH, SHIPPED, starting_world_model, weights_folder
from worldrl.recipes.world_model.tables import NO_WEIGHTS, Findings
from worldrl.recipes.world_model.unseen_episodes import continue_all, draw_scripts, open_unseen
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.agents.policy_folder import policy_facts, policy_place
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.rollout.real.execution import CONTINUATIONS, HOLD_STEPS, Script, true_runs
from worldrl.rollout.suites.names import EMBEDDED, SHADOWS, SUITE, SUITE_PYTHON, require_suite_name
from worldrl.rollout.suites.registry import find_suite
from worldrl.settings import non_negative, one_of, positive, setting
from worldrl.world_models.loading import AnyVideoModel

REPLAYS = "02-replays"  # Stage of the measured episodes
NO_PROBE = "probe.steps=0 trains no probe"
ONE_VIEW = "probe_from brings a probe of the main view; without it one is trained for each view"
NO_POSITIONS = "{suite} does not state where its objects are"


@dataclass
class EvaluateWorldModelSettings(Tracked):
    """Which world model, and on which episodes."""

    run_dir: str = setting("runs/evaluate-world-model", "where everything is written")
    seed: int = setting(0, "root of every random stream; also chooses the episodes")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    dtype: str = setting("auto", "number type of imagination: float32, bfloat16, or auto for the faster one")
    threads: int = setting(2, "torch threads")
    world_model: str = setting(BUNDLED, f"{SHIPPED}, or a world-model folder")
    data: list[str] = setting(["runs/collect/dataset"], "dataset folders, with episodes that it was not trained on")
    suite: str = setting(EMBEDDED, SUITE)
    python: str = setting("", SUITE_PYTHON)
    shadows: bool = setting(True, SHADOWS)
    timeout_s: float = setting(120.0, "longest silence of a simulator process before it is restarted (s)")
    episodes: int = setting(
        20, "largest number of evaluated episodes per task, drawn by the seed; the probe is trained on the others"
    )
    horizons: list[int] = setting(list(HORIZONS), "control steps at which closed-loop numbers are reported")
    continuation: str = setting(
        "retrace", "what follows an episode's recorded actions: retrace (back, then another episode's) or hold (still)"
    )
    sampler: Sampler = field(default_factory=Sampler)
    batch: int = setting(16, "episodes imagined at once, and measured between two saves")
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    probe_from: str | None = setting(
        None,
        "folder of a trained probe that reads the images (run_dir/stages/01-probe/probe of another run); null trains one",
    )
    policies: PolicyRolloutConfig = field(default_factory=PolicyRolloutConfig)
    speed_rows: list[int] = setting([1, 16, 64], "batches of rows whose imagined frames per second are timed")
    speed_chunks: int = setting(5, "chunks timed of each; the median counts")
    filmstrips: int = setting(3, "filmstrips each of the worst episodes, the best ones and false successes")
    idm: str | None = setting(
        None,
        "folder of an inverse dynamics (train-idm target=[command]): whether imagined rollouts show the commanded motion",
    )
    grasp: str | None = setting(
        None,
        "folder of an inverse dynamics of the grasp (train-idm grasp.steps=1500): whether the hand closes at the object in imagined rollouts",
    )
    grasp_rule: str | None = setting(
        None,
        "outcomes predicted by score and grasp together: file of a rule, or fit, which fits one on these episodes to run_dir/grasp_rule.json",
    )
    lpips: str | None = setting(None, "safetensors file with the weights of LPIPS (AlexNet); null: not computed")
    fvd: str | None = setting(
        None,
        "safetensors file with the weights of I3D (Kinetics-400), for the Fréchet video distance; null: not computed",
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("threads", "episodes", "batch", "speed_chunks", "timeout_s"):
            positive(name, getattr(self, name))
        require_suite_name(self.suite)
        non_negative("filmstrips", self.filmstrips)
        one_of("dtype", self.dtype, ("float32", "bfloat16", "auto"))
        one_of("continuation", self.continuation, CONTINUATIONS)
        for name in ("horizons", "speed_rows"):
            values = getattr(self, name)
            if not values or min(values) < 1 or len(set(values)) < len(values):
                raise SettingError(f"{name}: needs positive numbers, each once, got {values}; give '{name}=[8,32]'")
        if not self.data:
            raise SettingError("data must name at least one dataset folder; record one with worldrl collect")
        if self.world_model == SCRATCH:
            raise SettingError("world_model=scratch has learned nothing to measure; give bundled or a folder")
        if self.idm is not None and not self.policies.folders:
            raise SettingError(f"idm={self.idm} reads imagined rollouts of policies; give policies.folders=[...], too")
        check_choice(self.grasp_rule, self.grasp)
        if self.grasp is not None and not self.policies.folders and self.grasp_rule is None:
            raise SettingError(
                f"grasp={self.grasp} reads imagined rollouts of policies, or outcomes; give policies.folders=[...] or grasp_rule, too"
            )
        if self.probe_from is not None and not self.probe.steps:
            raise SettingError(
                f"probe_from={self.probe_from}: with probe.steps=0 no probe reads; leave one of them out"
            )
        if self.suite != EMBEDDED:
            self._check_external()

    def _check_external(self) -> None:
        if self.probe_from is not None:
            raise SettingError(f"probe_from={self.probe_from}: {NO_POSITIONS.format(suite=self.suite)}; leave it out")
        if not self.policies.workers:
            raise SettingError(f"policies.workers: suite={self.suite} runs in processes of its own; give 1 or more")


def main(settings: EvaluateWorldModelSettings) -> dict[str, Any]:
    """Measure, write ``result.json`` and ``report.html``, print the closing table.

    Returns the metrics, see ``docs/reference/metrics.md``.
    """
    device = resolve_device(settings.device)
    set_threads(settings.threads)
    suite = None if settings.suite == EMBEDDED else find_suite(settings.suite, settings.python)
    data = open_unseen(settings.data, weights_folder(settings.world_model), suite)
    model, opening = load_model(settings, data, device), settings.policies
    asked = Processes(opening.workers, opening.envs_per_worker, settings.timeout_s)
    shown = {"image_size": model.config.codec.image_size, "images": images_among(model.more)}
    with (
        open_run("evaluate-world-model", settings) as run,
        MetricLog(run.path, settings.tracker) as log,
        open_reality(suite, data.tasks(), asked, shadows=settings.shadows, **shown) as reality,
    ):
        inputs = inputs_of(settings, data)
        claim_inputs(run, inputs)
        check_policies(settings.policies.folders, model)
        chosen, others = draw_scripts(data, settings.episodes, spare(settings), seed=settings.seed)
        require_room(settings, model, len(chosen), control_steps(settings, model, chosen), tasks=len(data.tasks()))
        of = made_for(inputs, model)
        rule = open_rule(settings.grasp_rule, chosen, of)
        readers = open_readers(settings.idm, settings.grasp, model)
        instruments = make_instruments(settings, model, chosen)
        if settings.probe_from is not None:
            probes = {IMAGE: given_probe(Path(settings.probe_from), chosen, model.device)}
        else:
            continued = _continued(settings, model, others, settings.probe.horizon)
            probes = trained_probes(run, settings.probe, model, others, continued, log, seed=settings.seed)
        instruments = replace(instruments, probes=probes, grasp=readers.grasp)
        measures = measured(run, settings, model, chosen, instruments, reality)
        drift = drifts(measures, frame_stride=model.frame_stride, seed=settings.seed)
        names = probes[IMAGE].names if probes else ()
        metrics = {
            **summarise(measures, drift, settings.horizons, names=names, seed=settings.seed, rule=rule),
            **(fitted(run, measures, chosen, of) if settings.grasp_rule == FIT else {}),
            **policies_beside_reality(
                run, settings.policies, model, data.tasks(), reality, seed=settings.seed, readers=readers
            ),
            **circumstances(settings, model, data),
            **run.stage(REPLAYS).summary["suite"],
            **inputs,
            "seen": seen_facts(Learned.read(weights_folder(settings.world_model))),
        }
        run.write_result(metrics, seed=settings.seed, device=str(device))
        findings = Findings(metrics, measures, drift, settings.horizons, model.frame_stride, settings.filmstrips)
        publish(run, report_page(findings, seed=settings.seed, device=str(device)))
        show(findings, run.path)
    return metrics


def inputs_of(settings: EvaluateWorldModelSettings, data: EpisodeDataset) -> dict[str, Any]:
    """Say what exactly is measured: paths and hashes."""
    folder = weights_folder(settings.world_model)
    policies = settings.policies.folders
    inputs: dict[str, Any] = {
        "world_model": {"path": settings.world_model, "hash": artefact_hash(folder)},
        "data": {"path": list(settings.data), "hash": data.fingerprint},
    }
    if policies:
        inputs["policy"] = {"path": policies, "hash": [policy_facts(policy_place(policy)).hash for policy in policies]}
    if settings.probe_from is not None:
        inputs["probe"] = {"path": settings.probe_from, "hash": artefact_hash(Path(settings.probe_from))}
    if settings.idm is not None:
        inputs["idm"] = {"path": settings.idm, "hash": artefact_hash(Path(settings.idm))}
    if settings.grasp is not None:
        inputs["grasp"] = {"path": settings.grasp, "hash": artefact_hash(Path(settings.grasp))}
    if settings.grasp_rule not in (None, FIT):
        rule = read_json(Path(settings.grasp_rule), error=ArtefactError)
        inputs["grasp_rule"] = {"path": settings.grasp_rule, "hash": digest(rule)}
    return inputs


def seen_facts(learned: Learned) -> dict[str, Any]:
    """Say what the evaluated episodes were compared with, and whether that is all that the world model has seen."""
    return {"known": learned.complete, "datasets": len(learned.datasets), "episodes": len(learned.episodes)}


def load_model(settings: EvaluateWorldModelSettings, data: EpisodeDataset, device: torch.device) -> AnyVideoModel:
    """Load the world model, and check that data and horizons fit it.

    Raises SettingError: another robot or image size, a horizon between two of its frames, or a sampler that it has
    not.
    """
    model = starting_world_model(settings.world_model, None, data.embodiment, seed=settings.seed, device=device)
    model.eval()
    settings.sampler.apply(model.config.dynamics)
    require_image_size(data, model.config.codec.image_size, f"the size of world_model={settings.world_model}")
    require_cameras([data], images_among(model.more))
    check_horizons(settings.horizons, model.frame_stride)
    model.compute_dtype = resolve_dtype(settings.dtype, device)
    return model


def spare(settings: EvaluateWorldModelSettings) -> int:
    """How many episodes per task the probe may learn from."""
    trained = settings.probe.steps and settings.probe_from is None and settings.suite == EMBEDDED
    return settings.probe.episodes if trained else 0


def measured(
    run: RunDirectory,
    settings: EvaluateWorldModelSettings,
    model: AnyVideoModel,
    scripts: Sequence[Script],
    instruments: Instruments,
    reality: Reality,
) -> Measures:
    """Measure batch after batch; a batch that an earlier start has measured is read."""
    stage, files = run.stage(REPLAYS), []
    recorded, steps = max(map(len, scripts)), control_steps(settings, model, scripts)
    actions = _continued(settings, model, scripts, steps)
    swapped = np.roll(np.stack(actions)[:, : whole_chunks(recorded, model.chunk_length)], 1, axis=0)
    with Progress("closed loop", total=len(scripts), unit="episodes") as progress:
        for first in range(0, len(scripts), settings.batch):
            rows = slice(first, first + settings.batch)
            files.append(stage.folder / f"{first:05d}.npz")
            if not files[-1].exists():
                with reality.slots() as slots:
                    runs = list(true_runs(slots, scripts[rows], actions[rows]))
                measure(model, runs, swapped[rows], instruments, row=first).save(files[-1])
            progress.advance(len(scripts[rows]))
    if not stage.finished:
        facts = {"suite": reality.name, **reality.player().facts}
        stage.finish({"episodes": len(scripts), "control_steps": steps, "suite": facts})
    return Measures.join([Measures.load(file) for file in files])


def control_steps(settings: EvaluateWorldModelSettings, model: AnyVideoModel, scripts: Sequence[Script]) -> int:
    """How long each episode is followed: to the last horizon, and until its outcome is decided; whole chunks."""
    return whole_chunks(max(*settings.horizons, max(map(len, scripts)) + HOLD_STEPS), model.chunk_length)


def make_instruments(
    settings: EvaluateWorldModelSettings, model: AnyVideoModel, scripts: Sequence[Script]
) -> Instruments:
    """What measures an episode, but for the probe, which may have to be trained first.

    Raises ArtefactError (a file holds other weights than those of its network). Raises SettingError (FVD is asked for
    of too few clips).
    """
    outcome = model.config.outcome
    if settings.fvd is not None:
        check_videos(len(scripts), control_steps(settings, model, scripts) // model.frame_stride)
    return Instruments(
        rule=SuccessRule.of(outcome),
        probes={},
        lpips=None if settings.lpips is None else Lpips.load(Path(settings.lpips), model.device),
        fvd=None if settings.fvd is None else Fvd.load(Path(settings.fvd), model.device),
        seed=settings.seed,
    )


def _continued(
    settings: EvaluateWorldModelSettings, model: AnyVideoModel, scripts: Sequence[Script], steps: int
) -> list[NDArray[np.float32]]:
    return continue_all(
        scripts, steps, continuation=settings.continuation, embodiment=model.embodiment, seed=settings.seed
    )


def no_probe(settings: EvaluateWorldModelSettings) -> str | None:
    """Why no positions are read; None where some are."""
    if settings.suite != EMBEDDED:
        return NO_POSITIONS.format(suite=settings.suite)
    return None if settings.probe.steps or settings.probe_from else NO_PROBE


def circumstances(settings: EvaluateWorldModelSettings, model: AnyVideoModel, data: EpisodeDataset) -> dict[str, Any]:
    """Speed and memory, how long horizons were reached, and what was not computed."""
    layout = {"memory_frames": model.memory_frames, "frame_stride": model.frame_stride, "more": model.more}
    record = record_at(data[0], 0, source="throughput", **layout)
    reasons = {
        "lpips": NO_WEIGHTS.format(name="lpips") if settings.lpips is None else None,
        "fvd": NO_WEIGHTS.format(name="fvd") if settings.fvd is None else None,
        "probe_error_cm": no_probe(settings),
        "views_apart_cm": ONE_VIEW if settings.probe_from and images_among(model.more)[1:] else None,
        "outcome_alignment.with_grasp": {None: settings.grasp and NO_RULE, FIT: FITTED_HERE}.get(settings.grasp_rule),
    }
    return {
        "imagined_frames_per_s": {
            str(rows): imagined_frames_per_s(model, record, rows, chunks=settings.speed_chunks)
            for rows in settings.speed_rows
        },
        "peak_rss_mb": peak_rss_mb(),
        "peak_device_mb": peak_device_mb(model.device),
        "dtype": str(model.compute_dtype).removeprefix("torch."),
        "sampler": sampled(model.config.dynamics),
        "continuation": {"kind": settings.continuation, "hold_steps": HOLD_STEPS},
        "not_computed": {name: reason for name, reason in reasons.items() if reason is not None},
    }
