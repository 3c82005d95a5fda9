"""A policy with a planner in the simulator: what it imagines from, what it executes, and whom it depends on."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.policies.exploration import Exploration
from worldrl.policies.lerobot.folder import read_lerobot_folder
from worldrl.policies.lerobot.policy import LerobotPolicy
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.rollout.agents import acting_planner, policy_folder
from worldrl.rollout.agents.actors import actor_from_json, actor_to_json
from worldrl.rollout.agents.planned_policy import PlannedPolicyActor
from worldrl.rollout.agents.policy_actor import PolicyActor
from worldrl.rollout.imagined.candidates import Candidates
from worldrl.rollout.planning.config import PLANNERS, Planner, PlanningConfig
from worldrl.rollout.real.embedded import embedded_embodiment, embedded_options
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EnvOptions, EpisodeOutcome, EpisodeSpec
from worldrl.simulators.process import Launch
from worldrl.workers.link.boot import load_file

FAKE = Path(__file__).parents[1] / "policies" / "fake_network.py"
fake = load_file("fake_network", FAKE)
SPECS = [EpisodeSpec("PickRedCube", index, seed=5, source="test") for index in range(3)]


@pytest.fixture
def options():
    return EnvOptions(image_size=16, max_steps={"PickRedCube": 12})


def planned(planning_folder, name="best_of_n", **config):
    small = {"candidates": 3, "horizon": 2, "threshold": 0.0, "dtype": "float32"}
    planning = PlanningConfig(world_model=str(planning_folder / "world_model"), **(small | config))
    return PlannedPolicyActor(str(planning_folder / "policy"), planner=Planner(name, planning))


def play(actor, options, specs=SPECS, *, record=True, **settings):
    player = EmbeddedPlayer(options, **{"workers": 0, **settings})
    return list(player.play([(spec, actor) for spec in specs], record=record))


@pytest.fixture
def scripted(monkeypatch, scripted_world):
    """The planner imagines in a world that shows what the actions say; it keeps the records that plans start from."""
    records, start = [], scripted_world.start
    scripted_world.config = SimpleNamespace(outcome=SimpleNamespace(debounce=2))
    scripted_world.eval = lambda: scripted_world
    scripted_world.start = lambda given: records.extend(given) or start(given)
    monkeypatch.setattr(acting_planner, "open_world_model", lambda *_: scripted_world)
    return records


def test_the_actor_travels_as_json(planning_folder):
    actor = planned(planning_folder, "cem", candidates=5)
    assert actor_from_json(actor_to_json(actor)) == actor


@pytest.mark.parametrize("name", ["best_of_n", "cem", "mppi"])
@pytest.mark.usefixtures("scripted")
def test_nothing_depends_on_neighbours(planning_folder, options, name):
    """In the scripted world searches happen, and some find a plan."""
    actor = planned(planning_folder, name, threshold=0.4, candidates=16)
    alone = [play(actor, options, [spec])[0] for spec in SPECS]
    assert {bool(episode.meta["planned"][kind]) for episode in alone for kind in ("planned", "alone")} == {True, False}
    for first, second in zip(alone, play(actor, options, envs_per_worker=3), strict=True):
        np.testing.assert_array_equal(first.action, second.action)
        assert first.meta == second.meta


def test_below_the_threshold_the_policy_acts_alone(planning_folder, options):
    without = play(PolicyActor(str(planning_folder / "policy")), options)
    for first, second in zip(without, play(planned(planning_folder, threshold=1.0), options), strict=True):
        np.testing.assert_array_equal(first.action, second.action)
        assert second.meta["planned"] == {"planned": 0, "alone": 3}


def test_a_sampled_policy_draws_the_same_beside_a_planner(planning_folder, options):
    fields = {"folder": str(planning_folder / "policy"), "exploration": Exploration(1.0, 0.5)}
    without = play(PolicyActor(**fields), options)
    beside = play(PlannedPolicyActor(**fields, planner=planned(planning_folder, threshold=1.0).planner), options)
    for first, second in zip(without, beside, strict=True):
        np.testing.assert_array_equal(first.action, second.action)


def test_outcomes_count_chunks_and_time(planning_folder, options):
    for outcome in play(planned(planning_folder), options, record=False):
        assert outcome.planned.counts() == {"planned": 3, "alone": 0}
        assert outcome.planned.seconds > 0
        assert EpisodeOutcome.from_json(outcome.to_json()) == outcome
    alone = play(PolicyActor(str(planning_folder / "policy")), options, record=False)[0]
    assert "planned" not in alone.to_json()


def test_the_world_model_starts_from_the_real_frames(planning_folder, options, scripted):
    episode = play(planned(planning_folder, threshold=1.0), options, SPECS[:1])[0]
    starts = {record.step: record for record in scripted}
    assert sorted(starts) == [0, 4, 8]
    frames, record = episode.main_view, starts[8]
    np.testing.assert_array_equal(record.reference, frames[0])
    np.testing.assert_array_equal(record.memory, frames[[6, 8]])
    np.testing.assert_array_equal(starts[0].memory, frames[[0, 0]])
    np.testing.assert_array_equal(record.command, episode.command[8])
    np.testing.assert_array_equal(record.reference_command, episode.command[0])
    np.testing.assert_array_equal(record.memory_action, episode.action[4:8])
    np.testing.assert_array_equal(starts[0].memory_action, np.tile(episode.null_action, (4, 1)))


def test_the_best_candidate_is_executed(planning_folder, options, scripted):
    """The scripted world's success is the first number of every second action, over two of them."""
    shown = [play(planned(planning_folder, threshold=0.9, candidates=64, horizon=1), options)[0]]
    alone = play(PolicyActor(str(planning_folder / "policy")), options)
    chunks = [np.minimum(e.action[1::4, 0], e.action[3::4, 0]) for e in (*shown, alone[0])]
    assert shown[0].meta["planned"]["planned"] > 0
    assert chunks[0].max() > 0.9 > chunks[1].max()


def test_success_beyond_the_time_limit_does_not_count(planning_folder, options, scripted):
    short = replace(options, max_steps={"PickRedCube": 2})
    found = play(planned(planning_folder, threshold=1e-6, candidates=64), short, SPECS[:1])[0]
    assert found.meta["planned"] == {"planned": 0, "alone": 1}


def candidates(policy, world, record, **changed):
    world.config = SimpleNamespace(outcome=SimpleNamespace(debounce=2))
    named = partial(stream, 3, "test")
    return Candidates(
        **{"model": world, "policy": policy, "record": record, "chunks": 3, "frames": None, "stream": named, **changed}
    )


def test_given_actions_come_first_and_the_policy_continues(tiny_policy, scripted_world, make_record):
    first = torch.rand(6, 7)
    plans, scores = candidates(tiny_policy(), scripted_world, make_record()).imagine([first, first[:0]])
    assert plans.shape == (2, 12, 7)
    torch.testing.assert_close(plans[0, :6], first)
    assert not torch.equal(plans[1, :6], first)
    firsts = plans[:, 1::2, 0].clamp_min(0)
    torch.testing.assert_close(scores, torch.minimum(firsts[:, 1:], firsts[:, :-1]).amax(dim=1))


def test_whole_plans_are_scored_as_they_were_imagined(tiny_policy, scripted_world, make_record):
    imagined = candidates(tiny_policy(), scripted_world, make_record())
    plans, scores = imagined.imagine([torch.zeros(0, 7)] * 4, Exploration())
    assert len(torch.unique(plans, dim=0)) == 4
    torch.testing.assert_close(imagined.score(plans), scores)
    torch.testing.assert_close(imagined.score(plans[2:]), scores[2:])


def test_latency_is_refused(planning_folder):
    with pytest.raises(SettingError, match="give latency=0"):
        replace(planned(planning_folder), latency=2)


@pytest.mark.parametrize("name", PLANNERS)
def test_planners_search_for_two_arms(name, tmp_path, make_world_model, monkeypatch):
    """No plan reaches the threshold, so every decision searches; what it finds is within the range of all 14 numbers."""
    task, found, method = "BimanualOpenDrawer", [], getattr(acting_planner, name)
    robot = embedded_embodiment((task,))
    low, high = (torch.from_numpy(bound) for bound in robot.actions.bounds)
    size = {"image_size": 16, "chunk_length": 4, "width": 8, "blocks": 1, "keypoints": 2, "text_width": 8, "hidden": 16}
    statistics = PolicyStatistics(low, high, (low + high) / 2, torch.ones(robot.actions.size), robot.actions)
    with initial_weights(0, "policy"):
        TokenPolicy(TokenPolicyConfig(**size), statistics).save(tmp_path / "policy")
    make_world_model(robot=robot).save(tmp_path / "world_model")

    def search(plans, scores, *rest, **named):
        found.append((plans, method(plans, scores, *rest, **named)))
        return found[-1][1]

    monkeypatch.setattr(acting_planner, name, search)
    options = replace(embedded_options((task,), 16), max_steps={task: 8})
    actor = planned(tmp_path, name, threshold=1.0, candidates=4)
    (episode,) = play(actor, options, [EpisodeSpec(task, 0, seed=5, source="test")])
    assert episode.meta["planned"] == {"planned": 0, "alone": 2}
    assert [(plans.shape, plan.action.shape) for plans, plan in found] == [((4, 8, 14), (8, 14)), ((4, 4, 14), (4, 14))]
    for plans, plan in found:
        assert ((plan.action >= low - 1e-6) & (plan.action <= high + 1e-6)).all()
        drawn = any(torch.equal(plan.action, own) for own in plans)
        assert drawn or name != "best_of_n"  # cem keeps the best draw where nothing is better
        assert not (drawn and name == "mppi")


def test_candidates_of_a_lerobot_policy_are_drawn_and_searched(planning_folder, options, monkeypatch, tmp_path):
    """Behind its real service and wire, without lerobot; below the threshold its own chunks are executed."""
    folder = fake.publish(tmp_path / "policy")
    launch = Launch("fake policy", sys.executable, f"{FAKE}:Fake", {"folder": str(folder)})
    policy = LerobotPolicy(read_lerobot_folder(folder), launch)
    monkeypatch.setattr(policy_folder, "acting_policy", lambda *_: policy)
    try:
        (alone,) = play(PolicyActor(str(folder)), options, SPECS[:1])
        for name in PLANNERS:
            found, method = [], getattr(acting_planner, name)
            monkeypatch.setattr(
                acting_planner, name, lambda *given, f=found, m=method, **more: f.append(given[0]) or m(*given, **more)
            )
            actor = replace(planned(planning_folder, name, threshold=1.0, candidates=4), folder=str(folder))
            (episode,) = play(actor, options, SPECS[:1])
            assert episode.meta["planned"] == {"planned": 0, "alone": 3}
            np.testing.assert_array_equal(episode.action, alone.action)
            assert [len(torch.unique(plans, dim=0)) for plans in found] == [4, 4, 4]
    finally:
        policy.close()
