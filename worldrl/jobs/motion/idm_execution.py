"""What decoding costs, measured in the simulator: held-out videos are decoded, and what was read off them is executed.

The share of expert episodes that succeed again is the ceiling of every planned video (EVA, arXiv 2603.17808, finds 89.5 %).
Beside it stands what the true commands at the same frames reach: with frames ``s`` control steps apart, these are
interpolated too, and a loss that they share is none of the decoding's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import wilson
from worldrl.core.types import Episode
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.training import Restore
from worldrl.rollout.imagined.decoded_plans import commanded, decoded, execute_recorded


def executions(
    idm: InverseDynamics, held_out: Sequence[Episode], count: int, *, camera: str, restore: Restore | None
) -> dict[str, Any] | None:
    """Execute what the first ``count`` held-out successes show.

    ``held_out`` has episodes in random order. ``idm`` has learned none of them, but may have scaled its deviations by
    them, which are not executed. ``restore`` shows frames as a world model's codec does; None shows them as recorded
    only. Returns success by source (``commanded``, ``decoded``, and with a codec ``restored``), in all and by task;
    None for a ``count`` of 0. Raises SettingError: no held-out episode succeeded.
    """
    if not count:
        return None
    chosen = [episode for episode in held_out if episode.success][:count]
    if not chosen:
        raise SettingError(
            f"executed: none of the {len(held_out)} held-out episodes succeeded; record more, by the expert"
        )
    sources = {"commanded": partial(commanded, idm.frame_stride), "decoded": partial(decoded, idm, camera)}
    if restore is not None:
        sources["restored"] = partial(decoded, idm, camera, restore=restore)
    found = {name: execute_recorded(chosen, idm.frame_stride, read) for name, read in sources.items()}
    tasks = np.array([episode.task for episode in chosen])
    by_task = {str(task): rates({name: hit[tasks == task] for name, hit in found.items()}) for task in np.unique(tasks)}
    return {**rates(found), "tasks": by_task}


def rates(found: Mapping[str, NDArray[np.bool_]]) -> dict[str, Any]:
    """Count successes, source by source."""
    return {name: wilson(int(hit.sum()), len(hit)) for name, hit in found.items()}
