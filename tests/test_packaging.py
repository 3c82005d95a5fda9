"""What is declared about the package agrees with what is in it: dependencies, pins, versions, paths, CI commands."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from worldrl import __version__, paths

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
META = PROJECT["project"]
MODULE_OF = {
    "hydra-core": "hydra",
    "opencv-python-headless": "cv2",
    "pyyaml": "yaml",
    "stable-baselines3": "stable_baselines3",
}
EXTRAS = META["optional-dependencies"]


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def third_party(folder: Path, *, lazy: bool) -> set[str]:
    """Top-level modules of other projects that the code imports, at module level or (``lazy``) anywhere."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree) if lazy else tree.body:
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"worldrl", "worldrl_envs"}


def modules(requirements: list[str]) -> set[str]:
    names = [Requirement(text).name for text in requirements]
    return {MODULE_OF.get(name, name.replace("-", "_")) for name in names}


@pytest.mark.parametrize("folder", ["worldrl", "envs/worldrl_envs"])
def test_every_import_is_a_declared_dependency(folder: str) -> None:
    core = modules(META["dependencies"])
    assert third_party(ROOT / folder, lazy=False) <= core
    assert third_party(ROOT / folder, lazy=True) <= core | modules([*EXTRAS["sb3"], *EXTRAS["offline"], *EXTRAS["wan"]])


def test_every_import_beside_lerobot_is_a_declared_dependency() -> None:
    folder = ROOT / "envs" / "lerobot_env_worldrl"
    declared = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    assert third_party(folder, lazy=True) - {folder.name} <= modules(declared)


@pytest.mark.parametrize("text", [*META["dependencies"], *(text for extra in EXTRAS.values() for text in extra)])
def test_requirement_is_pinned_to_a_version_it_accepts(text: str) -> None:
    requirement = Requirement(text)
    pinned = pins().get(canonicalize_name(requirement.name))
    assert pinned is not None, f"{requirement.name} is missing from constraints.txt"
    assert requirement.specifier.contains(pinned), f"{text} does not accept the tested {pinned}"


def test_installed_set_satisfies_the_declared_ranges() -> None:
    from importlib.metadata import version

    for text in META["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(version(requirement.name)), text


def test_torch_is_pinned_before_all_others_and_torchvision_with_it() -> None:
    assert list(pins())[:2] == ["torch", "torchvision"]
    assert "torchvision" not in modules([*META["dependencies"], *(t for extra in EXTRAS.values() for t in extra)])


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert META["version"] == __version__ == citation["version"]
    assert META["license"] == citation["license"]


def test_licence_is_the_whole_text() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_every_path_in_tool_configuration_exists() -> None:
    tool = PROJECT["tool"]
    wheel = tool["hatch"]["build"]["targets"]["wheel"]
    named = [
        *tool["pyright"]["include"],
        *tool["pyright"]["strict"],
        *tool["pyright"]["extraPaths"],
        *tool["ruff"]["src"],
        *(key.removesuffix("/**") for key in tool["ruff"]["lint"]["per-file-ignores"]),
        *tool["pytest"]["ini_options"]["testpaths"],
        *tool["hatch"]["build"]["dev-mode-dirs"],
        *wheel["packages"],
        *wheel["force-include"],
        *META["license-files"],
        META["readme"],
    ]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_wheel_takes_only_our_two_names() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {Path(package).name for package in wheel["packages"]} == {"worldrl", "worldrl_envs"}
    for target in wheel["force-include"].values():
        # A bare `configs` or `assets` in site-packages would overwrite another project's.
        assert target.startswith(("worldrl/_", "worldrl_envs/_"))


@pytest.mark.parametrize("package", ["worldrl", "envs/worldrl_envs", "envs/lerobot_env_worldrl"])
def test_package_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_folders_of_a_checkout() -> None:
    assert paths.in_checkout()
    assert paths.config_dir() == ROOT / "configs"
    assert paths.weights_dir() == ROOT / "assets" / "weights"


def test_folders_of_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "worldrl"
    for name in ("_configs", "_weights/policy"):
        (package / name).mkdir(parents=True)
    # A stranger's folder of the same name as ours in a checkout.
    (tmp_path / "site-packages" / "configs").mkdir()
    monkeypatch.setattr(paths, "PACKAGE", package)
    monkeypatch.setattr(paths, "CHECKOUT", package.parent)
    assert paths.config_dir() == package / "_configs"
    assert [folder.name for folder in paths.bundled_weights()] == ["policy"]


def test_incomplete_installation_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "worldrl")
    monkeypatch.setattr(paths, "CHECKOUT", tmp_path)
    with pytest.raises(paths.ArtefactError, match=r"configurations: no folder .*_configs; reinstall"):
        paths.config_dir()


def dry_run(*targets: str) -> list[str]:
    """The commands that make would run in a checkout without an environment."""
    apart = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # `make test` runs this
    line = ["make", "-n", "--no-print-directory", "VENV=none", "PYTHON=python3", *targets]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True, env=apart).stdout.splitlines()


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("demo", "none/bin/worldrl demo"),
        ("train", "none/bin/worldrl train-vla"),
        ("test", "none/bin/python -m pytest -q -n 2 --dist worksteal"),
        ("lint", "none/bin/ruff check ."),
        ("types", "none/bin/pyright --pythonpath none/bin/python"),
        ("spell", "none/bin/codespell"),
        ("language", "none/bin/python scripts/check_language.py README.md CONTRIBUTING.md SECURITY.md docs assets"),
    ],
)
def test_every_target_makes_the_environment_first(target: str, command: str) -> None:
    commands = dry_run(target)
    assert commands[:3] == [
        "python3 scripts/check_system.py",
        "python3 -m venv none",
        "none/bin/pip install -q -c constraints.txt -e '.[dev]'",
    ]
    assert commands[4] == command


def test_ci_and_the_readme_use_the_same_commands() -> None:
    script, readme = (ROOT / ".ci" / "run").read_text(), (ROOT / "README.md").read_text()
    assert "\nmake test\n" in script
    assert "\nmake lint types spell language PYTHON=" in script
    for command in ("make demo", "make train", "make test", "pip install -c constraints.txt -e '.[dev]'"):
        assert command in readme


def test_missing_libraries_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("check_system", ROOT / "scripts" / "check_system.py")
    assert spec is not None
    assert spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(check, "LIBRARIES", ("libNowhere.so.1",))
    assert check.main() == 1
    assert re.search(r"libNowhere.so.1 is missing.*apt-get install -y libegl1", capsys.readouterr().err)
    monkeypatch.setattr(check, "OLDEST", (99, 0))
    assert check.main() == 1
    assert "is too old" in capsys.readouterr().err
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setattr(check, "OLDEST", (3, 11))
    assert check.main() == 0


def test_hooks_run_the_tools_of_the_environment() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    for hook in hooks[0]["hooks"]:
        for path in re.findall(r"tests/\S+", hook["entry"]):
            assert (ROOT / path).is_file()


def test_ci_script_is_executable_and_parses() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)
