"""Where the MJCF models and the stored initial states lie: the checkout's `assets/`, else the wheel's `_assets`."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def assets_dir() -> Path:
    """Folder that holds `mjcf/` and `initial_states/`; FileNotFoundError for none."""
    candidates = (PACKAGE.parents[1] / "assets", PACKAGE / "_assets")
    for folder in candidates:
        if (folder / "mjcf" / "scene.xml").is_file():
            return folder
    looked = " and ".join(str(folder) for folder in candidates)
    raise FileNotFoundError(f"worldrl_envs assets: no mjcf/scene.xml in {looked}; reinstall the package")


def mjcf(name: str) -> Path:
    """Path of one MJCF file, by its stem."""
    return assets_dir() / "mjcf" / f"{name}.xml"


def initial_states(task: str) -> Path:
    """Path of a task's stored initial states (`.npz`), whether or not it exists yet."""
    return assets_dir() / "initial_states" / f"{task}.npz"
