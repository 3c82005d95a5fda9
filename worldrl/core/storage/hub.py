"""Folders of the Hugging Face hub, read and written as any other folder.

``hf://OWNER/NAME``, ``hf://OWNER/NAME@REVISION`` and ``hf://datasets/OWNER/NAME`` are downloaded into the hub's own cache,
data files only. What is read there is checked as any folder from a stranger is. With ``HF_HUB_OFFLINE=1`` the cache alone
is read. Nothing else in worldrl opens a connection of its own accord.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.extras import require

URI = re.compile(r"hf://(?P<data>datasets/)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
REPO = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
DATA_ONLY = ["*.json", "*.jsonl", "*.safetensors", "*.parquet", "*.mp4", "*.png", "*.md", "*.txt", "*.npz"]
"""Files that are downloaded: no code, and no pickle."""
TOKEN = "log in with `hf auth login`, or set HF_TOKEN"


def hub_folder(uri: str) -> Path:
    """Download the folder of an ``hf://`` name once, and return where it lies; ArtefactError where it cannot be had."""
    match = URI.fullmatch(uri)
    if match is None:
        raise SettingError(f"{uri}: write hf://OWNER/NAME, hf://OWNER/NAME@REVISION or hf://datasets/OWNER/NAME")
    with _one_line(uri):
        found = _hub().snapshot_download(
            match["repo"],
            repo_type="dataset" if match["data"] else "model",
            revision=match["revision"],
            allow_patterns=DATA_ONLY,
        )
    return Path(found)


def with_hub_folders(text: str) -> str:
    """Return a setting's text with each ``hf://`` name in it replaced by the folder of its download."""
    return URI.sub(lambda match: str(hub_folder(match[0])), text)


def push_folder(folder: Path, repo: str, *, private: bool, message: str) -> str:
    """Upload an artefact's folder as the model ``OWNER/NAME``; returns the page of the commit.

    Raises SettingError (no such form of name) and ArtefactError (not allowed, or the hub does not answer).
    """
    if not REPO.fullmatch(repo) or "@" in repo:
        raise SettingError(f"{repo!r}: a model of the hub is written OWNER/NAME")
    with _one_line(repo):
        api = _hub().HfApi()
        api.create_repo(repo, private=private, exist_ok=True)
        uploaded = api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message, allow_patterns=DATA_ONLY)
    return str(uploaded.commit_url)


def _hub() -> Any:
    return require("huggingface_hub", extra="hub")


@contextmanager
def _one_line(name: str) -> Generator[None]:
    """Turn what the hub's library raises into one ArtefactError that says what to do."""
    known = require("huggingface_hub.errors", extra="hub")
    try:
        yield
    except known.GatedRepoError as reason:
        raise ArtefactError(f"{name}: the hub asks for your consent; accept it on its page, then {TOKEN}") from reason
    except known.RepositoryNotFoundError as reason:
        raise ArtefactError(f"{name}: not on the hub, or private; check the name, or {TOKEN}") from reason
    except (known.RevisionNotFoundError, known.RevisionResolutionError) as reason:
        raise ArtefactError(f"{name}: has no such revision; leave @REVISION out for the newest") from reason
    except known.LocalEntryNotFoundError as reason:
        raise ArtefactError(f"{name}: not in the cache, and the hub was not reached; go online once") from reason
    except (known.HTTPError, known.HFValidationError, OSError) as reason:
        first = next(iter(str(reason).splitlines()), "") or type(reason).__name__
        raise ArtefactError(f"{name}: the hub's library failed ({first}); {TOKEN}, or try again") from reason
