"""``worldrl rank``: which of several policies is best, by their imagined success from recorded start frames.

No simulator takes part. The world model is first measured on recorded episodes that it has not learned from; a model whose
gates fail, or whose success head these episodes cannot test, ranks nothing.

Every policy starts from the same frames with the same noise, so comparisons are paired and do not depend on the order of
``policies``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.device import resolve_device, resolve_dtype
from worldrl.core.errors import GateError, SettingError
from worldrl.core.observation import images_among
from worldrl.core.rng import numpy_stream
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.run import RunDirectory, Stage
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset, assumed
from worldrl.evaluation.policy.imagined import Start
from worldrl.evaluation.policy.ranking import Outcomes, labels_of, ranked, read_outcomes
from worldrl.evaluation.report.store import publish
from worldrl.evaluation.world_model.gates import Gate, GateThresholds, measure_gates, require
from worldrl.jobs.policy.rank_report import report_page, show
from worldrl.recipes.gates_output import show_gates
from worldrl.recipes.imagined_success import Draws, draw_starts, imagined_success, imagined_summary, longest, untested
from worldrl.recipes.run import ENGINE, WITH_RAY, RayOptions, check_engine, claim_inputs, crew_of, open_run
from worldrl.recipes.side_by_side import run_tasks
from worldrl.recipes.training_data import open_datasets, require_cameras, require_image_size
from worldrl.recipes.world_model.policy_rollouts import check_policies
from worldrl.recipes.world_model.start import BUNDLED, SCRATCH, SHIPPED, images_of, weights_folder
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.agents.policy_folder import policy_facts, policy_place
from worldrl.rollout.real.specs import scene_digest
from worldrl.settings import non_negative, one_of, positive, setting
from worldrl.world_models.loading import AnyVideoModel, open_world_model


@dataclass
class RankSettings:
    """Which policies, in which world model, from which recordings."""

    run_dir: str = setting("runs/rank", "where everything is written")
    seed: int = setting(0, "root of every random stream; also chooses the episodes")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    dtype: str = setting("float32", "number type of imagination: float32, bfloat16 or auto")
    world_model: str = setting(BUNDLED, f"{SHIPPED}, or a world-model folder")
    policies: list[str] = setting(
        [], "two or more policies: folders of worldrl's or lerobot's, or addresses ws://HOST:PORT"
    )
    data: list[str] = setting(["runs/collect/dataset"], "dataset folders; imagined rollouts begin at the first frames")
    held_out: list[str] = setting([], "dataset folders that the gates are measured on; empty takes those of data")
    outcomes: str | None = setting(
        None, "CSV file of real outcomes, policy,episode,success: how imagined success follows real success"
    )
    episodes: int = setting(50, "start frames per task at most, drawn by the seed")
    steps: int = setting(0, "control steps to imagine; 0 takes each task's longest recorded episode")
    temperature: float | None = setting(None, "the policies' sampling temperature; null is greedy")
    batch: int = setting(32, "rollouts imagined at once, and between two saves")
    workers: int = setting(
        0, "policies imagined at once, one thread each; 0 imagines one after another in this process"
    )
    engine: str = setting("local", ENGINE)
    ray: RayOptions = field(default_factory=RayOptions, metadata={"only_with": WITH_RAY})
    gate_episodes: int = setting(60, "episodes that the gates are measured on at most, drawn by the seed")
    gates: str = setting("stop", "what a failed gate does: stop or warn")
    thresholds: GateThresholds = field(default_factory=GateThresholds)

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("episodes", "batch", "gate_episodes"):
            positive(name, getattr(self, name))
        non_negative("steps", self.steps)
        non_negative("workers", self.workers)
        check_engine(self)
        one_of("dtype", self.dtype, ("float32", "bfloat16", "auto"))
        one_of("gates", self.gates, ("stop", "warn"))
        if not self.data:
            raise SettingError("data must name at least one dataset folder; record one with worldrl collect")
        if self.world_model == SCRATCH:
            raise SettingError("world_model=scratch has learned nothing to imagine with; give bundled or a folder")


def main(settings: RankSettings) -> dict[str, Any]:
    """Measure the gates, imagine every policy, write ``result.json`` and ``report.html``, print the closing table.

    Returns the metrics of :func:`~worldrl.evaluation.policy.ranking.ranked`, the gates and the inputs. Raises GateError (the
    world model is not good enough, and ``gates=stop``).
    """
    if len({Path(one).resolve() for one in settings.policies}) < max(2, len(settings.policies)):
        raise SettingError(
            f"policies: needs two or more different folders, got {settings.policies}; give 'policies=[A,B]', or measure one "
            "policy with worldrl evaluate"
        )
    device, labels = resolve_device(settings.device), labels_of(settings.policies)
    names = dict(zip([*settings.policies, *labels], [*labels, *labels], strict=True))
    outcomes = None if settings.outcomes is None else read_outcomes(Path(settings.outcomes), names)
    data, held_out = (open_joined(folders, settings) for folders in (settings.data, settings.held_out or settings.data))
    with open_run("rank", settings) as run:
        model = open_model(settings)
        for dataset in (data, held_out):
            check_fits(dataset, model, settings.world_model)
        check_policies(settings.policies, model, field="policies")
        inputs = inputs_of(settings, data, held_out, outcomes)
        claim_inputs(run, inputs)
        gates, reasons = trusted(run.stage("01-gates"), settings, model, held_out)
        starts, draws = starts_of(data, settings), draws_of(settings)
        imagine_side_by_side(run, settings, labels)
        success = np.stack(
            [
                imagined_success(policy_stage(run, number), model, policy_place(folder), label, starts, draws)
                for number, (folder, label) in enumerate(zip(settings.policies, labels, strict=True), start=1)
            ]
        )
        metrics = {
            **ranked(labels, success, [start.episode.task for start in starts], outcomes, seed=settings.seed),
            "starts": len(starts),
            "gates": [asdict(gate) for gate in gates],
            "not_trusted": reasons,
            "assumed": list(assumed(start.episode for start in starts)),
            **inputs,
        }
        run.write_result(metrics, seed=settings.seed, device=str(device))
        publish(run, report_page(metrics, gates, seed=settings.seed, device=str(device)))
        show(metrics, run.path)
    return metrics


def open_joined(folders: Sequence[str], settings: RankSettings) -> EpisodeDataset:
    """Open datasets as one, in the images of the world model."""
    first, *others = open_datasets(folders, images_of(settings.world_model))
    return first.concatenate(*others)


def check_fits(data: EpisodeDataset, model: AnyVideoModel, world_model: str) -> None:
    """Refuse recordings of another robot or image size than the world model's with SettingError."""
    if data.embodiment != model.embodiment:
        raise SettingError(f"data: {data.source} is of another robot than the world model {world_model}")
    require_image_size(data, model.config.codec.image_size, f"the size of world_model={world_model}")
    require_cameras([data], images_among(model.more))


def inputs_of(
    settings: RankSettings, data: EpisodeDataset, held_out: EpisodeDataset, outcomes: Outcomes | None
) -> dict[str, Any]:
    """Say what exactly is ranked: paths and hashes."""
    counts = {label: len(trials) for label, trials in (outcomes or {}).items()}
    return {
        "world_model": {"path": settings.world_model, "hash": artefact_hash(weights_folder(settings.world_model))},
        "data": {"path": list(settings.data), "hash": data.fingerprint},
        "held_out": {"path": settings.held_out or list(settings.data), "hash": held_out.fingerprint},
        "policy": {
            "path": list(settings.policies),
            "hash": [policy_facts(policy_place(folder)).hash for folder in settings.policies],
        },
        "outcomes": {"path": settings.outcomes, "trials": counts},
    }


def open_model(settings: RankSettings) -> AnyVideoModel:
    """Open the world model where it imagines."""
    device = resolve_device(settings.device)
    model = open_world_model(weights_folder(settings.world_model), device).eval()
    model.compute_dtype = resolve_dtype(settings.dtype, device)
    return model


def starts_of(data: EpisodeDataset, settings: RankSettings) -> list[Start]:
    """Draw the start frames, the same for every policy."""
    limits = {task: settings.steps or steps for task, steps in longest(data).items()}
    return draw_starts(data, settings.episodes, limits, seed=settings.seed)


def draws_of(settings: RankSettings) -> Draws:
    """How rollouts are drawn."""
    return Draws(settings.batch, settings.temperature, settings.seed)


# --- policies side by side ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Imagining:
    """One policy's rollouts, which a process of its own computes."""

    settings: RankSettings
    policy: str
    label: str

    def compute(self, folder: Path) -> dict[str, Any]:
        """Imagine, or continue, in the stage's folder."""
        model, data = open_model(self.settings), open_joined(self.settings.data, self.settings)
        starts, place = starts_of(data, self.settings), policy_place(self.policy)
        return imagined_summary(folder, model, place, self.label, starts, draws_of(self.settings))


def policy_stage(run: RunDirectory, number: int) -> Stage:
    """The stage of a policy, by its place in ``policies``."""
    return run.stage(f"02-policy-{number}")


def imagine_side_by_side(run: RunDirectory, settings: RankSettings, labels: Sequence[str]) -> None:
    """With ``workers``, finish the stages of the policies that are missing."""
    stages = [policy_stage(run, number) for number in range(1, len(labels) + 1)]
    missing = {
        str(stage.folder): (stage, Imagining(settings, policy, label))
        for stage, policy, label in zip(stages, settings.policies, labels, strict=True)
        if not stage.finished
    }
    if settings.workers and missing:
        run_tasks(
            "rank",
            {folder: task for folder, (_, task) in missing.items()},
            settings.workers,
            on_result=lambda folder, result: missing[folder][0].finish(result),
            crew=crew_of(settings, run.path),
        )


# --- whether the world model may rank ------------------------------------------------------------------------------


def trusted(
    stage: Stage, settings: RankSettings, model: AnyVideoModel, held_out: EpisodeDataset
) -> tuple[list[Gate], list[str]]:
    """Measure the gates, or read them; return them and why the ranking is not to be trusted (nothing: it is).

    Raises GateError (there is a reason, and ``gates=stop``).
    """
    if not stage.finished:
        stage.finish(measured_gates(settings, model, held_out))
    summary = stage.summary
    gates = [
        Gate(**{**gate, "value": float("nan") if gate["value"] is None else gate["value"]}) for gate in summary["gates"]
    ]
    reasons = [*summary["reasons"], *(f"gate {gate.name} failed" for gate in gates if not gate.passed)]
    if gates:
        show_gates(gates, f"world model {settings.world_model}, {summary['episodes']} episodes")
    if reasons and settings.gates == "stop":
        if not summary["reasons"]:
            require(gates, use="rank policies in")
        raise GateError(
            f"the world model cannot rank policies: {'; '.join(reasons)}. Give held_out=[...] with such episodes, train it "
            "again with them, or continue with gates=warn"
        )
    return gates, reasons


def measured_gates(settings: RankSettings, model: AnyVideoModel, held_out: EpisodeDataset) -> dict[str, Any]:
    """The gates as JSON, the number of their episodes, and what these episodes cannot test."""
    rule = SuccessRule.of(model.config.outcome)
    episodes = unseen(held_out, weights_folder(settings.world_model), settings.gate_episodes, seed=settings.seed)
    reasons = untested(episodes, rule)
    gates = measure_gates(model, episodes, rule, settings.thresholds, seed=settings.seed)[0] if episodes else []
    return {"gates": [asdict(gate) for gate in gates], "episodes": len(episodes), "reasons": reasons}


def unseen(data: EpisodeDataset, world_model: Path, count: int, *, seed: int) -> list[Episode]:
    """Draw episodes that the world model has not learned from."""
    learned = Learned.read(world_model)
    rows = [row for row, record in enumerate(data.records) if scene_digest(record) not in learned.episodes]
    if data.fingerprint in learned.datasets:
        rows = []
    drawn = numpy_stream(seed, "rank gates").permutation(len(rows))[:count]
    return [data[rows[place]] for place in sorted(drawn.tolist())]
