import json

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.data import restyle
from worldrl.jobs.data.restyle import RestyleSettings
from worldrl.recipes.stages import split_held_out
from worldrl.rollout.real.specs import scene_digest


def settings_for(data, folder, **over):
    return RestyleSettings(data=str(data), run_dir=str(folder), by="image", **over)


def test_recolours_a_recording_that_no_simulator_knows(push_dataset, tmp_path):
    metrics = restyle.main(settings_for(push_dataset, tmp_path / "run"))
    recorded, restyled = EpisodeDataset.open(push_dataset), EpisodeDataset.open(tmp_path / "run" / "dataset")
    assert metrics["visual_styles"] == {"image": len(recorded)}
    assert metrics["frames"] == sum(map(len, recorded)) + len(recorded)
    for old, new in zip(recorded, restyled, strict=True):
        assert not np.array_equal(old.frames, new.frames)
        np.testing.assert_array_equal(old.action, new.action)
        assert new.meta["style"] == "image"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["command"], result["metrics"]) == ("restyle", metrics)


@pytest.mark.parametrize("loaded", [True, False])
def test_copies_stay_on_the_side_of_what_they_are_copies_of(push_dataset, tmp_path, loaded):
    """Also a copy of a copy, and where no simulator knows the recording: nothing held out is trained on in another look."""
    restyle.main(settings_for(push_dataset, tmp_path / "once"))
    restyle.main(settings_for(tmp_path / "once" / "dataset", tmp_path / "twice", seed=1))
    folders = (push_dataset, tmp_path / "once" / "dataset", tmp_path / "twice" / "dataset")
    looks = [EpisodeDataset.open(folder) for folder in folders]
    pooled = [e for look in looks for e in look] if loaded else looks[0].concatenate(*looks[1:])
    parts = split_held_out(pooled, 0.5, seed=0)
    assert [len(part) for part in parts] == [24, 12, 12]
    motions = [{episode.action.tobytes() for episode in part} for part in parts]
    assert sum(map(len, motions)) == len(set.union(*motions)) == 16
    assert len({scene_digest(record) for look in looks for record in look.records}) == 16


def test_a_restyling_interrupted_resumes_to_the_same_images(push_dataset, tmp_path, monkeypatch):
    whole, true = settings_for(push_dataset, tmp_path / "whole"), restyle.recolour_episode
    restyle.main(whole)
    calls = []

    def stops(*args, **kwargs):
        calls.append(len(calls))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return true(*args, **kwargs)

    monkeypatch.setattr(restyle, "recolour_episode", stops)
    with pytest.raises(KeyboardInterrupt):
        restyle.main(settings_for(push_dataset, tmp_path / "cut"))
    restyle.main(settings_for(push_dataset, tmp_path / "cut"))
    assert len(calls) == len(EpisodeDataset.open(push_dataset)) + 1
    for a, b in zip(*(EpisodeDataset.open(tmp_path / name / "dataset") for name in ("whole", "cut")), strict=True):
        np.testing.assert_array_equal(a.frames, b.frames)


def test_unknown_ways_are_refused():
    with pytest.raises(SettingError, match="by"):
        RestyleSettings(by="magic")
