"""The observation contract: names, specs, sheets, and refusals with both specs side by side."""

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS, joint_targets
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.observation import (
    ObservationSpec,
    camera_of,
    check_inputs,
    further,
    image_name,
    images_among,
    require_named,
    require_observed,
    split_views,
    stack_views,
)


def spec(*images, size=(64, 64), state=False):
    return ObservationSpec.of(TOOL_ACTIONS, images, size, state=state)


def test_images_have_the_names_that_environments_give_them():
    cameras = ("head", "left_wrist", "right_wrist")
    assert [image_name(camera) for camera in cameras] == ["image", "left_wrist_image", "right_wrist_image"]
    assert [camera_of(image_name(camera), cameras) for camera in cameras] == list(cameras)
    with pytest.raises(ArtefactError, match=r"wrist_image: no camera.*has image, left_wrist_image"):
        camera_of("wrist_image", cameras)


def test_a_sheet_is_cut_into_the_views_it_was_made_of():
    views = [np.random.default_rng(n).integers(0, 255, (3, 4, 8, 6, 3), dtype=np.uint8) for n in range(3)]
    more = ("wrist_image", "side_image", "state")
    sheet = stack_views(views)
    assert sheet.shape == (3, 4, 24, 6, 3)
    cut = split_views(torch.from_numpy(sheet), more)
    assert list(cut) == list(images_among(more)) == ["image", "wrist_image", "side_image"]
    for name, view in zip(cut, views, strict=True):
        assert np.array_equal(cut[name].numpy(), view)
    assert stack_views(views[:1]) is views[0]


def test_settings_name_the_main_image_first_and_each_camera_once():
    check_inputs(["image", "wrist_image"], "measured", "policy.")
    assert further(["image", "wrist_image"], "measured") == ("wrist_image", "state")
    assert further(["image"], "none") == ()
    for cameras in ([], ["wrist_image", "image"], ["image", "image"], ["image", "wrist"], ["image", "_image"]):
        with pytest.raises(SettingError, match=r"policy\.cameras"):
            check_inputs(cameras, "none", "policy.")
    with pytest.raises(SettingError, match="did you mean 'measured'"):
        check_inputs(["image"], "measure", "")


def test_a_spec_names_numbers_and_units():
    tool = spec("image", state=True).to_json()
    assert tool["state"]["names"][6:] == ["finger_left", "finger_right"]
    assert tool["state"]["units"] == ["m", "m", "m", "rad", "rad", "rad", "m", "m"]
    joints = joint_targets(("a", "b.gripper"), (0.0, 0.0), (1.0, 1.0))
    assert ObservationSpec.of(joints, ["image"], (8, 8), state=True).to_json()["state"]["names"] == ["a", "b.gripper"]
    assert spec("image").to_json()["state"] is None


def test_what_is_not_observed_is_refused_with_both_specs_side_by_side():
    require_observed(spec("image"), spec("image", "wrist_image", state=True), "the policy", "the world model")
    with pytest.raises(SettingError) as refused:
        require_observed(spec("image", "wrist_image", state=True), spec("image"), "the policy", "the world model")
    lines = str(refused.value).splitlines()
    assert lines[0] == "the policy does not fit the world model"
    assert "  wrist_image 64x64" in lines[3]
    assert lines[3].endswith("| -")
    assert lines[4].strip().startswith("state (8)")
    for wanted in (spec("image", size=(32, 32)), spec("image", "side_image"), spec("image", state=True)):
        with pytest.raises(SettingError, match=r"side|32x32|state"):
            require_observed(wanted, spec("image", "wrist_image"), "the policy", "the world model")
    require_named(("state",), ("wrist_image", "state"))
    with pytest.raises(SettingError, match=r"takes image, state \| the world model shows image, wrist_image"):
        require_named(("state",), ("wrist_image",))
