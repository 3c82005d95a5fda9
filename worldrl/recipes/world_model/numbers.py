"""Where a world model's training stands in its stage, and what it logged last."""

from typing import Any

from worldrl.core.storage.log import MetricLog, read_metrics

DYNAMICS = "dynamics"  # Folder of a training's checkpoints


def last_numbers(log: MetricLog | None, series: str) -> dict[str, Any]:
    """Last logged numbers of a training; from the log, since a resumed session may find it finished."""
    if log is None:
        return {}
    lines = [line for line in read_metrics(log.path.parent) if line["series"] == series]
    return lines[-1]["values"] if lines else {}
