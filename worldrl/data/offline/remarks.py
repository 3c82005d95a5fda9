"""What a person should know of a dataset before learning from it, besides what makes it unusable."""

from typing import Any

from worldrl.data.offline.jumps import WHERE
from worldrl.data.offline.trajectories import Trajectories

CHECKS = ("jumps", "early_timeouts", "actions_clipped")
"""Keys of the provenance under which readers note what they found."""


def checks_of(data: Trajectories) -> dict[str, Any]:
    """Return what the checks of reading found, JSON-ready; empty for a clean dataset."""
    found = {name: data.info.provenance[name] for name in CHECKS if data.info.provenance.get(name)}
    equal = len(data) > 1 and (data.reward == data.reward[0]).all()
    return found | ({"equal_rewards": float(data.reward[0])} if equal else {})


def remarks(data: Trajectories) -> list[str]:
    """Say in one line each what the checks of reading found."""
    found, source = checks_of(data), data.info.source
    lines = _jumps(found["jumps"], source) if "jumps" in found else []
    if "early_timeouts" in found:
        early = found["early_timeouts"]
        lines.append(
            f"{source}: {early['rows']} of {early['of']} time-outs come before max_episode_steps={early['limit']}, the first "
            f"after {early['shortest']} steps"
        )
    if "actions_clipped" in found:
        lines.append(
            f"{source}: the actions of {found['actions_clipped']} rows lay beyond their bounds and were clipped"
        )
    if "equal_rewards" in found:
        lines.append(
            f"{source}: all {len(data)} rewards are {found['equal_rewards']:g}; they prefer no action to another"
        )
    return lines


def _jumps(found: dict[str, Any], source: str) -> list[str]:
    lines: list[str] = []
    if found["rows"]:
        where = f"; {WHERE[found['where']]}" if found["where"] else ""
        lines.append(
            f"{source}: {found['rows']} rows that bootstrap may lead across a reset. The largest step is {found['largest']:.4g} "
            f"where the median is {found['median']:.4g} (number {found['number']}, episode {found['episode']}, step "
            f"{found['step']}){where}. Check the marked ends of episodes"
        )
    if found["unmarked"]:
        lines.append(
            f"{source}: after {found['unmarked']} rows without a marked end the next row begins elsewhere than its next "
            "observation says; ends of episodes are missing"
        )
    return lines
