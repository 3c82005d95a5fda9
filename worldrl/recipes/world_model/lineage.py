"""What a world model is made from: its direct parents for the manifest, and all that it has ever learned from."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from worldrl.core.storage.artefact import MANIFEST, parent
from worldrl.core.storage.learned import Learned
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.paths import weights_dir
from worldrl.recipes.world_model.start import BUNDLED, SCRATCH, weights_folder
from worldrl.rollout.real.specs import scene_digest


def lineage(data: Mapping[str, EpisodeDataset], weights: Sequence[str]) -> tuple[list[dict[str, str]], Learned]:
    """Return the parents of a world model, and what it has learned from: datasets by folder, and initial weights."""
    folders = [weights_folder(start) for start in weights if start != SCRATCH]
    parents = [{"path": folder, "hash": dataset.fingerprint} for folder, dataset in data.items()]
    learned = learned_from(list(data.values()))
    for folder in folders:
        learned |= Learned.read(folder)
    return parents + [bundled_by_name(parent(folder)) for folder in folders], learned


def bundled_by_name(entry: Mapping[str, str]) -> dict[str, str]:
    """Return a parent, with ``bundled/NAME`` as the path of bundled weights: where they lie differs between machines."""
    folder = Path(entry["path"]).resolve()
    return {**entry, "path": f"{BUNDLED}/{folder.name}" if folder.parent == weights_dir() else entry["path"]}


def rewards_lineage(folders: Iterable[str]) -> tuple[list[dict[str, str]], Learned]:
    """Return the parents that a model has in rewards, and what these have learned from; unknown for other folders."""
    parents, learned = list[dict[str, str]](), Learned()
    for folder in map(Path, folders):
        found = (
            [folder] if (folder / MANIFEST).exists() else sorted(file.parent for file in folder.glob(f"*/{MANIFEST}"))
        )
        parents += [parent(artefact) for artefact in found]
        learned |= Learned(complete=bool(found))
        for artefact in found:
            learned |= Learned.read(artefact)
    return parents, learned


def learned_from(data: Sequence[EpisodeDataset]) -> Learned:
    """Return datasets and their episodes as what was learned from."""
    return Learned(
        datasets=frozenset(dataset.fingerprint for dataset in data),
        episodes=frozenset(scene_digest(record) for dataset in data for record in dataset.records),
    )
