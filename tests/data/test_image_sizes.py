"""Unit under test: datasets whose images have another size than a model's: ``fit`` of a model, and of ``worldrl.json``."""

import json
from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.image_fit import WAYS, Fit, ImageFit, fit_image
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.policy.trained_on import merged, trained_on
from worldrl.recipes.training_data import open_datasets

ROBOT = {"kind": "joints", "names": ["lift", "turn"], "low": [-1.0, -1.0], "high": [50.0, 50.0], "max_speed": [100.0, 100.0], "control_hz": 30.0}  # fmt: skip
SHAPE = (24, 32)


@pytest.fixture
def wide(tmp_path, publish_lerobot):
    """Open an external recording with images of 24 by 32 pixels; returns the dataset and its images."""
    images = np.random.default_rng(0).integers(0, 256, (20, *SHAPE, 3), np.uint8)
    action = np.column_stack([np.arange(20), 2 * np.arange(20)]).astype(np.float32)
    columns = {"sentence": "lift", "observation.state": action, "action": action, "observation.images.front": images}
    folder = publish_lerobot(tmp_path / "wide", [columns], fps=30)

    def opened(wanted=None, **stated):
        (folder / "worldrl.json").write_text(json.dumps({"robot": ROBOT, "success": "every episode", **stated}))
        return EpisodeDataset.open(folder, images=wanted), images

    return opened


@pytest.mark.parametrize("way", WAYS)
def test_a_models_fit_and_that_of_worldrl_json_are_one_function(wide, way):
    stated, images = wide(image_size=16, fit=way)
    asked, _ = wide(ImageFit(16, Fit(way)))
    replaced, _ = wide(ImageFit(16, Fit(way)), image_size=20, fit="stretch")
    for data in (stated, asked, replaced):
        assert data.image_size == (16, 16)
        assert (data.header.fit, data.header.observation.fit) == (way, way)
        for shown, original in zip(data[0].frames[:, 0], images, strict=True):
            np.testing.assert_array_equal(shown, fit_image(original, (16, 16), Fit(way)))
        kept = data.records[0].meta["lerobot"]
        assert (kept["image_size"], kept["fit"], kept["image_sizes"]) == ([16, 16], way, [list(SHAPE)])


def test_each_way_is_another_content(wide):
    found = {wide(ImageFit(16, Fit(way)))[0].fingerprint for way in WAYS}
    assert len(found) == len(WAYS)
    assert wide()[0].fingerprint not in found


def test_images_are_left_alone_without_a_fit(wide):
    for wanted in (None, ImageFit(16, Fit.refuse)):
        header = wide(wanted)[0].header
        assert (header.image_size, header.fit) == (SHAPE, Fit.refuse)
        assert "fit" not in header.to_json()
        assert "fit" not in header.to_json()["observation"]
    smaller = wide(image_size=[12, 16], fit="crop")[0]  # of the same aspect: every fit is the same
    assert smaller.header.fit is Fit.refuse


def test_a_size_of_another_aspect_is_asked_for_or_said(wide, capfd):
    with pytest.raises(
        SettingError, match=r"distorted to a square; fit must be one of stretch, .*\"fit\": \"letterbox\""
    ):
        wide(image_size=16)
    data, images = wide(image_size=[16, 16])
    assert any("stretched to (16, 16) (fit: 'stretch')" in text for text in data.records[0].meta["lerobot"]["assumed"])
    np.testing.assert_array_equal(data[0].frames[3, 0], fit_image(images[3], (16, 16), Fit.stretch))
    assert not any("fit" in text for text in wide(image_size=[12, 16])[0].records[0].meta["lerobot"]["assumed"])


@pytest.mark.parametrize(
    ("stated", "rule"),
    [
        ({"image_size": 16, "fit": "zoom"}, "fit must be one of 'stretch', 'crop', 'letterbox', got 'zoom'"),
        ({"image_size": 16, "fit": 3}, "fit must be one of"),
        ({"fit": "crop"}, "fit must be beside image_size"),
    ],
)
def test_an_impossible_fit_is_refused(wide, stated, rule):
    with pytest.raises(SettingError, match=rf"worldrl\.json: {rule}"):
        wide(**stated)


@pytest.mark.parametrize("way", WAYS)
def test_recordings_of_worldrl_are_fitted_too(way, push_episode, robot, tmp_path):
    episode = push_episode(0, 10)
    frames = np.random.default_rng(1).integers(0, 256, (11, 1, *SHAPE, 3), np.uint8)
    with LeRobotWriter(tmp_path / "d", fps=20, cameras=("scene",), image_size=SHAPE, embodiment=robot) as writer:
        writer.add_episode(replace(episode, frames=frames))
    plain, fitted = (EpisodeDataset.open(tmp_path / "d", images=i) for i in (None, ImageFit(16, Fit(way))))
    assert (fitted.image_size, fitted[0].frames.shape) == ((16, 16), (11, 1, 16, 16, 3))
    np.testing.assert_array_equal(fitted[0].frames[4, 0], fit_image(frames[4, 0], (16, 16), Fit(way)))
    np.testing.assert_array_equal(fitted[0].action, plain[0].action)
    assert fitted.fingerprint != plain.fingerprint
    assert fitted.records[0].content != plain.records[0].content
    assert (fitted.header.fit, plain.header.fit) == (way, Fit.refuse)


def test_a_folder_keeps_how_its_images_got_their_size(push_episode, robot, tmp_path):
    """Written, read, smaller of the same aspect, appended to, joined; a folder from before states nothing."""
    parts, episode = {}, push_episode(0, 10)
    for name, fit in {"bars": Fit.letterbox, "cut": Fit.crop, "drawn": Fit.refuse}.items():
        layout = {"fps": 20, "cameras": ("scene",), "image_size": (16, 16), "embodiment": robot, "fit": fit}
        with LeRobotWriter(tmp_path / name, **layout) as writer:
            writer.add_episode(episode)
        with LeRobotWriter(tmp_path / name, **layout) as writer:
            writer.add_episode(replace(episode, instruction="again"))
        parts[name] = EpisodeDataset.open(tmp_path / name)
        assert parts[name].header.fit is fit
        assert EpisodeDataset.open(tmp_path / name, images=ImageFit(8, Fit.stretch)).header.fit is fit
    head = (tmp_path / "drawn" / "meta" / "worldrl.jsonl").read_text().splitlines()[0]
    assert "fit" not in head
    with LeRobotWriter(tmp_path / "drawn", **{**layout, "fit": Fit.crop}) as writer:  # as one from before, resumed
        assert (len(writer), writer.header.fit) == (2, Fit.refuse)
    assert parts["drawn"].concatenate(parts["bars"]).header.fit is Fit.letterbox
    with pytest.raises(ArtefactError, match="they differ in fit: 'letterbox' -> 'crop'"):
        parts["bars"].concatenate(parts["cut"])
    with pytest.raises(ArtefactError, match="in the same way"):
        open_datasets([str(tmp_path / "bars"), str(tmp_path / "cut")])
    with (
        pytest.raises(ArtefactError, match="fit is letterbox, this writer has crop"),
        LeRobotWriter(tmp_path / "bars", **{**layout, "fit": Fit.crop}),
    ):
        pass
    known = trained_on([parts["bars"]])
    assert known["fit"] == "letterbox"
    assert "fit" not in trained_on([parts["drawn"]])
    assert merged(trained_on([parts["drawn"]]), known)["fit"] == "letterbox"
