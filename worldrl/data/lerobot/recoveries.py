"""Corrected episodes: stored as one recording with a rewinding in it, read as two episodes that each really happened.

::

    stored      0 … rewound … alarm │ rewound … T        the frame after the rule is the rewound one, seen again
    failing     0 … rewound … alarm
    corrected   0 … rewound           … T                the policy up to ``rewound``, from there whoever corrected

So no reader meets the step that nobody took: cloning leaves the failing part out, as it does every failure, and a world
model learns from both. Either part can be replayed from the episode's initial state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.typed import from_plain
from worldrl.core.types import Episode
from worldrl.data.lerobot.format import RECOVERY, EpisodeRecord, Recovery

PART = "part"
"""Key of the meta of both episodes that are read: ``failing`` or ``corrected``."""


def parts_of(record: EpisodeRecord, read: Callable[[], Episode]) -> list[tuple[EpisodeRecord, Callable[[], Episode]]]:
    """The episodes of a stored one, the failing part first, each with what decodes it; ArtefactError for damaged meta."""
    if RECOVERY not in record.meta or PART in record.meta:  # a copy of one part, in other colours for example
        return [(record, read)]
    where = f"episode {record.index}: {RECOVERY}"
    found = from_plain(Recovery, record.meta[RECOVERY], where=where, error=ArtefactError)
    if not 0 <= found.rewound <= found.alarm < record.length:
        raise ArtefactError(f"{where}: frames {found.rewound} and {found.alarm} of {record.length}; collect it again")
    lengths = {"failing": found.alarm, "corrected": found.rewound + record.length - found.alarm - 1}
    return [
        (
            replace(
                record,
                length=length,
                success=record.success and part == "corrected",
                terminated=record.terminated and part == "corrected",
                truncated=record.truncated or part == "failing",
                meta={**record.meta, PART: part},
                content=hashlib.blake2b(f"{record.content} {part}".encode(), digest_size=16).hexdigest(),
            ),
            lambda part=part: part_of(read(), found, part),
        )
        for part, length in lengths.items()
        if length  # an alarm at the first decision leaves nothing that failed
    ]


def part_of(episode: Episode, recovery: Recovery, part: str) -> Episode:
    """Cut the failing or the corrected part out of a stored episode."""
    failing, steps = part == "failing", np.arange(len(episode))
    taken = steps[: recovery.alarm] if failing else np.r_[steps[: recovery.rewound], steps[recovery.alarm + 1 :]]
    frame = np.append(taken, recovery.alarm if failing else len(episode))
    return replace(
        episode,
        **{name: getattr(episode, name)[frame] for name in ("frames", "state", "command", "contact")},
        **{name: getattr(episode, name)[taken] for name in ("action", "reward")},
        terminated=episode.terminated and not failing,
        truncated=episode.truncated or failing,
        meta={**episode.meta, PART: part},
    )
