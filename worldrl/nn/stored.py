"""Modules that an artefact folder holds."""

from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn

from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.weights import fitting, load_weights


class StoredModule(nn.Module):
    """A module whose folder has artefact kind ``kind`` and, as config, the arguments ``sizes`` that make it."""

    kind: ClassVar[str]
    sizes: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write weights and sizes as an artefact folder."""
        write_artefact(folder, kind=self.kind, config=self.sizes, tensors=self.state_dict())

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Self:
        """Read :meth:`save`'s folder; ArtefactError when it is missing, damaged or of another kind."""
        artefact = read_artefact(folder, kind=cls.kind)
        with fitting(artefact):
            module = cls(**artefact.config)
            load_weights(module, artefact)
        return module.to(device).eval()
