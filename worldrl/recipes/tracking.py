"""The setting ``tracker``, which all commands share that train."""

from dataclasses import dataclass

from worldrl.core.storage.log import TrackerName
from worldrl.settings import setting


@dataclass(kw_only=True)
class Tracked:
    """Where the curves of a training are shown."""

    tracker: TrackerName = setting(
        TrackerName.tensorboard,
        "where curves are shown beside metrics.jsonl: tensorboard, wandb (offline unless WANDB_MODE says otherwise), "
        "trackio (on this machine), or none",
    )
