"""Modules that an artefact folder holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn

from worldrl.core.storage.artefact import Shared, read_artefact, write_artefact
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.weights import fitting, load_weights


class StoredModule(Shared, nn.Module):
    """A module whose folder has artefact kind ``kind`` and, as config, the ``sizes`` that make it."""

    kind: ClassVar[str]
    sizes: dict[str, Any]

    def save(self, folder: Path, *, parents: Sequence[dict[str, Any]] = (), learned: Learned | None = None) -> None:
        """Write weights and sizes as an artefact folder; ``learned`` None records unknown training data."""
        files = None if learned is None else learned.files()
        config, tensors = self.stored(), self.state_dict()
        write_artefact(folder, kind=self.kind, config=config, tensors=tensors, files=files, parents=parents)

    def stored(self) -> dict[str, Any]:
        """Return the config of its folder."""
        return self.sizes

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Self:
        """Make it of :meth:`stored`'s values, without its weights."""
        return cls(**stored)

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Self:
        """Read :meth:`save`'s folder; ArtefactError when it is missing, damaged or of another kind."""
        artefact = read_artefact(folder, kind=cls.kind)
        with fitting(artefact):
            module = cls.restored(artefact.config)
            load_weights(module, artefact)
        return module.to(device).eval()
