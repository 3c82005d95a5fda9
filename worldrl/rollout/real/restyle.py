"""Structure-guided style augmentation with a simulator (Sword): the same motion in another visual style.

Sword renders clips again with a video model that follows depth and segments. A simulator does it exactly: recorded
actions are replayed from the recorded initial state, and only light, colours, textures, camera and props differ.
States, commands and outcomes must be equal to the recording, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import stream_seed
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.format import RECOVERY
from worldrl.rollout.agents.actors import ReplayActor
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec, spec_of

SAMPLED, SAMPLED_STYLES = "sampled", 2**20
"""Name and number of the sampled styles, any of which training may use."""
STRUCTURE = ("state", "command", "action", "reward", "contact")
"""Arrays of an episode that a style must not change."""


def restyled_specs(dataset: EpisodeDataset, styles: Sequence[str], *, seed: int) -> list[EpisodeSpec]:
    """Name the recorded episodes in other visual styles, drawn from ``styles`` with ``seed``.

    Raises SettingError (a corrected episode and its failing part have one name).
    """
    if any(RECOVERY in record.meta for record in dataset.records):
        raise SettingError(
            f"data: {dataset.source} holds corrected episodes, which no replay can rewind; give by=image, or other data"
        )
    return [
        _restyled(spec_of(record.meta, f"{dataset.source}: episode {record.index}"), record.instruction, styles, seed)
        for record in dataset.records
    ]


def _restyled(spec: EpisodeSpec, instruction: str, styles: Sequence[str], seed: int) -> EpisodeSpec:
    draw = stream_seed(seed, "restyle", *map(str, spec.key))
    style = styles[draw % len(styles)]
    if style == SAMPLED:
        style = f"sampled-{draw // len(styles) % SAMPLED_STYLES}"
    return replace(spec, style=style, instruction=instruction)


def restyle_dataset(
    source: Path,
    folder: Path,
    styles: Sequence[str],
    *,
    seed: int,
    workers: int,
    envs_per_worker: int = 1,
    timeout_s: float = 120.0,
) -> list[EpisodeSpec]:
    """Replay every episode of ``source`` into the dataset ``folder``; an interrupted run is resumed.

    The settings are those of :func:`restyled_specs` and :class:`~worldrl.rollout.real.rollouts.EmbeddedPlayer`. Returns
    the episodes with their styles. Raises ArtefactError (``source`` is not of an ``EmbeddedPlayer`` or is randomised
    already, or a replay left the recorded path).
    """
    recorded = EpisodeDataset.open(source)
    if any("domain" in record.meta for record in recorded.records):
        raise ArtefactError(f"{source}: was recorded in the randomised domain, which draws its own visual styles")
    specs, size = restyled_specs(recorded, styles, seed=seed), recorded.header.image_size[0]
    options = EnvOptions(image_size=size, cameras=recorded.cameras, actions=recorded.embodiment.actions)
    collect_dataset(
        folder,
        [CollectPlan(ReplayActor(str(source)), specs)],
        EmbeddedPlayer(options, workers, envs_per_worker, timeout_s),
        hold_steps=held_steps(recorded),
    )
    check_structure(recorded, EpisodeDataset.open(folder))
    return specs


def held_steps(dataset: EpisodeDataset) -> int:
    """Return the recorded steps after the first success; the time limit may cut some episodes."""
    return max((len(e) - e.first_success for e in dataset if e.first_success is not None), default=0)


def check_structure(recorded: EpisodeDataset, restyled: EpisodeDataset) -> None:
    """Raise ArtefactError where a restyled episode differs from the recorded one in more than its frames."""
    for before, after in zip(recorded, restyled, strict=True):
        different = [name for name in STRUCTURE if not np.array_equal(getattr(before, name), getattr(after, name))]
        if different:
            raise ArtefactError(
                f"{spec_of(before.meta).describe()}: replayed in another visual style its {', '.join(different)} differ from "
                f"the recording{_first_difference(before, after)}; was it recorded by another version of the simulator?"
            )


def _first_difference(before: Episode, after: Episode) -> str:
    steps = min(len(before), len(after))
    apart = (before.state[: steps + 1] != after.state[: steps + 1]).any(axis=1)
    return f" from frame {int(apart.argmax())}" if apart.any() else f" in length ({len(before)} and {len(after)} steps)"
