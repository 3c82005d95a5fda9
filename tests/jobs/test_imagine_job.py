import json

import pytest

from worldrl.core.errors import SettingError
from worldrl.data.dataset import EpisodeDataset
from worldrl.evaluation.world_model import whole_chunks
from worldrl.jobs import imagine
from worldrl.jobs.imagine import ImagineSettings, choose_episodes


def test_dreams_are_filmed_and_measured(push_dataset, world_model, tmp_path):
    world_model.save(tmp_path / "model")
    settings = ImagineSettings(
        run_dir=str(tmp_path / "run"), world_model=str(tmp_path / "model"), data=str(push_dataset), episodes=3, steps=9
    )
    metrics = imagine.main(settings)
    assert len(list((tmp_path / "run" / "videos").glob("*.mp4"))) == 3
    assert len(list((tmp_path / "run" / "filmstrips").glob("*.png"))) == 3
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["schema"], result["command"]) == (1, "imagine")
    assert result["metrics"]["episodes"] == 3
    assert metrics["action_swap_ratio"] > 0
    assert metrics.keys() >= {"closed_loop.psnr@8", "precision", "recall", "outcome_alignment"}
    assert imagine.main(settings) == metrics


def test_successes_and_failures_take_turns(push_dataset):
    dataset = EpisodeDataset.open(push_dataset)
    outcomes = [episode.success for episode in choose_episodes(dataset, len(dataset), seed=0)]
    fewer = min(sum(outcomes), len(outcomes) - sum(outcomes))
    assert fewer > 1
    assert outcomes[: 2 * fewer] == [True, False] * fewer
    assert len(outcomes) == len(dataset)
    first, again, other = ([e.meta["index"] for e in choose_episodes(dataset, 6, seed=seed)] for seed in (0, 0, 1))
    assert first == again != other


def test_a_success_after_the_dreamed_steps_does_not_count_as_missed(push_dataset, world_model, tmp_path):
    world_model.save(tmp_path / "model")
    dataset = EpisodeDataset.open(push_dataset)
    settings = ImagineSettings(
        run_dir=str(tmp_path / "run"), world_model=str(tmp_path / "model"), data=str(push_dataset), episodes=16, steps=4
    )
    metrics = imagine.main(settings)
    early = sum(1 for e in dataset if e.first_success is not None and e.first_success <= 4)
    assert early < sum(record.success for record in dataset.records)
    assert (metrics["recall"] or {"n": 0})["n"] == early


def test_small_pieces():
    assert [whole_chunks(n, 8) for n in (1, 8, 9)] == [8, 8, 16]
    for over in ({"episodes": 0}, {"steps": -1}, {"dtype": "int8"}, {"world_model": "scratch"}):
        with pytest.raises(SettingError, match=next(iter(over))):
            ImagineSettings(**over)
