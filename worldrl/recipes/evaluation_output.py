"""Output of `evaluate`, `benchmark` and `train-vla`: videos of episodes and the closing table of rates."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from worldrl.core.storage.log import console
from worldrl.core.types import Episode
from worldrl.evaluation.policy.result import MAX_RESTARTS, UNMEASURED
from worldrl.evaluation.world_model.film import write_mp4
from worldrl.recipes.run import rate_interval

DOMAIN = "bimanual tasks: clean, or randomised in visual style, clutter and table height, on the same layouts"
HOLD_STEPS = (
    "steps after the first success, after which success is measured again; 0 ends the episode at the first success"
)


def video_writer(folder: Path, fps: float) -> Callable[[Episode], None]:
    """Writer of an episode's main camera as ``<task>-<index>-<outcome>.mp4``."""

    def write(episode: Episode) -> None:
        name = video_name(episode.task, episode.meta["index"], success=episode.success)
        write_mp4(episode.main_view, folder / name, fps)

    return write


def video_name(task: str, index: int, *, success: bool) -> str:
    """Name of the file of one recorded episode."""
    return f"{task}-{index:03d}-{'success' if success else 'failure'}.mp4"


def show(metrics: Mapping[str, Any], protocol_hash: str) -> None:
    """Print the closing table."""
    table = Table(title=f"{metrics['policy']} in the simulator", caption=f"protocol {protocol_hash}")
    table.add_column("task")
    for heading in ("success", "95 % interval", "at end"):
        table.add_column(heading, justify="right")
    rows = {**metrics["tasks"], "all": metrics["success"]}
    ends = {**(metrics["tasks_at_end"] or {}), "all": metrics["success_at_end"]}
    for task, rate in rows.items():
        end = ends.get(task)
        last = f"{end['k']}/{end['n']}" if end else UNMEASURED
        table.add_row(task, f"{rate['k']}/{rate['n']}", rate_interval(rate), last)
    console().print(table)
    if metrics["clipped_share"]:
        console().print(clipping(metrics["clipped_share"]), markup=False)
    if not metrics["valid"]:
        console().print(
            f"not valid: {metrics['restarted_episodes']} episodes were run again after a worker died, "
            f"more than {100 * MAX_RESTARTS:.0f} %"
        )


def say_assets(facts: Mapping[str, Any]) -> None:
    """Print the note on assets that are not the benchmark's own: ``assets_note`` and ``suite`` of a result's facts."""
    if facts.get("assets_note"):
        console().print(f"assets: {facts['assets_note']}; this is not a {facts['suite']} result", markup=False)


def clipping(share: float) -> str:
    """Explains a share of numbers outside the robot's range; a harmful share depends on which numbers these are."""
    return (
        f"{100 * share:.2g} % of the policy's numbers lay outside the robot's range and were executed as its nearest end: "
        "few are a gripper or a full speed that overshoots, many mean other units, another range or other statistics"
    )
