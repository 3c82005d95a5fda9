"""``worldrl card``: write the model card of a policy or world model, and upload both to the Hugging Face hub if asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.storage.hub import push_folder
from worldrl.core.storage.log import console
from worldrl.evaluation.report.card import write_card
from worldrl.settings import required, setting

RESULT = "result.json"


@dataclass
class CardSettings:
    """Settings of ``worldrl card``."""

    folder: str = required("the policy or world model", made_by="worldrl train-policy")
    results: list[str] = setting(
        [], "run directories that measured it: of evaluate, benchmark, compare, train-vla, evaluate-world-model"
    )
    push: str = setting("", "OWNER/NAME on the hub to upload folder and card to; empty: nothing leaves this machine")
    private: bool = setting(True, "whether a model that is new on the hub is private")
    seed: int = setting(0, "accepted as in all commands; a card draws no random numbers")


def main(settings: CardSettings) -> dict[str, Any]:
    """Write ``README.md`` into the folder; upload the folder where ``push`` names a model.

    Returns ``{"card": path, "pushed": page of the commit or None}``. Raises ArtefactError (a folder or result is missing or
    damaged, a result is of another artefact, or the hub refuses) and SettingError (``push`` is no name of a model).
    """
    folder = Path(settings.folder)
    given = [Path(result) for result in settings.results]
    written = write_card(folder, [path / RESULT if path.is_dir() else path for path in given])
    console().print(f"card: {written}", markup=False)
    pushed = None
    if settings.push:
        pushed = push_folder(folder, settings.push, private=settings.private, message="Upload with worldrl card")
        console().print(f"uploaded: {pushed}", markup=False)
    return {"card": str(written), "pushed": pushed}
