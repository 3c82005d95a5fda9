"""``worldrl train-policy``: demonstrations to a language-conditioned policy by behaviour cloning, worldrl's own or lerobot's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.observation import images_among
from worldrl.core.storage.log import MetricLog, console
from worldrl.core.training.ranks import rank, rank_device, refuse_many
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset, assumed
from worldrl.evaluation.policy.trained_on import trained_on
from worldrl.evaluation.report.card import write_card
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.methods.imitation.lerobot_tuning import FineTuning, fine_tune
from worldrl.policies.lerobot.folder import write_trained_on
from worldrl.policies.lerobot.policy import LerobotPolicy
from worldrl.policies.token.policy import TokenPolicyConfig
from worldrl.recipes.run import open_run
from worldrl.recipes.several import together
from worldrl.recipes.stages import POLICY, learn_policy
from worldrl.recipes.tracking import Tracked
from worldrl.recipes.training_data import (
    offers,
    open_datasets,
    require_cameras,
    require_image_size,
    require_instructions,
)
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.settings import setting

if TYPE_CHECKING:
    import torch


@dataclass
class TrainPolicySettings(Tracked):
    """What is cloned."""

    run_dir: str = setting("runs/train-policy", "where everything is written; the policy goes to run_dir/policy")
    seed: int = setting(0, "root of every random stream")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    data: list[str] = setting(
        ["runs/collect/dataset"], "dataset folders, also external LeRobotDatasets v3; only successful episodes are used"
    )
    start: str = setting("", "folder of a lerobot policy to fine-tune; empty trains a new policy of worldrl")
    model: TokenPolicyConfig = field(default_factory=TokenPolicyConfig, metadata={"only_with": "start=''"})
    training: BehaviourCloning = field(default_factory=BehaviourCloning, metadata={"only_with": "start=''"})
    fine_tuning: FineTuning = field(default_factory=FineTuning, metadata={"only_with": "start!=''"})

    def __post_init__(self) -> None:
        """Check that there is data."""
        if not self.data:
            raise SettingError("data must name at least one dataset folder; record one with worldrl collect")


def main(settings: TrainPolicySettings) -> dict[str, Any]:
    """Clone, save, write ``result.json``.

    Returns the training report: episodes, samples, loss and token accuracy on training and held-out episodes.
    """
    device = rank_device(resolve_device(settings.device))
    if settings.start:
        refuse_many("start: fine-tuning of a lerobot policy", "or launch lerobot's own training")
    with together(settings, device):
        return _train(settings, device)


def _train(settings: TrainPolicySettings, device: torch.device) -> dict[str, Any]:
    datasets = open_datasets(settings.data, None if settings.start else settings.model.images)
    if not settings.start:
        require_instructions(datasets)
        larger = offers("model.image_size={side}", lambda side: replace(settings.model, image_size=side))
        require_image_size(datasets[0], settings.model.image_size, "model.image_size", larger, fit="model.fit")
    needed = policy_facts(Path(settings.start)).more if settings.start else settings.model.cameras[1:]
    require_cameras(datasets, images_among(needed))
    if rank() > 0:  # it trains along; the first process writes
        learn_new(Path(settings.run_dir), episodes_of(datasets, Path(settings.run_dir)), settings, device, None, None)
        return {}
    with open_run("train-policy", settings) as run, MetricLog(run.path, settings.tracker) as log:
        episodes, trained = episodes_of(datasets, run.path), trained_on(datasets)
        if settings.start:
            metrics = tune_lerobot(run.path, episodes, settings, str(device), log)
            write_trained_on(run.path / POLICY, trained)
        else:
            metrics = learn_new(run.path, episodes, settings, device, log, trained)
        metrics["assumed"] = list(assumed(episodes))
        metrics["hash"] = policy_facts(run.path / POLICY).hash
        run.write_result(metrics, seed=settings.seed, device=str(device))
        if not settings.start:  # a fine-tuned lerobot policy keeps lerobot's own layout
            write_card(run.path / POLICY)
        console().print(f"policy in {run.path / POLICY}: {metrics['samples']} samples, held-out {metrics['held_out']}")
    return metrics


def episodes_of(datasets: Sequence[EpisodeDataset], scratch: Path) -> list[Episode]:
    """Load the episodes of all datasets, many of them into a file in ``scratch``."""
    return [episode for dataset in datasets for episode in dataset.load(scratch=scratch)]


def learn_new(
    folder: Path,
    episodes: Sequence[Episode],
    settings: TrainPolicySettings,
    device: torch.device,
    log: MetricLog | None,
    trained: dict[str, Any] | None,
) -> dict[str, Any]:
    """Clone into a new policy of worldrl; return the training report."""
    return learn_policy(
        folder,
        episodes,
        model=settings.model,
        training=settings.training,
        seed=settings.seed,
        device=device,
        log=log,
        trained=trained,
    )


def tune_lerobot(
    folder: Path, episodes: Sequence[Episode], settings: TrainPolicySettings, device: str, log: MetricLog
) -> dict[str, Any]:
    """Fine-tune a lerobot policy into ``folder/policy``; return the training report."""
    policy = LerobotPolicy.load(Path(settings.start), device)
    report = fine_tune(
        policy,
        episodes,
        config=settings.fine_tuning,
        seed=settings.seed,
        folder=folder / "checkpoints",
        log=log,
    )
    policy.save(folder / POLICY)
    policy.close()
    return report.to_json()
