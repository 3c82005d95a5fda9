"""What a model has learned from, itself and through the weights that it began with; kept in its artefact folder."""

from dataclasses import dataclass
from pathlib import Path

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.artefact import read_file, read_manifest
from worldrl.core.storage.jsonfile import json_bytes, parse_json
from worldrl.core.storage.typed import from_plain

LEARNED = "learned.json"  # Its file in an artefact folder


@dataclass(frozen=True)
class _Stored:
    """The file, in which nothing may be missing."""

    datasets: frozenset[str]
    episodes: frozenset[str]
    complete: bool


@dataclass(frozen=True)
class Learned:
    """Everything that was learned from."""

    datasets: frozenset[str] = frozenset()  # fingerprints of whole datasets
    episodes: frozenset[str] = frozenset()  # digests of their episodes, the same for one motion in several looks
    complete: bool = True  # whether that is all; False where weights took part that do not say what they learned from

    def __or__(self, other: "Learned") -> "Learned":
        """Join what two have learned from."""
        return Learned(self.datasets | other.datasets, self.episodes | other.episodes, self.complete and other.complete)

    def files(self) -> dict[str, bytes]:
        """Return the file that an artefact keeps it in."""
        return {
            LEARNED: json_bytes(
                {"datasets": sorted(self.datasets), "episodes": sorted(self.episodes), "complete": self.complete}
            )
        }

    @classmethod
    def read(cls, folder: Path) -> "Learned":
        """Read what the model in ``folder`` learned from, at least its parents' hashes; ArtefactError for none."""
        manifest = read_manifest(folder)
        if LEARNED not in manifest["files"]:
            return cls(frozenset(parent["hash"] for parent in manifest["parents"]), complete=False)
        data = parse_json(read_file(folder, LEARNED), path=folder / LEARNED, error=ArtefactError)
        where = f"{folder / LEARNED}: does not fit this version; train the model again"
        return cls(**vars(from_plain(_Stored, data, where=where, error=ArtefactError)))
