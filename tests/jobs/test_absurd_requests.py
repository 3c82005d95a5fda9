"""Commands whose requests fit no disk or memory: refused with the least size, before anything is allocated or written."""

import pytest
import torch

from worldrl.cli import USER_ERROR, main
from worldrl.core.errors import SettingError
from worldrl.core.storage import capacity
from worldrl.core.transitions import Transitions
from worldrl.jobs.data import collect_suite
from worldrl.reproductions.catalogue import CATALOGUE, HELD, require_room
from worldrl.rollout.suites import libero
from worldrl.world_models.state.config import EnsembleConfig, EnsembleTraining
from worldrl.world_models.state.ensemble_training import fit_ensemble


@pytest.fixture
def no_room(monkeypatch):
    """100 bytes of disk and of memory."""
    monkeypatch.setattr(capacity, "free_bytes", lambda _folder: 100)
    monkeypatch.setattr(capacity, "available_memory", lambda: 100)
    monkeypatch.setattr(libero, "libero_tasks", lambda _suite: ("one", "two"))
    monkeypatch.setattr(collect_suite, "require_expert", lambda *_: None)


@pytest.mark.parametrize(
    ("tokens", "asked"),
    [
        ("restyle data={} by=image", "560 frames are drawn again, which takes at least"),
        ("restyle data={} styles=[dark_table]", "560 frames are drawn again, which takes at least"),
        ("collect suite=libero_spatial expert_episodes=2", "4 episodes with image_size=64, which takes at least"),
        ("train-idm data=[{}]", "560 frames of 1 cameras, 16 by 16 pixels each, which takes at least 0.4 MB of memory"),
        ("train-policy data=[{}] model.image_size=16", "560 frames of 1 cameras"),
        ("train-policy data=[{}] model.fit=stretch", "560 frames of 1 cameras, 64 by 64 pixels each"),
        ("imagine data={} world_model=bundled", None),  # takes a few episodes only, and of the wrong size here
    ],
)
def test_a_dataset_that_fits_nowhere_is_refused(no_room, tokens, asked, push_dataset, tmp_path, capfd):
    assert main([*tokens.format(push_dataset).split(), f"run_dir={tmp_path / 'run'}"]) == USER_ERROR
    if asked is not None:
        assert asked in capfd.readouterr().err.strip().splitlines()[-1]
    assert not list((tmp_path / "run").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("tokens", "asked"),
    [
        ("align-world-model data=[{data}] start={model} alignment.prompts=1000000000", "alignment.prompts=1000000000"),
        ("align-world-model data=[{data}] start={model} alignment.chunks=1000000000", "alignment.chunks=1000000000"),
        ("align-world-model data=[{data}] start={model} method=sol_rl methods.sol_rl.explored=1000000000", "explored"),
        ("align-world-model data=[{data}] start={model} videos=1000000000", "videos=1000000000 of each start"),
        ("reproduce pgd change.trajectories=1000000000", "change.trajectories=1000000000, change.length="),
        ("reproduce eva scale=tiny change.image_size=65536", "change.image_size=65536"),
        ("reproduce offline-video scale=tiny change.starts=1000000000", "change.starts=1000000000"),
    ],
)
def test_imagined_arrays_that_fit_nowhere_are_refused(tokens, asked, make_world_model, push_dataset, tmp_path, capfd):
    """On this machine, without any pretence: 10^9 of anything is more than it holds."""
    make_world_model(planning=True).save(tmp_path / "model")
    words = tokens.format(data=push_dataset, model=tmp_path / "model").split()
    assert main([*words, f"run_dir={tmp_path / 'run'}"]) == USER_ERROR
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert asked in said or "explored" in asked
    assert "which takes at least" in said


def test_the_memory_of_every_reproduction_is_known_and_its_own_sizes_fit():
    assert set(HELD) == set(CATALOGUE)
    for name, entry in CATALOGUE.items():
        for sizes in entry.load().SETTINGS.values():
            require_room(name, sizes)


def test_an_inverse_dynamics_of_absurd_sizes_is_never_made(push_dataset, tmp_path, capfd):
    given = [f"data=[{push_dataset}]", "model.width=65536", f"run_dir={tmp_path / 'run'}"]
    assert main(["train-idm", *given]) == USER_ERROR
    assert "model: its sizes make a network of" in capfd.readouterr().err


def test_an_ensemble_and_layers_of_absurd_sizes_are_never_made():
    ends = torch.zeros(8, dtype=torch.bool)
    rows = Transitions(torch.zeros(8, 3), torch.zeros(8, 2), torch.zeros(8), torch.zeros(8, 3), ends, ends)
    with pytest.raises(SettingError, match=r"ensemble: its sizes make a network of [\d,]+ weights"):
        fit_ensemble("world", rows, EnsembleConfig(width=65_536, depth=20), EnsembleTraining(), seed=0)
    with pytest.raises(
        SettingError, match=r"agent\.hidden: its layers have 4,294,967,296,000 weights or more, which takes at"
    ):
        capacity.require_layers([65_536] * 1001, "agent.hidden")
    capacity.require_layers([256, 256], "agent.hidden")
    capacity.require_layers([], "agent.hidden")
