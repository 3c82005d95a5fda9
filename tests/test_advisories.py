"""No floor, pin or lock admits a release with a vulnerability that files from strangers can reach."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FIXED = {
    "av": ("18.1", "CVE-2026-40962: FFmpeg before 8.1, MOV demuxer"),
    "msgpack": ("1.2.4", "GHSA-6v7p-g79w-8964"),
    "hydra-core": ("1.3.8", "GHSA-2cp2-2r3c-7p7r"),
    "pyarrow": ("26.0", "CVE-2026-25087"),
}
"""Package to the oldest release that is admitted, and why."""
MITIGATED = {
    "lerobot.txt": {"av", "transformers"},
    "lerobot06.txt": {"av"},
}
"""Locks that cannot move, since lerobot declares it: worldrl decodes films in the core, and refuses configs that name code."""


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(t for extra in project["optional-dependencies"].values() for t in extra)]
    return [Requirement(text) for text in texts]


def pins(file: Path) -> dict[str, Version]:
    rows = [line.split("#")[0].strip() for line in file.read_text().splitlines()]
    return {name: Version(version) for name, _, version in (row.partition("==") for row in rows if "==" in row)}


@pytest.mark.parametrize("package", FIXED)
def test_the_oldest_admitted_release_has_the_fix(package: str) -> None:
    floors = [r for r in requirements() if r.name == package]
    assert floors
    for requirement in floors:
        oldest = min(Version(s.version) for s in requirement.specifier if s.operator == ">=")
        assert oldest >= Version(FIXED[package][0]), FIXED[package][1]
    assert pins(ROOT / "constraints.txt")[package] >= Version(FIXED[package][0])


@pytest.mark.parametrize(
    "lock", sorted((ROOT / "worldrl" / "workers" / "locks").glob("*.txt")), ids=lambda path: path.name
)
def test_locks_of_workers_hold_no_older_release_without_a_reason(lock: Path) -> None:
    fixed = {name: version for name, (version, _) in FIXED.items()} | {"transformers": "5.3.0"}
    old = {name for name, version in pins(lock).items() if name in fixed and version < Version(fixed[name])}
    assert old == MITIGATED.get(lock.name, set())
