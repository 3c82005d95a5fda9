"""Unit under test: ``worldrl/play/session.py`` and ``worldrl/play/messages.py``, without any web package."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.errors import ActionError, NonFiniteError, SettingError
from worldrl.evaluation.world_model.rollout_error import replay
from worldrl.play import session as module
from worldrl.play.messages import chunk_message, decode_request, readings, start_message
from worldrl.play.recording import real_episode

LEFT = np.array([0, -0.5, 0, 0, 0, 0.2, -1], np.float64)
DOWN = np.array([0.1, 0, -0.8, 0, 0, 0, 1], np.float64)


def drive(session, *actions):
    for action in actions:
        session.drive(action)
    return session


def same_chunk(a, b):
    assert (a.sheets == b.sheets).all()
    assert torch.equal(a.imagined.success_prob, b.imagined.success_prob)
    assert torch.equal(a.imagined.command, b.imagined.command)
    for one, other in zip(a.observed, b.observed, strict=True):
        assert (one["image"] == other["image"]).all()
        assert (one["state"] == other["state"]).all()
    for name, value in a.physics.items():
        assert np.array_equal(value, b.physics[name]), name


def test_a_drive_is_what_imagine_makes_of_the_same_actions(session):
    session.start("PickRedCube", 1)
    drive(session, LEFT, DOWN, DOWN)
    episode = real_episode(session, {})
    result = replay(session.worlds.model, [episode], episode.action[None], seed=session.worlds.seed)
    driven = np.concatenate([chunk.sheets for chunk in session.chunks])
    assert (driven == result.imagined[0]).all()
    assert (np.concatenate([chunk.probability for chunk in session.chunks]) == result.probability[0]).all()
    assert (np.concatenate([chunk.real_sheets for chunk in session.chunks]) == result.real[0]).all()
    assert len({frame.tobytes() for frame in driven}) == len(driven)  # noise and actions matter


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_after_undo_both_worlds_continue_bit_by_bit(session, keep):
    session.start("PickRedCube", 0)
    actions = [LEFT, DOWN, DOWN, LEFT]
    drive(session, *actions)
    before = list(session.chunks)
    session.undo(keep)
    assert len(session.chunks) == keep
    drive(session, *actions[keep:])
    for a, b in zip(before, session.chunks, strict=True):
        same_chunk(a, b)
    session.undo(keep)
    other = drive(session, -LEFT).chunks[-1]
    assert not (other.sheets == before[keep].sheets).all()
    assert not (other.observed[-1]["state"] == before[keep].observed[-1]["state"]).all()


def test_a_start_depends_on_task_and_number_alone(session, make_session):
    other = make_session()
    other.start("PushCubeToTarget", 5)
    drive(other, LEFT)
    first, second = session.start("PickRedCube", 2), other.start("PickRedCube", 2)
    assert (first.record.reference == second.record.reference).all()
    assert not (first.record.reference == other.start("PickRedCube", 3).record.reference).all()
    assert other.chunks == []


def test_what_is_refused_changes_nothing(session):
    with pytest.raises(SettingError, match="choose a task and a start first"):
        session.drive(LEFT)
    with pytest.raises(SettingError, match="unknown task 'PickRed'; did you mean 'PickRedCube'"):
        session.start("PickRed", 0)
    with pytest.raises(SettingError, match="must be >= 0"):
        session.start("PickRedCube", -1)
    session.start("PickRedCube", 0)
    first = session.drive(LEFT)
    for wrong in (2 * np.ones(7), np.full(7, np.nan), np.zeros(14), np.zeros(0)):
        with pytest.raises(ActionError):
            session.drive(wrong)
    with pytest.raises(SettingError, match="from 0 to 1, the chunks driven, got 2"):
        session.undo(2)
    with pytest.raises(SettingError, match="policy: none was given"):
        session.follow_policy()
    session.undo(0)
    same_chunk(session.drive(LEFT), first)


def test_a_fault_of_one_world_takes_the_other_back(session, monkeypatch):
    def broken(*_, **__):
        raise NonFiniteError("latents")

    session.start("PickRedCube", 0)
    drive(session, LEFT)
    with monkeypatch.context() as patched:
        patched.setattr(session.worlds.model, "imagine", broken)
        with pytest.raises(NonFiniteError):
            session.drive(DOWN)
    assert len(session.chunks) == 1
    after = session.drive(DOWN)
    session.undo(1)
    same_chunk(session.drive(DOWN), after)


def test_a_drive_ends_where_memory_does(session, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 2 * (4 + 2) * 3 * 16**2)
    session.start("PickRedCube", 0)
    drive(session, LEFT, DOWN)
    with pytest.raises(SettingError, match="this drive has 2 chunks, and memory keeps no more"):
        session.drive(LEFT)
    session.undo(1)
    assert session.drive(DOWN) is session.chunks[1]


def test_the_policy_drives_from_what_is_imagined(make_worlds, make_session, tiny_policy):
    policy, seen = tiny_policy(), []
    act = policy.act
    policy.act = lambda obs, **given: seen.append(obs) or act(obs, **given)
    session = make_session(make_worlds(policy=policy))
    start = session.start("PickRedCube", 0)
    chunk = session.follow_policy()
    session.drive(LEFT)
    session.follow_policy()
    assert [chunk.by for chunk in session.chunks] == ["policy", "hand", "policy"]
    assert (seen[0].image[0].numpy() == start.record.reference).all()
    assert (seen[1].image[0].numpy() == session.chunks[1].sheets[-1]).all()
    assert torch.equal(seen[1].command[0], session.chunks[1].imagined.command[0, -1])
    assert list(seen[1].instruction) == [start.record.instruction]
    session.undo(0)
    same_chunk(session.follow_policy(), chunk)


def test_a_policy_of_several_observations_sees_the_last_control_steps(
    make_worlds, make_session, make_world_model, tiny_policy
):
    policy, seen, model = tiny_policy(), [], make_world_model(frame_stride=1, memory_frames=3)
    act, policy.n_obs_steps = policy.act, 2
    policy.act = lambda obs, **given: seen.append(obs) or act(replace(obs, past=()), **given)
    session = make_session(make_worlds(model, policy))
    start = session.start("PickRedCube", 0)
    session.follow_policy()
    session.follow_policy()
    (first,), (last,) = (obs.past for obs in seen)
    assert (first.image[0].numpy() == start.record.reference).all()
    chunk = session.chunks[0]
    assert (last.image[0].numpy() == chunk.sheets[-2]).all()
    assert (seen[1].image[0].numpy() == chunk.sheets[-1]).all()
    assert torch.equal(last.command[0], chunk.imagined.command[0, -2])


def test_readings_are_of_the_models_frames(session, monkeypatch):
    session.start("PickRedCube", 0)
    chunk = session.drive(LEFT)
    shown = readings(session, 0)
    assert shown["uncertainty"] is None  # a single member has no spread
    assert shown["toolError"] is None  # the model does not predict the state
    error = np.square((chunk.sheets.astype(float) - chunk.real_sheets) / 255).mean(axis=(1, 2, 3))
    assert shown["psnr"] == pytest.approx(-10 * np.log10(error), abs=0.006)
    assert (chunk.real_sheets[-1] == chunk.observed[-1]["image"]).all()
    assert (chunk.real_sheets[0] == chunk.observed[1]["image"]).all()
    assert shown["solved"] == [False, False]
    monkeypatch.setattr(type(session.worlds), "has_ensemble", True)
    assert shown["probability"] == pytest.approx(chunk.probability.tolist(), abs=1e-4)
    assert readings(session, 0)["uncertainty"] == [0, 0]


def test_the_error_of_the_tool_is_a_distance(session):
    session.start("PickRedCube", 0)
    chunk = session.drive(LEFT)
    state = np.stack([shown["state"] for shown in chunk.real_frames])
    state[:, :3] += (0.003, 0, 0.004)
    object.__setattr__(chunk.imagined, "state", torch.from_numpy(state[None].astype(np.float32)))
    assert chunk.tool_error == pytest.approx([0.005, 0.005], abs=1e-6)


def test_a_message_holds_the_images_of_both_worlds(session):
    session.start("PickRedCube", 0)
    chunk = session.drive(DOWN)
    for message, imagined, real in (
        (start_message(session), session.begun.record.reference[None], session.begun.observed["image"][None]),
        (chunk_message(session, 0), chunk.sheets, chunk.real_sheets),
    ):
        length = int.from_bytes(message[:4], "little")
        head = json.loads(message[4 : 4 + length])
        images = np.frombuffer(message[4 + length :], np.uint8).reshape(
            2, head["frames"], head["rows"], head["columns"], 3
        )
        assert (images[0] == imagined).all()
        assert (images[1] == real).all()
    assert (head["number"], head["by"], head["gripper"]) == (0, "hand", 1.0)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("", "is no JSON"),
        ("[" * 4000, "is no JSON"),
        ("[1]", "must be an object, got list"),
        ("{}", "do: unknown request 'None'"),
        ('{"do": "undoo"}', "did you mean 'undo'"),
        ('{"do": ["undo"]}', "do: unknown request"),
        ('{"do": "undo"}', "undo: keep: Field required"),
        ('{"do": "undo", "keep": "1"}', "undo: keep: Input should be a valid integer"),
        ('{"do": "undo", "keep": 1e400}', "undo: keep"),
        ('{"do": "undo", "keep": 1, "more": 2}', "undo: unknown field 'more'"),
        ('{"do": "drive", "action": "up"}', "drive: action"),
        ('{"do": "start", "task": "PickRedCube", "index": true}', "start: index"),
    ],
)
def test_a_malformed_request_is_refused_by_name(text, refusal):
    with pytest.raises(SettingError, match=refusal.replace("[", r"\[")):
        decode_request(text)
