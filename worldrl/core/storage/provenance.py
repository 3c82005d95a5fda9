"""Where a number came from: the code's version and commit, and the versions of the packages it rests on."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path

from worldrl import __version__

PACKAGES = [
    "torch",
    "numpy",
    "scipy",
    "gymnasium",
    "mujoco",
    "mink",
    "safetensors",
    "hydra-core",
    "omegaconf",
    "opencv-python-headless",
    "pyarrow",
    "av",
    "diffusers",
    "stable-baselines3",
    "minari",
]


def package_versions() -> dict[str, str]:
    """Return Python's version and those of the installed packages that results depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def code_version() -> dict[str, str | None]:
    """Return worldrl's version, and its commit when it runs from a git checkout (``+dirty`` if edited)."""
    root = Path(__file__).resolve().parents[3]
    # A wheel inside somebody's own repository must not report that repository's commit.
    in_checkout = (root / ".git").exists()
    commit = _git(root, "rev-parse", "HEAD") if in_checkout else None
    if commit and _git(root, "status", "--porcelain", "--untracked-files=no"):
        commit += "+dirty"
    return {"version": __version__, "commit": commit}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
