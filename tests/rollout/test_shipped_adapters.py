"""Adapters that come with worldrl: short files that import their simulator only, and what `check-suite` finds in them.

Unit under test: ``workers/*/adapter.py`` of ``rollout/suites/names.py``.
"""

import ast
import importlib
import json
import sys
from pathlib import Path

import pytest

import worldrl
from worldrl.cli import main
from worldrl.core.embodiment import embodiment_from_json
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.rollout.suites.names import ADAPTERS
from worldrl.simulators.environments import LOCKS, find_environment
from worldrl.workers.adapter import description

MODULES = sorted({target.partition(":")[0] for _, target in ADAPTERS.values()})
WITHOUT_EXPERT = {"pusht": {"push-t"}}


def file_of(module):
    return Path(worldrl.__file__).parents[1] / f"{module.replace('.', '/')}.py"


def environment_or_skip(name):
    try:
        find_environment(name)
    except WorkerEnvironmentError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("module", MODULES)
def test_each_is_a_short_file_of_the_standard_library_and_numpy(module):
    text = file_of(module).read_text()
    assert len(text.splitlines()) <= 70
    imported = {
        name
        for node in ast.walk(ast.parse(text))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else getattr(node, "names", []))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    roots = {getattr(name, "name", name).partition(".")[0] for name in imported}
    assert roots <= {"numpy", *sys.stdlib_module_names}


@pytest.mark.parametrize("suite", ADAPTERS)
def test_each_is_described_rightly_and_its_lock_holds_its_packages(suite, monkeypatch):
    environment, target = ADAPTERS[suite]
    module, _, name = target.partition(":")
    monkeypatch.setattr(description, "version", lambda package: "1")
    found = description.describe(getattr(importlib.import_module(module), name))
    assert found.name == suite
    embodiment_from_json(dict(found.robot))
    assert set(found.unscripted) == WITHOUT_EXPERT.get(suite, set())
    (lock,) = LOCKS[environment]
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lock.path.read_text().splitlines()}
    assert set(found.packages) | {"numpy"} <= pinned


@pytest.mark.sim
@pytest.mark.parametrize("suite", ADAPTERS)
def test_each_passes_its_checks(suite, tmp_path, capsys):
    environment_or_skip(ADAPTERS[suite][0])
    assert main(["check-suite", suite, "episodes=2", f"run_dir={tmp_path / 'run'}"]) == 0
    checks = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["checks"]
    assert {check["task"] for check in checks if check["passed"] is None} == WITHOUT_EXPERT.get(suite, set())


@pytest.mark.sim
@pytest.mark.parametrize("suite", [suite for suite in ADAPTERS if suite not in WITHOUT_EXPERT])
def test_each_experts_episodes_are_recorded(suite, tmp_path, capsys):
    environment_or_skip(ADAPTERS[suite][0])
    tokens = [f"suite={suite}", "expert_episodes=1", "workers=1", f"run_dir={tmp_path / 'run'}"]
    assert main(["collect", *tokens]) == 0
    dataset = EpisodeDataset.open(tmp_path / "run" / "dataset")
    assert dataset.header.suite == suite
    assert sum(record.success for record in dataset.records) > len(dataset) / 2
