"""What the stages of ``worldrl train-vla`` share: settings, run directory, seeds, collecting, loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from worldrl.core.device import resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Policy
from worldrl.core.observation import MEASURED, ObservationSpec, require_observed
from worldrl.core.rng import numpy_stream, stream_seed
from worldrl.core.statistics.intervals import Rate, wilson
from worldrl.core.storage.artefact import read_config
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.run import RunDirectory, Stage
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.vla.settings import TrainVlaSettings
from worldrl.jobs.vla.training_suite import TrainingSuite
from worldrl.recipes.stages import held_out_count, split_held_out
from worldrl.recipes.world_model.start import SCRATCH, weights_folder
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.agents.actors import AnyActor
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts, imagine_from_keyframes, imagine_policy
from worldrl.rollout.imagined.reset_store import keyframe_starts
from worldrl.rollout.real.collect import CollectPlan
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.world_models.loading import WAN, AnyVideoModel, open_world_model

DATASET = "dataset"
GRPO = "grpo"
"""The algorithm that needs nothing of a policy but its log-probabilities."""


@dataclass(frozen=True)
class Loop:
    """What every stage needs.

    Attributes:
        settings: of the job.
        run: its run directory.
        log: its metrics.
        device: where the networks live.
        training_suite: the suite.
    """

    settings: TrainVlaSettings
    run: RunDirectory
    log: MetricLog
    device: torch.device
    training_suite: TrainingSuite

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names."""
        return self.training_suite.tasks

    @property
    def horizons(self) -> dict[str, int]:
        """Time limit of each task (control steps)."""
        return self.training_suite.simulator_backend.horizons(self.tasks)

    def seed(self, *names: str | int) -> int:
        """Derive a stage's seed; below 2**31, which every simulator keeps."""
        return stream_seed(self.settings.seed, "train-vla", *names) % 2**31

    def finish(self, stage: Stage, summary: dict[str, Any]) -> None:
        """Finish a stage with the wall time spent on the run so far."""
        stage.finish({**summary, "run_wall_s": self.run.wall_s})

    def collect(self, folder: Path, plans: Sequence[CollectPlan[AnyActor]]) -> dict[str, Rate]:
        """Record episodes; return how many, and how many succeeded, by source."""
        rows = self.training_suite.record(folder, plans)
        return success_by_source([(str(row["source"]), bool(row["success"])) for row in rows])

    def specs(self, source: str, count: int, seed: int) -> list[EpisodeSpec]:
        """Name ``count`` episodes of each task."""
        named = (EpisodeSpec(task, index, seed, source=source) for task in self.tasks for index in range(count))
        return [self.training_suite.simulator_backend.placed(spec) for spec in named]


def success_by_source(rows: Sequence[tuple[str, bool]]) -> dict[str, Rate]:
    """Rates of success, from the source and the success of each episode."""
    sources = sorted({source for source, _ in rows})
    parts = {source: [success for of, success in rows if of == source] for source in sources}
    return {source: wilson(sum(part), len(part)) for source, part in parts.items()}


def check_held_out(settings: TrainVlaSettings, tasks: Sequence[str]) -> None:
    """Refuse a practice that would leave no episode for calibration and gates, before anything is recorded.

    Raises:
        SettingError: it would.
    """
    scratch = settings.start == SCRATCH
    expert = settings.scratch.expert_episodes if scratch else settings.collection.expert_episodes
    imagined = 0 if scratch else settings.collection.imagined_episodes
    episodes = len(tasks) * (settings.collection.policy_episodes + expert + imagined)
    if held_out_count(episodes, settings.held_out) < 1:
        raise SettingError(
            f"held_out: {settings.held_out} of {episodes} collected episodes is not one each for calibration and gates; "
            "raise held_out or the episodes of collection"
        )


def check_policy_fits(settings: TrainVlaSettings) -> None:
    """Refuse a policy whose chunks or pictures are not the world model's, before anything is recorded.

    Raises:
        ArtefactError: no world model in the folder to begin with, or no policy in ``supervised``.
        SettingError: they differ, or the given policy looks at what imagination does not show or learns otherwise.
    """
    if settings.supervised:
        require_imaginable(Path(settings.supervised))
        require_inputs(settings)
        require_algorithm(settings.improvement.algorithm, Path(settings.supervised))
    if settings.start == SCRATCH:
        world = (settings.wan.model if settings.backbone == WAN else settings.world_model).to_json()
    else:
        world = read_config(weights_folder(settings.start))
    for name, part in (("chunk_length", "dynamics"), ("image_size", "codec")):
        own, its = getattr(settings.policy, name), world[part][name]
        if own != its:
            raise SettingError(
                f"policy.{name} is {own}, the world model's {name} is {its} (start={settings.start}); make them the same"
            )


def require_imaginable(folder: Path) -> None:
    """Refuse a policy that looks at what imagination does not show."""
    if lacking := policy_facts(folder).not_imagined:
        raise SettingError(
            f"supervised: the policy in {folder} needs {' and '.join(lacking)}; imagination shows it cameras, state, command "
            "and instruction, once per chunk. It can be measured (benchmark, evaluate), but not improved here"
        )


def require_inputs(settings: TrainVlaSettings) -> None:
    """Refuse a given policy that observes what the loop's world model will not imagine, with both specs side by side."""
    folder = Path(settings.supervised or "")
    facts, state = policy_facts(folder), settings.state == MEASURED
    shown = ObservationSpec.of(facts.actions, settings.cameras, facts.picture, state=state)
    where = f"the world model of cameras=[{', '.join(settings.cameras)}] state={settings.state}"
    require_observed(facts.observation, shown, f"the policy in {folder}", where)


def require_algorithm(algorithm: str, folder: Path) -> None:
    """Refuse an algorithm that the policy cannot learn by, hours before it would begin."""
    from worldrl.policies.lerobot.folder import is_lerobot_folder

    if algorithm != GRPO and is_lerobot_folder(folder):
        raise SettingError(
            f"improvement.algorithm: {algorithm} imitates tokens, which the policy in {folder} has none of; "
            f"give improvement.algorithm={GRPO}"
        )


def load(folder: Path) -> list[Episode]:
    """Load a dataset's episodes into memory."""
    return list(EpisodeDataset.open(folder).load())


def fresh_rollouts(loop: Loop, policy: Policy, model: AnyVideoModel, count: int, *, name: str) -> PolicyRollouts:
    """Dream ``count`` rollouts of each task from initial states of their own; ``name`` fixes every draw."""
    return imagine_policy(
        model,
        policy,
        loop.tasks,
        count,
        seed=loop.seed(name, "dreams"),
        horizon=loop.horizons,
        image_size=loop.settings.policy.image_size,
        exploration=loop.settings.improvement.exploration,
        simulator_backend=loop.training_suite.simulator_backend,
    )


def keyframe_rollouts(
    loop: Loop, policy: Policy, model: AnyVideoModel, episodes: Sequence[Episode], count: int, *, name: str
) -> PolicyRollouts | None:
    """Dream recorded episodes on from up to ``count`` keyframes of each task; None where rollouts start at none."""
    config = loop.settings.improvement
    if not config.p_keyframe:
        return None
    starts = [(episodes[number], step) for number, step, _ in keyframe_starts(episodes, margin=config.keyframe_margin)]
    draw = numpy_stream(loop.seed(name, "keyframes"))
    chosen = [
        of_task[i]
        for task in loop.tasks
        for of_task in [[start for start in starts if start[0].task == task]]
        for i in draw.permutation(len(of_task))[:count]
    ]
    if not chosen:
        return None
    return imagine_from_keyframes(
        model,
        policy,
        chosen,
        seed=loop.seed(name, "keyframe-dreams"),
        horizon=loop.horizons,
        exploration=config.exploration,
    )


def collection_split(loop: Loop, practices: Sequence[Path]) -> tuple[list[Episode], list[Episode], list[Episode]]:
    """Split each practice set, so that an episode held out once is never trained on later."""
    parts = [
        split_held_out(load(folder), loop.settings.held_out, seed=loop.seed("held-out", number))
        for number, folder in enumerate(practices, start=1)
    ]
    training, calibration, gates = ([e for part in parts for e in part[k]] for k in range(3))
    return training, calibration, gates


def load_world_model(loop: Loop, folder: Path) -> tuple[AnyVideoModel, SuccessRule]:
    """Load a world model ready to imagine, with its rule of success."""
    model = open_world_model(folder, loop.device)
    model.compute_dtype = resolve_dtype(loop.settings.dtype, loop.device)
    return model, SuccessRule(model.config.outcome.threshold, model.config.outcome.debounce)
