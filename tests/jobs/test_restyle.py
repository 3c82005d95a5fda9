import json

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.data.dataset import EpisodeDataset
from worldrl.jobs import restyle
from worldrl.jobs.restyle import RestyleSettings


def settings_for(data, folder, **over):
    return RestyleSettings(data=str(data), run_dir=str(folder), by="image", **over)


def test_recolours_a_recording_that_no_simulator_knows(push_dataset, tmp_path):
    metrics = restyle.main(settings_for(push_dataset, tmp_path / "run"))
    recorded, restyled = EpisodeDataset.open(push_dataset), EpisodeDataset.open(tmp_path / "run" / "dataset")
    assert metrics["looks"] == {"image": len(recorded)}
    assert metrics["frames"] == sum(map(len, recorded)) + len(recorded)
    for old, new in zip(recorded, restyled, strict=True):
        assert not np.array_equal(old.frames, new.frames)
        np.testing.assert_array_equal(old.action, new.action)
        assert new.meta["style"] == "image"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["command"], result["metrics"]) == ("restyle", metrics)


def test_a_restyling_cut_short_goes_on_to_the_same_pictures(push_dataset, tmp_path, monkeypatch):
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
