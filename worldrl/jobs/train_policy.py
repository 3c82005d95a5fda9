"""``worldrl train-policy``: demonstrations to a language-conditioned policy by behaviour cloning, worldrl's own or lerobot's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldrl.algorithms.behaviour_cloning import BehaviourCloning
from worldrl.algorithms.lerobot_tuning import FineTuning, fine_tune
from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.log import MetricLog, console
from worldrl.core.types import Episode
from worldrl.data.dataset import EpisodeDataset, assumed, open_recorded
from worldrl.evaluation.trained_on import trained_on
from worldrl.jobs.opening import open_run
from worldrl.jobs.stages import POLICY, learn_policy
from worldrl.policies.lerobot_folder import write_trained_on
from worldrl.policies.token_policy import TokenPolicyConfig
from worldrl.rollout.lerobot_policy import LerobotPolicy
from worldrl.rollout.policy_folder import policy_facts
from worldrl.settings import setting


@dataclass
class TrainPolicySettings:
    """What is cloned."""

    run_dir: str = setting("runs/train-policy", "where everything is written; the policy goes to run_dir/policy")
    seed: int = setting(0, "root of every random stream")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    data: list[str] = setting(
        ["runs/collect/dataset"], "dataset folders, also external LeRobotDatasets v3; only successful episodes are used"
    )
    start: str = setting("", "folder of a lerobot policy to fine-tune; empty trains a new policy of worldrl")
    model: TokenPolicyConfig = field(default_factory=TokenPolicyConfig)
    training: BehaviourCloning = field(default_factory=BehaviourCloning)
    fine_tuning: FineTuning = field(default_factory=FineTuning)

    def __post_init__(self) -> None:
        """Check that there is data."""
        if not self.data:
            raise SettingError("data must name at least one dataset folder; record one with worldrl collect")


def main(settings: TrainPolicySettings) -> dict[str, Any]:
    """Clone, save, write ``result.json``.

    Args:
        settings: what to clone.

    Returns:
        The training report: episodes, samples, loss and token accuracy on training and held-out episodes.
    """
    device = resolve_device(settings.device)
    datasets = [open_recorded(folder) for folder in settings.data]
    if not settings.start:
        require_size(settings, datasets)
    with open_run("train-policy", settings) as run, MetricLog(run.path) as log:
        episodes, trained = [episode for dataset in datasets for episode in dataset.load()], trained_on(datasets)
        if settings.start:
            metrics = tune_lerobot(run.path, episodes, settings, str(device), log)
            write_trained_on(run.path / POLICY, trained)
        else:
            metrics = learn_policy(
                run.path,
                episodes,
                model=settings.model,
                training=settings.training,
                seed=settings.seed,
                device=device,
                log=log,
                trained=trained,
            )
        metrics["assumed"] = list(assumed(episodes))
        metrics["hash"] = policy_facts(run.path / POLICY).hash
        run.write_result(metrics, seed=settings.seed, device=str(device))
        console().print(f"policy in {run.path / POLICY}: {metrics['samples']} samples, held-out {metrics['held_out']}")
    return metrics


def require_size(settings: TrainPolicySettings, datasets: Sequence[EpisodeDataset]) -> None:
    """Refuse pictures of another size than the policy's before they are decoded.

    Raises:
        SettingError: naming the folder and both sizes.
    """
    size = settings.model.image_size
    for folder, dataset in zip(settings.data, datasets, strict=True):
        if dataset.image_size != (size, size):
            rows, columns = dataset.image_size
            raise SettingError(
                f"data: the images in {folder} are {columns} by {rows} pixels, model.image_size is {size}; give "
                f'model.image_size={rows}, or, of a dataset that others made, write {{"image_size": {size}}} to its worldrl.json'
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
