import dataclasses

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import ProtocolError, SettingError
from worldrl.core.types import Chunk
from worldrl.policies.exploration import Exploration
from worldrl.rollout.agents.actors import ExpertActor, PolicyActor, WanderActor
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.rows import Row
from worldrl.rollout.real.specs import EnvOptions, EpisodeOutcome, EpisodeSpec, spec_of

pytestmark = pytest.mark.usefixtures("no_orphans")
ARRAYS = ("frames", "state", "command", "action", "reward", "contact")


def run(specs, options, actor=None, *, hold_steps=0, record=True, order="spec", **settings):
    actors = actor if isinstance(actor, list) else [actor or ExpertActor()] * len(specs)
    player = EmbeddedPlayer(options, **{"workers": 0, **settings})
    planned = list(zip(specs, actors, strict=True))
    return list(player.play(planned, hold_steps=hold_steps, record=record, order=order))


def assert_equal(first, second):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    for name in ("terminated", "truncated", "instruction", "task", "cameras", "meta"):
        assert getattr(first, name) == getattr(second, name)


@pytest.mark.parametrize(("workers", "envs"), [(0, 3), (1, 4), (2, 1), (0, 10**9)])
def test_an_episode_depends_on_its_spec_alone(specs, options, workers, envs):
    actor = ExpertActor(noise=0.2, goal_offset=0.01)
    alone = [run([spec], options, actor)[0] for spec in specs]
    for first, second in zip(alone, run(specs, options, actor, workers=workers, envs_per_worker=envs), strict=True):
        assert_equal(first, second)


def test_draws_differ_between_episodes(specs, options):
    first, second = run(specs[:2], options, WanderActor())
    assert not np.array_equal(first.action[:5], second.action[:5])
    assert not np.array_equal(first.frames[0], second.frames[0])


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_sampled_policy_is_independent_of_batch_and_order(specs, options, policy_folder, correlation):
    actor = PolicyActor(str(policy_folder), exploration=Exploration(1.0, correlation))
    together = run(specs, options, actor, envs_per_worker=3)
    alone = run(specs[::-1], options, actor)[::-1]
    for first, second in zip(together, alone, strict=True):
        assert_equal(first, second)


def test_a_greedy_network_does_the_same_in_one_worker_and_in_two(specs, options, policy_folder):
    """Each worker holds a copy of its own and batches its own rows; nothing of that may show."""
    actor = PolicyActor(str(policy_folder))
    one = run(specs, options, actor, workers=1, envs_per_worker=4)
    for settings in ({"workers": 2, "envs_per_worker": 1}, {"workers": 1, "envs_per_worker": 2, "recycle_after": 3}):
        for first, second in zip(one, run(specs, options, actor, **settings), strict=True):
            assert_equal(first, second)


@pytest.mark.parametrize("change", [{"seed": 6}, {"index": 1}, {"init_id": 0}, {"task": "OpenDrawer"}])
def test_a_policys_draws_are_named_after_the_episode(specs, policy_folder, change):
    actor = PolicyActor(str(policy_folder), exploration=Exploration()).build()
    rows = [Row(spec, None, {}, "") for spec in (specs[0], specs[0], dataclasses.replace(specs[0], **change))]
    for row in rows:
        actor.begin(row)
    first, again, other = (row.actor_state.generator.initial_seed() for row in rows)
    assert first == again != other


def test_replan_executes_a_part_of_the_chunk(specs, options, policy_folder):
    whole, part = (run(specs[:1], options, PolicyActor(str(policy_folder), replan=n))[0] for n in (None, 1))
    np.testing.assert_array_equal(whole.action[0], part.action[0])  # the first decision sees the same frame
    assert not np.array_equal(whole.action[:8], part.action[:8])
    with pytest.raises(SettingError, match="at most the policy's chunk length 4"):
        run(specs[:1], options, PolicyActor(str(policy_folder), replan=5))


def test_actors_may_differ_between_episodes(specs, options, policy_folder):
    actors = [ExpertActor(), PolicyActor(str(policy_folder)), ExpertActor(), WanderActor()]
    mixed = run(specs, options, actors, envs_per_worker=4)
    for spec, actor, episode in zip(specs, actors, mixed, strict=True):
        assert_equal(run([spec], options, actor)[0], episode)


@pytest.mark.parametrize("hold", [0, 5])
def test_hold_steps_keeps_acting_after_success(specs, options, hold):
    (episode,) = run(specs[:1], options, hold_steps=hold)
    assert episode.terminated
    assert not episode.truncated
    assert len(episode) == episode.first_success + hold
    assert episode.reward[episode.first_success - 1 :].all()  # the expert holds the cube
    assert len(episode.frames) == len(episode.state) == len(episode.command) == len(episode) + 1


def test_time_limit_truncates(specs):
    options = EnvOptions(image_size=16, max_steps={"PickRedCube": 5})
    (episode,) = run(specs[:1], options)
    assert episode.truncated
    assert not episode.terminated
    assert not episode.success
    assert len(episode) == 5


def test_commands_follow_from_actions_in_the_record(specs, options):
    """The timeline: action t moves frame t to frame t + 1."""
    from worldrl_envs.control import next_command

    (episode,) = run(specs[:1], options)
    for t, action in enumerate(episode.action):
        np.testing.assert_array_equal(next_command(episode.command[t], action), episode.command[t + 1])


def test_outcome_equals_that_of_the_record(specs, options):
    episodes, outcomes = (run(specs, options, hold_steps=2, record=record) for record in (True, False))
    assert [EpisodeOutcome.of(episode) for episode in episodes] == outcomes
    assert all(outcome.success_once and outcome.success_at_end for outcome in outcomes)
    assert outcomes == [EpisodeOutcome.from_json(outcome.to_json()) for outcome in outcomes]


@pytest.mark.parametrize(("record", "images"), [(False, 11), (True, 41)])
def test_images_are_drawn_where_a_decision_or_a_record_needs_them(
    specs, options, policy_folder, monkeypatch, record, images
):
    """A chunk has four actions and the episode forty steps; the first frame is one more."""
    from worldrl_envs.rendering import Camera

    drawn, draw = [], Camera.draw
    monkeypatch.setattr(Camera, "draw", lambda self, data, camera: (drawn.append(camera), draw(self, data, camera))[1])
    (found,) = run(specs[:1], options, PolicyActor(str(policy_folder)), record=record)
    assert (found if record is False else EpisodeOutcome.of(found)).steps == 40
    assert len(drawn) == images


class Loud:
    """A policy whose first number is always 3."""

    chunk_length, needs_noise, more, actions, n_obs_steps = 2, False, (), TOOL_ACTIONS, 1

    def act(self, obs, **_):
        decided = torch.zeros(len(obs.instruction), 2, 7)
        decided[..., 0] = 3
        return Chunk(decided.clamp(-1, 1), decided, decided, decided)


def test_numbers_outside_the_range_are_executed_as_its_end_and_counted(specs, options, monkeypatch):
    monkeypatch.setattr("worldrl.rollout.agents.policy_folder.load_policy", lambda folder, device: Loud())
    (episode,) = run(specs[:1], options, PolicyActor("loud"))
    assert set(episode.action[:, 0]) == {1.0}
    assert EpisodeOutcome.of(episode).clipped == len(episode)


class Recalling(Loud):
    """It reads three observations and writes down what it is shown."""

    chunk_length, n_obs_steps = 4, 3

    def __init__(self):
        self.shown = []

    def act(self, obs, **_):
        self.shown.append(obs)
        motion = torch.linspace(-1, 1, 28).reshape(1, 4, 7).expand(len(obs.instruction), 4, 7)
        return Chunk(motion, motion, motion, motion)


@pytest.mark.parametrize(("replan", "envs"), [(None, 1), (1, 3)])
def test_a_policy_sees_the_last_observations_of_its_own_episode(specs, options, monkeypatch, replan, envs):
    policy = Recalling()
    monkeypatch.setattr("worldrl.rollout.agents.policy_folder.load_policy", lambda folder, device: policy)
    actor = PolicyActor("recalling", replan=replan)
    episodes = run(specs[:3], options, actor, envs_per_worker=envs)
    begun = {episode.frames[0].tobytes(): episode for episode in episodes}
    running, steps = {}, {}
    for obs in policy.shown:
        for row in range(len(obs.instruction)):
            images, commands = (
                [getattr(o, name)[row].numpy() for o in (*obs.past, obs)] for name in ("image", "command")
            )
            if images[0].tobytes() in begun and np.array_equal(
                images[0], images[2]
            ):  # the first stands for those before
                running[row], steps[row] = begun.pop(images[0][None].tobytes()), 0
            t = steps[row]
            for back, (image, command) in enumerate(zip(images[::-1], commands[::-1], strict=True)):
                np.testing.assert_array_equal(image, running[row].frames[max(t - back, 0), 0])
                np.testing.assert_array_equal(command, running[row].command[max(t - back, 0)])
            steps[row] += replan or 4
    assert not begun  # every episode was read


def test_some_positions_are_recorded(specs, options):
    kinds = [type(item).__name__ for item in run(specs, options, record=[2])]
    assert kinds == ["EpisodeOutcome", "EpisodeOutcome", "Episode", "EpisodeOutcome"]


def test_completion_order_holds_every_episode_once(specs, options):
    found = run(specs, options, order="completion", record=False, envs_per_worker=4)
    assert sorted(outcome.spec.index for outcome in found) == [0, 1, 2, 3]
    assert [outcome.steps for outcome in found] == sorted(outcome.steps for outcome in found)


def test_instruction_style_and_cameras(specs):
    options = EnvOptions(image_size=16, cameras=("scene", "wrist"))
    told = dataclasses.replace(specs[0], instruction="grab it", style="dim")
    plain, other = run([specs[0], dataclasses.replace(told, index=1)], options)[0], run([told], options)[0]
    assert (plain.instruction, other.instruction) == ("pick up the red cube", "grab it")
    assert plain.cameras == ("scene", "wrist")
    assert plain.frames.shape[1:] == (2, 16, 16, 3)
    assert not np.array_equal(plain.frames[:, 0], plain.frames[:, 1])
    assert other.frames[0].mean() < plain.frames[0].mean()  # dimmer
    np.testing.assert_array_equal(plain.action, other.action)
    assert (plain.meta["style"], other.meta["style"]) == ("default", "dim")


def test_stored_states_do_not_depend_on_the_seed(options):
    specs = [EpisodeSpec("PickRedCube", 0, seed, init_id=7) for seed in (1, 2)]
    first, second = run(specs, options)
    np.testing.assert_array_equal(first.frames, second.frames)
    assert spec_of(first.meta) == specs[0]


def test_refusals(specs, options):
    with pytest.raises(ProtocolError, match="appears 2 times"):
        run([specs[0], dataclasses.replace(specs[0], source="again")], options)
    for setting in ({"workers": -1}, {"envs_per_worker": 0}, {"hold_steps": -1}, {"timeout_s": 0}):
        with pytest.raises(SettingError, match=next(iter(setting))):
            run(specs, options, **setting)
    assert run([], options, workers=2) == []
