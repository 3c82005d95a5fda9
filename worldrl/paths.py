"""Folders of files that are not code: configurations, bundled weights, MJCF and initial states.

A checkout has them in top-level folders; an installed wheel has copies inside the packages (``worldrl/_configs``,
``worldrl/_weights``, ``worldrl_envs/_assets``). The checkout takes precedence, so an edit takes effect at once.
"""

from __future__ import annotations

from pathlib import Path

from worldrl.core.errors import ArtefactError

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = PACKAGE.parent


def in_checkout() -> bool:
    """Whether this module was imported from a checkout rather than from an installed wheel."""
    # site-packages holds no pyproject.toml, so another package's site-packages/configs is never used.
    return (CHECKOUT / "pyproject.toml").is_file()


def _folder(what: str, checkout: Path, packaged: Path) -> Path:
    folder = checkout if in_checkout() else packaged
    if not folder.is_dir():
        raise ArtefactError(f"{what}: no folder {folder}; reinstall with `pip install -e .` or from a complete wheel")
    return folder


def config_dir() -> Path:
    """Folder of YAML configurations, one sub-folder per command; ArtefactError if the installation is incomplete."""
    return _folder("configurations", CHECKOUT / "configs", PACKAGE / "_configs")


def weights_dir() -> Path:
    """Folder of bundled weights, one artefact folder per name; ArtefactError if the installation is incomplete."""
    return _folder("bundled weights", CHECKOUT / "assets" / "weights", PACKAGE / "_weights")


def bundled_weights() -> list[Path]:
    """Artefact folders shipped with worldrl, sorted by name; empty if none are bundled."""
    return sorted(folder for folder in weights_dir().iterdir() if folder.is_dir())
