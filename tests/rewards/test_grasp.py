"""Inverse dynamics of the grasp: what it learns from, what it learns, and its normalised error."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS, joint_targets
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.rewards.config import GraspConfig
from worldrl.rewards.grasp import (
    Closings,
    GraspDynamics,
    closing_of,
    fit_grasp,
    instructions_that_close,
    measure_deviation,
    position_names,
    positions,
)

SMALL = {"width": 8, "blocks": 1, "keypoints": 2, "text_width": 8, "hidden": 8}
RED, GREEN = "pick up the red cube", "pick up the green cylinder"


def closing(push_episode, number, *, told, won):
    """An episode of 12 steps whose gripper commands are ``told``, with success at frame ``won``."""
    episode = push_episode(number, len(told) - 1)
    command = episode.command.copy()
    command[:, 6] = told
    reward = np.zeros(len(told) - 1, np.float32)
    if won is not None:
        reward[won - 1] = 1
    return replace(episode, command=command, reward=reward)


def test_the_closing_before_the_success_counts(push_episode):
    told = [-1, -1, 1, 1, -1, -1, 1, 1, 1, -1, 1]
    held = closing(push_episode, 0, told=told, won=8)
    assert closing_of(held) == 6
    assert closing_of(closing(push_episode, 0, told=told, won=5)) == 2
    assert closing_of(closing(push_episode, 0, told=told, won=1)) == -1
    lost = closing(push_episode, 1, told=told, won=None)
    assert closing_of(lost) == -1
    found = Closings.of([lost, held], camera="scene")
    assert torch.equal(found.frame, torch.from_numpy(held.view("scene")[:6]))
    assert torch.equal(found.commanded, torch.from_numpy(held.command[6, :3]).expand(6, 3))
    assert found.first.tolist() == [True] + 5 * [False]
    assert found.instruction == (held.instruction,) * 6
    first = Closings.of([held], camera="scene", first_only=True)
    assert torch.equal(first.frame, found.frame[:1])
    with pytest.raises(SettingError, match="none of 1 episodes closes the hand and then succeeds"):
        Closings.of([lost], camera="scene")


def test_what_the_datas_successes_do_says_whether_a_closing_is_needed(push_episode):
    """Ten successes from an open hand that all close it; one that does not, or one success fewer, and nobody can say."""
    picks = [closing(push_episode, k, told=[-1, -1, 1, 1], won=3) for k in range(10)]
    said = picks[0].instruction
    lost = closing(push_episode, 10, told=[-1, -1, -1, -1], won=None)
    held_before = closing(push_episode, 11, told=[1, 1, 1, 1], won=3)
    assert instructions_that_close([*picks, lost, held_before]) == (said,)
    assert instructions_that_close(picks[1:]) == ()
    pushed = closing(push_episode, 12, told=[-1, -1, -1, -1], won=3)
    assert instructions_that_close([*picks, pushed]) == ()
    other = [replace(episode, instruction="push it", command=pushed.command) for episode in picks]
    assert Closings.of([*picks, *other], camera="scene").closes == (said,)


def test_joints_are_compared_without_their_grippers():
    pair = joint_targets(("a", "b", "left_gripper", "c", "right_gripper"), (-1.0,) * 5, (1.0,) * 5)
    assert position_names(pair) == ("a", "b", "c")
    assert positions(pair, np.arange(5.0)).tolist() == [0, 1, 3]
    assert position_names(TOOL_ACTIONS) == ("x", "y", "z")
    assert positions(TOOL_ACTIONS, torch.arange(7.0)).tolist() == [0, 1, 2]


def two_squares(count):
    """Images of a red and a green square; the hand closes where the square is that the instruction names."""
    generator = stream(0, "squares")
    place = torch.randint(0, 13, (count, 2, 2), generator=generator)
    frame = torch.full((count, 16, 16, 3), 90, dtype=torch.uint8)
    for row, ((rx, ry), (gx, gy)) in enumerate(place.tolist()):
        frame[row, ry : ry + 3, rx : rx + 3] = torch.tensor([230, 30, 30], dtype=torch.uint8)
        frame[row, gy : gy + 3, gx : gx + 3] = torch.tensor([30, 200, 30], dtype=torch.uint8)
    which = torch.randint(0, 2, (count,), generator=generator)
    told = torch.cat([place[torch.arange(count), which] / 12.0, torch.zeros(count, 1)], dim=1)
    return Closings(frame, told, tuple((RED, GREEN)[k] for k in which.tolist()), torch.ones(count, dtype=torch.bool), TOOL_ACTIONS)  # fmt: skip


def test_it_learns_where_the_named_object_is():
    config = GraspConfig(width=16, keypoints=4, text_width=8, hidden=32, blocks=1, steps=300, batch=32, learning_rate=5e-3, jitter=0.0, ema_decay=0.98)  # fmt: skip
    data, kept = two_squares(600), two_squares(700)
    kept = Closings(kept.frame[600:], kept.commanded[600:], kept.instruction[600:], kept.first[600:], TOOL_ACTIONS)
    grasp, _ = fit_grasp(config, data, seed=0, device=torch.device("cpu"), folder=None, log=None)
    measure_deviation(grasp, kept)
    guess = kept.commanded.var(dim=0).mean().sqrt()
    # Without the instruction, half of the answers would be the other square's: 0.7 of a guess at best.
    assert grasp.deviation < 0.45 * guess
    surprised = grasp.normalised_error(kept.frame, kept.instruction, torch.nn.functional.pad(kept.commanded, (0, 4)))
    assert surprised.mean() == pytest.approx(1)
    other = [GREEN if one == RED else RED for one in kept.instruction]
    assert grasp.normalised_error(kept.frame, other, torch.nn.functional.pad(kept.commanded, (0, 4))).median() > 3


def test_normalised_error_is_the_square_error_in_deviations(monkeypatch):
    with initial_weights(0, "grasp"):
        grasp = GraspDynamics(GraspConfig(**SMALL), TOOL_ACTIONS)
    grasp.deviation.fill_(0.5)
    monkeypatch.setattr(grasp, "read", lambda frame, instruction: torch.tensor([[1.0, 2.0, 3.0]]))
    command = torch.tensor([[2.0, 2.0, 7.0, 9.0, 9.0, 9.0, 1.0]])
    found = grasp.normalised_error(torch.zeros(1, 16, 16, 3, dtype=torch.uint8), [RED], command)
    assert found.tolist() == pytest.approx([(1 + 0 + 16) / 3 / 0.25])


def test_a_folder_gives_it_back(tmp_path):
    with initial_weights(0, "grasp"):
        grasp = GraspDynamics(GraspConfig(**SMALL), TOOL_ACTIONS, [RED])
    grasp.deviation.fill_(0.25)
    grasp.save(tmp_path / "grasp")
    again, data = GraspDynamics.load(tmp_path / "grasp"), two_squares(3)
    assert again.actions == TOOL_ACTIONS
    assert again.deviation == 0.25
    assert again.closes == {RED}
    assert torch.equal(again.read(data.frame, data.instruction), grasp.read(data.frame, data.instruction))
    with pytest.raises(ArtefactError):
        GraspDynamics.load(tmp_path / "nothing")


@pytest.mark.parametrize("wrong", [{"width": 0}, {"steps": -1}, {"first_share": 1.5}, {"ema_decay": 1.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=rf"grasp\.{next(iter(wrong))}"):
        GraspConfig(**wrong)
