"""Visual styles that are reserved for tests: no world model is trained on them, so that their cost can be measured."""

from collections.abc import Mapping

from worldrl.core.errors import SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset


def refuse_test_styles(data: Mapping[str, EpisodeDataset]) -> None:
    """Refuse training data (by folder) with reserved visual styles, recorded or restyled; SettingError."""
    from worldrl_envs.style import TEST_STYLES

    for folder, dataset in data.items():
        shown = {record.meta.get("style") for record in dataset.records}
        if kept := [name for name in TEST_STYLES if name in shown]:
            raise SettingError(
                f"data: {folder} has episodes in the visual styles {', '.join(kept)}, which are kept for tests; train on the "
                "recording itself, or on worldrl restyle styles=[sampled]"
            )
