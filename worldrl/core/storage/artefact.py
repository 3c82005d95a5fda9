"""One folder per artefact: ``config.json``, ``model.safetensors``, extra files, and ``manifest.json`` written last.

The manifest holds every file's size and SHA-256, so a damaged or other folder is recognised before it is used. Nothing
in an artefact is executed: no pickle is read or written, import paths and interpolations in a config are refused.
"""

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor

from worldrl import __version__
from worldrl.core.errors import ArtefactError
from worldrl.core.renames import current_config
from worldrl.core.storage.atomic import atomic_folder
from worldrl.core.storage.data_only import refuse_code
from worldrl.core.storage.jsonfile import digest, json_bytes, plain, read_json
from worldrl.core.storage.tensorfile import load_tensors, save_tensors, tensor_bytes
from worldrl.core.storage.typed import from_plain

SCHEMA = 1
CONFIG, MODEL, MANIFEST = "config.json", "model.safetensors", "manifest.json"
MAKERS = {
    "policy": "`worldrl train-policy`",
    "video-world-model": "`worldrl train-world-model`",
    "wan-world-model": "`worldrl train-world-model backbone=wan`",
    "idm": "`worldrl train-idm`",
    "monitor": "`worldrl collect false_alarms=0.05`",
    "grasp-dynamics": "`worldrl train-idm grasp.steps=1500`",
    "offline-agent": "`worldrl train-offline`",
}
"""Kind of artefact to the command that makes one, for whoever has none yet."""
PICKLES = frozenset({".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib", ".distcp"})
"""Suffixes whose usual content is a pickle, which runs code when it is loaded."""
MAX_NAME = 1024


@dataclass(frozen=True)
class _File:
    """One file of an artefact, as its manifest lists it."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class _Manifest:
    """What ``manifest.json`` holds; releases differ in what they add, so unknown keys of a valid digest are not refused."""

    schema: int
    kind: str
    files: dict[str, _File]
    parents: list[dict[str, str]]
    restore_float32: list[str]
    worldrl: str = ""
    created: str = ""
    store_dtype: str | None = None


@dataclass(frozen=True)
class Artefact:
    """A verified artefact in memory."""

    folder: Path  # where it was read from
    kind: str  # what it is, for example `"policy"`
    config: dict[str, Any]  # its plain JSON config
    tensors: dict[str, Tensor] = field(repr=False)  # name to tensor; empty when the artefact has none
    manifest: dict[str, Any] = field(repr=False)  # the manifest

    @property
    def hash(self) -> str:
        """Identity of the content: see :func:`artefact_hash`."""
        return digest(self.manifest["files"])

    def file(self, name: str) -> bytes:
        """Return an extra file's content; ArtefactError where the manifest does not list it, or it changed."""
        return _listed_file(self.folder, name, self.manifest["files"])


def write_artefact(
    folder: Path,
    *,
    kind: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
    files: Mapping[str, bytes] | None = None,
    parents: Sequence[Mapping[str, str]] = (),
    store_dtype: torch.dtype | None = None,
) -> str:
    """Write an artefact folder, replacing an older one only when the new one is complete; return its hash.

    ``config`` has no keys ``schema`` and ``kind``; tied tensors are stored once per name, float32 ones as
    ``store_dtype``, ``files`` by relative name; ``parents`` as :func:`parent` describes them. ArtefactError for a name
    or value that is not allowed, a tensor that does not fit ``store_dtype``, or where the disk refuses.
    """
    folder, files = Path(folder), dict(files or {})
    files[CONFIG] = json_bytes(_checked_config(folder, kind, config))
    for name in files:
        _inside(folder, name)
    lineage = [_checked_parent(folder, entry) for entry in parents]
    needed = sum(map(len, files.values())) + tensor_bytes(tensors or {}, store_dtype)
    with atomic_folder(folder, needed=needed) as temp:
        for name, data in files.items():
            (temp / name).parent.mkdir(parents=True, exist_ok=True)
            (temp / name).write_bytes(data)
        restore = None if tensors is None else save_tensors(temp / MODEL, tensors, store_dtype)
        listed = sorted([*files] if tensors is None else [*files, MODEL])
        body = {
            "schema": SCHEMA,
            "kind": kind,
            "worldrl": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": {name: _fingerprint(temp / name) for name in listed},
            "parents": lineage,
            "store_dtype": None if store_dtype is None else str(store_dtype).removeprefix("torch."),
            "restore_float32": restore or [],
        }
        (temp / MANIFEST).write_bytes(json_bytes({**body, "digest": digest(body)}))
    return digest(body["files"])


def read_artefact(folder: Path, *, kind: str) -> Artefact:
    """Verify every file of an artefact and load it: tensors on the CPU, half-stored ones as float32 again.

    ArtefactError where it is missing, damaged, of another kind or schema, or holds pickle files.
    """
    folder = Path(folder)
    manifest = read_manifest(folder, kind=kind)
    for name, entry in manifest["files"].items():
        _verify_file(folder, name, entry)
    config = _config(folder, kind)
    restore = frozenset(manifest["restore_float32"])
    tensors = load_tensors(folder / MODEL, restore) if MODEL in manifest["files"] else {}
    return Artefact(folder, kind, config, tensors, manifest)


def read_config(folder: Path, *, kind: str | None = None) -> dict[str, Any]:
    """Read a config without tensors, of a ``kind`` (None: any); it alone is verified. See :func:`read_artefact`."""
    folder = Path(folder)
    manifest = read_manifest(folder, kind=kind)
    if CONFIG not in manifest["files"]:
        raise ArtefactError(f"{folder}: its manifest lists no {CONFIG}; make the artefact again")
    _verify_file(folder, CONFIG, manifest["files"][CONFIG])
    return _config(folder, manifest["kind"])


def read_manifest(folder: Path, *, kind: str | None = None, wanted: str = "") -> dict[str, Any]:
    """Read and check a manifest without reading the files it lists; errors as of :func:`read_artefact`.

    ``wanted`` is the usual kind where ``kind`` is None: a missing folder's error says how to make one.
    """
    folder = Path(folder)
    _check_folder(folder, kind or wanted)
    manifest = read_json(folder / MANIFEST, error=ArtefactError)
    found = manifest.get("schema")
    if found != SCHEMA:
        raise ArtefactError(
            f"{folder}: artefact schema {found!r}, this worldrl ({__version__}) reads schema {SCHEMA}; "
            "use the worldrl version that wrote it, or make it again"
        )
    body = {key: value for key, value in manifest.items() if key != "digest"}
    if manifest.get("digest") != digest(body):
        raise ArtefactError(
            f"{folder / MANIFEST}: its digest does not match its content; it was altered: make it again"
        )
    known = {name: value for name, value in body.items() if name in _Manifest.__dataclass_fields__}
    from_plain(_Manifest, known, where=str(folder / MANIFEST), error=ArtefactError)
    if kind is not None and manifest["kind"] != kind:
        raise ArtefactError(
            f"{folder}: holds a {manifest['kind']!r}, expected a {kind!r}; give the folder of a {kind!r}"
        )
    for name in manifest["files"]:
        _inside(folder, name)
    return manifest


def read_file(folder: Path, name: str) -> bytes:
    """Return one verified file of an artefact; ArtefactError as :func:`read_manifest`, or where it is not listed."""
    return _listed_file(Path(folder), name, read_manifest(folder)["files"])


def artefact_hash(folder: Path) -> str:
    """Return the SHA-256 over the names, sizes and hashes in the manifest: the same content has the same hash."""
    return digest(read_manifest(folder)["files"])


def parent(folder: Path) -> dict[str, str]:
    """Describe an artefact as a parent of another: its path and hash."""
    return {"path": str(folder), "hash": artefact_hash(folder)}


def _config(folder: Path, kind: str) -> dict[str, Any]:
    config = read_json(folder / CONFIG, error=ArtefactError)
    if config.pop("schema", None) != SCHEMA or config.pop("kind", None) != kind:
        raise ArtefactError(f"{folder / CONFIG}: schema or kind differs from its manifest; train or download it again")
    refuse_code(config, where=f"{folder / CONFIG}")
    return current_config(config)


def _checked_config(folder: Path, kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("schema", "kind"):
        if name in config:
            raise ArtefactError(f"{folder}: config may not have a key {name!r}, the artefact sets it; rename the key")
    body = plain(config, where="config", error=ArtefactError)
    refuse_code(body, where="config")
    return {"schema": SCHEMA, "kind": kind, **body}


def _checked_parent(folder: Path, entry: Mapping[str, str]) -> dict[str, str]:
    if set(entry) != {"path", "hash"}:
        raise ArtefactError(f"{folder}: parent must have exactly 'path' and 'hash', got {sorted(entry)}")
    return {"path": str(entry["path"]), "hash": str(entry["hash"])}


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"sha256": sha256, "bytes": path.stat().st_size}


def _listed_file(folder: Path, name: str, files: Mapping[str, Any]) -> bytes:
    if name not in files:
        raise ArtefactError(f"{folder}: no file {name!r} in its manifest; it lists {', '.join(sorted(files))}")
    _verify_file(folder, name, files[name])
    return (folder / name).read_bytes()


def _verify_file(folder: Path, name: str, entry: Mapping[str, Any]) -> None:
    path = _inside(folder, name)
    if not path.is_file():
        raise ArtefactError(f"{path}: missing, though the manifest lists it; copy the whole folder again")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise ArtefactError(
            f"{path}: {size} bytes, the manifest says {entry['bytes']}; it is cut short or altered: copy it again"
        )
    if _fingerprint(path)["sha256"] != entry["sha256"]:
        raise ArtefactError(f"{path}: its SHA-256 is not the manifest's; it is damaged or altered: copy it again")


def _inside(folder: Path, name: str) -> Path:
    """Resolve a name from a manifest, links included, and make sure that it stays in the folder."""
    if "\0" in name or len(name) > MAX_NAME:
        raise ArtefactError(f"{folder}: file name {name[:40]!r} holds a NUL or is too long; make the artefact again")
    root = folder.resolve()
    try:
        path = (root / name).resolve()
    except (OSError, RuntimeError) as reason:  # a link to itself
        raise ArtefactError(f"{folder}: file {name!r} cannot be read ({reason}); copy the folder again") from reason
    given = Path(name)
    inside = not given.is_absolute() and ".." not in given.parts and within(folder, path)
    if not name or not inside or path in (root, root / MANIFEST):
        raise ArtefactError(
            f"{folder}: file name {name!r} must lie inside the folder; use a relative name without '..'"
        )
    if given.suffix.lower() in PICKLES or path.suffix.lower() in PICKLES:
        raise ArtefactError(
            f"{path}: a {given.suffix or path.suffix} file may run code when loaded; convert it to .safetensors"
        )
    return path


def _check_folder(folder: Path, kind: str) -> None:
    if not folder.exists():
        maker = MAKERS.get(kind, "the command that writes it")
        raise ArtefactError(f"{folder}: no such folder; check the path, or make it with {maker}")
    if folder.suffix.lower() in PICKLES and folder.is_file():
        raise ArtefactError(
            f"{folder}: a {folder.suffix} file may run code when loaded; convert it to an artefact folder"
        )
    if not folder.is_dir():
        raise ArtefactError(f"{folder}: is a file; give the artefact's folder, the one that holds {MANIFEST}")
    pickles = sorted(p.name for p in folder.rglob("*") if p.suffix.lower() in PICKLES)
    if pickles:
        raise ArtefactError(f"{folder}: holds {pickles[0]}, which may run code when loaded; convert it to .safetensors")
    if not (folder / MANIFEST).is_file():
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        raise ArtefactError(
            f"{folder}: no {MANIFEST} (found {found}); it is not a worldrl artefact, or was copied in part"
        )


def within(folder: Path, target: Path) -> bool:
    """Whether a resolved file belongs to a folder; in the hub's cache files are links to ``blobs`` beside its snapshots."""
    root = folder.resolve()
    blobs = [root.parents[1] / "blobs"] if root.parent.name == "snapshots" else []
    return any(target.is_relative_to(place) for place in (root, *blobs))


class Shared:
    """Adds the hub's three verbs to a class with ``load(folder, device)`` and ``save(folder)``."""

    @classmethod
    def from_pretrained(cls, source: Path | str, *, device: str = "cpu") -> Self:
        """Load a folder, or ``OWNER/NAME`` or ``OWNER/NAME@REVISION`` of the hub where no such folder is there."""
        from worldrl.core.storage.hub import REPO, hub_folder

        folder = Path(source)
        if not folder.exists() and REPO.fullmatch(str(source)):
            folder = hub_folder(f"hf://{source}")
        return cast("Any", cls).load(folder, device)

    def save_pretrained(self, folder: Path | str) -> None:
        """Write it as a folder."""
        cast("Any", self).save(Path(folder))

    def push_to_hub(self, repo: str, *, private: bool = True, message: str = "Upload with worldrl") -> str:
        """Upload it as the model ``OWNER/NAME``; returns the page of the commit. `worldrl card` uploads a folder with results.

        Raises SettingError (no such form of name) and ArtefactError (not allowed, or the hub does not answer).
        """
        from worldrl.core.storage.hub import push_folder

        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / repo.rpartition("/")[2]
            cast("Any", self).save(folder)
            return push_folder(folder, repo, private=private, message=message)
