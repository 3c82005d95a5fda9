"""Looks that are kept for tests: a world model never learns from them, so that what they cost can be measured."""

from __future__ import annotations

from collections.abc import Mapping

from worldrl.core.errors import SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset


def refuse_test_styles(data: Mapping[str, EpisodeDataset]) -> None:
    """Refuse training data in looks with names.

    Args:
        data: datasets by folder.

    Raises:
        SettingError: an episode was recorded or shown again in one of them.
    """
    from worldrl_envs.style import TEST_STYLES

    for folder, dataset in data.items():
        shown = {record.meta.get("style") for record in dataset.records}
        if kept := [name for name in TEST_STYLES if name in shown]:
            raise SettingError(
                f"data: {folder} has episodes in the visual styles {', '.join(kept)}, which are kept for tests; train on the "
                "recording itself, or on worldrl restyle styles=[sampled]"
            )
