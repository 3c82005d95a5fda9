"""Requests of ``worldrl evaluate-world-model`` that no memory holds: refused before the first episode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldrl.core.storage.capacity import require_frames_memory, require_memory
from worldrl.world_models.loading import AnyVideoModel

if TYPE_CHECKING:
    from worldrl.jobs.world_model.evaluate_world_model import EvaluateWorldModelSettings


def require_room(
    settings: EvaluateWorldModelSettings, model: AnyVideoModel, episodes: int, steps: int, *, tasks: int
) -> None:
    """Refuse numbers whose images or actions, held at once, exceed the memory.

    ``steps`` is how long each of the ``episodes`` is followed (control steps). Raises SettingError with the least size.
    """
    side, rows = model.config.codec.image_size, min(settings.batch, episodes)
    asked = f"horizons={settings.horizons}"
    require_memory(4 * steps * episodes * model.embodiment.actions.size, f"{asked}: the actions of {episodes} episodes")
    require_frames_memory(2 * rows * steps // model.frame_stride, side, f"{asked}, batch={settings.batch}")
    require_frames_memory(max(settings.speed_rows), side, f"speed_rows={settings.speed_rows}")
    if settings.policies.folders:
        count = settings.policies.imagined_rollouts
        require_frames_memory(count * tasks, side, f"policies.imagined_rollouts={count} of {tasks} tasks")
    if settings.probe.steps and settings.probe_from is None:
        require_frames_memory(settings.probe.horizon, side, f"probe.horizon={settings.probe.horizon}")
