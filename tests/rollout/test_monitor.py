"""FLOAT's index against closed forms, its conformal limit, and a monitored policy that an expert corrects."""

import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.recoveries import parts_of
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.rollout.agents.actors import ExpertActor, PolicyActor, actor_from_json, actor_to_json
from worldrl.rollout.agents.monitor import (
    Facts,
    Limits,
    Monitor,
    conformal_limit,
    float_index,
    padded,
    transport_distance,
    unit,
)
from worldrl.rollout.agents.monitored_policy import MonitoredPolicyActor
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.episodes import _hand_over
from worldrl.rollout.real.restyle import restyled_specs
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.slots import EmbeddedSlots, replays, rewound
from worldrl.rollout.real.specs import EnvOptions, EpisodeOutcome, EpisodeSpec, Monitored
from worldrl.rollout.real.worker import decode_result, encode_result


def cost_of(x, y):
    return np.abs(np.subtract.outer(x, y))


# --- the transport distance ---


def test_on_a_line_the_distance_is_that_of_sorted_numbers():
    x, y = np.random.default_rng(0).normal(size=(2, 9))
    assert transport_distance(cost_of(x, y)) == pytest.approx(np.abs(np.sort(x) - np.sort(y)).mean())


def test_a_permutation_of_the_same_set_is_at_distance_0():
    x = np.random.default_rng(1).normal(size=7)
    assert transport_distance(cost_of(x, x)) == 0
    assert transport_distance(cost_of(x, x[[3, 1, 6, 0, 2, 5, 4]])) == 0
    assert transport_distance(cost_of(x, x + 0.5)) == pytest.approx(0.5)


def test_of_some_columns_the_cheapest_choice_of_rows_counts_and_the_rest_is_free():
    cost = np.random.default_rng(2).random((5, 3))
    best = min(
        sum(cost[row, column] for column, row in enumerate(rows)) for rows in itertools.permutations(range(5), 3)
    )
    assert transport_distance(cost) == pytest.approx(best / 5)
    whole = np.concatenate([cost, np.zeros((5, 2))], axis=1)
    assert transport_distance(whole) == pytest.approx(transport_distance(cost))


def test_more_decisions_than_the_time_limit_has_are_refused():
    with pytest.raises(SettingError, match="6 decisions do not fit 5"):
        transport_distance(np.zeros((5, 6)))


def test_the_index_is_0_along_an_expert_and_grows_with_each_decision_away_from_all():
    experts = unit(np.random.default_rng(3).normal(size=(2, 4, 6)))
    assert float_index(experts, experts[1][[2, 0]]) == pytest.approx(0, abs=1e-12)
    away = -experts[1]
    found = [float_index(experts[1:], away[: k + 1]) for k in range(4)]
    assert found == sorted(found)
    assert found[-1] > found[0] > 0


def test_short_experts_repeat_their_last_decision():
    assert padded(np.array([[1.0], [2.0]]), 4).ravel().tolist() == [1, 2, 2, 2]
    assert padded(np.array([[1.0], [2.0]]), 1).ravel().tolist() == [1]


# --- the limit ---


@pytest.mark.parametrize(("count", "share", "rank"), [(19, 0.05, 19), (20, 0.05, 20), (39, 0.05, 38), (9, 0.2, 8)])
def test_the_limit_is_the_conformal_order_statistic(count, share, rank):
    scores = np.random.default_rng(4).permutation(count) + 1.0
    assert conformal_limit(list(scores), share) == rank


def test_too_few_scores_give_no_finite_limit():
    assert conformal_limit([0.0] * 18, 0.05) == math.inf


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_exchangeable_scores_exceed_the_limit_as_seldom_as_promised(share):
    """Coverage 1 - rank/(n+1) of continuous scores, within four deviations; a limit one rank lower would fail."""
    draws = np.random.default_rng(5).exponential(size=(20_000, 20))
    above = np.mean([row[-1] > conformal_limit(list(row[:-1]), share) for row in draws])
    assert above == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / len(draws)))


def test_alarms_and_scores_before_a_step():
    row = Monitored(limit=0.5, every=8, score=(0.1, 0.6, 0.4, 0.9))
    assert row.alarm == 8
    assert replace(row, limit=0.9).alarm is None
    assert row.until(8).score == (0.1,)
    assert row.until(9).score == (0.1, 0.6)
    assert row.until(None) is row


# --- a monitored policy ---

TASK, EVERY, HORIZON = "PickRedCube", 4, 40
SPECS = [EpisodeSpec(TASK, index, seed=5, source="policy") for index in range(2)]


@pytest.fixture
def monitor(tmp_path, policy_folder):
    """Save a monitor of the random policy with a limit; experts are random."""
    size = PolicyActor(str(policy_folder)).build()._policy.decoder[0].in_features

    def make(limit):
        experts = unit(np.random.default_rng(6).normal(size=(3, HORIZON // EVERY, size)))
        facts = Facts("hash", EVERY, None, 0.05, {TASK: Limits(limit, 30.0, 20, 3)})
        Monitor(facts, {TASK: experts}).save(tmp_path / "monitor")
        return MonitoredPolicyActor(str(policy_folder), monitor=str(tmp_path / "monitor"))

    return make


def play(actor, options):
    player = EmbeddedPlayer(options, workers=0, envs_per_worker=2)
    return list(player.play([(spec, actor) for spec in SPECS]))


def test_a_monitor_changes_no_action_and_its_scores_travel(monitor, options, policy_folder):
    actor = monitor(100.0)
    alone, watched = play(PolicyActor(str(policy_folder)), options), play(actor, options)
    for plain, first in zip(alone, watched, strict=True):
        np.testing.assert_array_equal(plain.action, first.action)
        np.testing.assert_array_equal(plain.frames, first.frames)
        outcome = EpisodeOutcome.of(first)
        header, arrays = encode_result(0, first)  # as a worker sends it
        _, received = decode_result(json.loads(json.dumps(header)), arrays)
        assert outcome == EpisodeOutcome.of(received)
        assert outcome == EpisodeOutcome.from_json(json.loads(json.dumps(outcome.to_json())))
        assert len(outcome.monitored.score) == HORIZON // EVERY
        assert outcome.monitored.alarm is None
        assert plain.meta == {key: value for key, value in first.meta.items() if key != "monitored"}


def test_a_monitor_is_read_as_it_was_written_and_a_damaged_one_is_refused(monitor, tmp_path):
    monitor(0.25)
    read = Monitor.load(tmp_path / "monitor")
    assert read.facts.tasks[TASK] == Limits(0.25, 30.0, 20, 3)
    (tmp_path / "monitor" / "config.json").write_text("{}")
    with pytest.raises(ArtefactError):
        Monitor.load(tmp_path / "monitor")


def test_returning_to_an_earlier_state_gives_the_same_bits():
    slots = EmbeddedSlots(EnvOptions(image_size=16))
    slots.reset({0: SPECS[0]}, render=True)
    actions = np.random.default_rng(7).uniform(-1, 1, (12, 7)).astype(np.float32)
    before = slots.steps({0: actions[:6]}, render=[0])[0][-1]
    state = slots.env(0).unwrapped.get_state()
    after = slots.steps({0: actions[6:]}, render=[0])[0][-1]
    again = rewound(slots.env(0), state)
    for name in ("image", "state", "command"):
        np.testing.assert_array_equal(again[name], before[name], err_msg=name)
    repeated = slots.steps({0: actions[6:]}, render=[0])[0][-1]
    for name in ("image", "state", "command"):
        np.testing.assert_array_equal(repeated[name], after[name], err_msg=name)
    slots.close()


@pytest.fixture
def corrected(monitor, options, tmp_path):
    """Two episodes of the random policy with an alarm somewhere on the way, corrected by the expert."""
    scores = [EpisodeOutcome.of(one).monitored.score for one in play(monitor(100.0), options)]
    limit = min(max(one[:4]) for one in scores)  # the fifth decision of one episode at the latest is above it
    actor = replace(monitor(limit), intervene=True)
    player = EmbeddedPlayer(options, workers=0, envs_per_worker=2)
    rows = collect_dataset(tmp_path / "dataset", [CollectPlan(actor, SPECS)], player, hold_steps=2)
    return [row for row in rows if "recovery" in row], EpisodeDataset.open(tmp_path / "dataset")


def test_an_alarm_hands_over_to_the_expert_and_the_episode_is_read_as_two(corrected, options):
    rows, dataset = corrected
    assert rows
    assert all(row["success"] for row in rows)
    parts = {part: [one for one in dataset if one.meta.get("part") == part] for part in ("failing", "corrected")}
    assert len(parts["failing"]) == len(parts["corrected"]) == len(rows)
    for row, failing, whole in zip(rows, parts["failing"], parts["corrected"], strict=True):
        rewound_to, alarm = row["recovery"]["rewound"], row["recovery"]["alarm"]
        assert 0 <= rewound_to < alarm == len(failing)
        assert alarm % EVERY == rewound_to % EVERY == 0
        score, limit = failing.meta["monitored"]["score"], failing.meta["monitored"]["limit"]
        assert score[-1] > limit >= score[rewound_to // EVERY]
        assert len(score) == alarm // EVERY + 1
        assert (failing.success, whole.success, whole.terminated) == (False, True, True)
        assert len(whole) == row["length"] - 1 - (alarm - rewound_to)
        np.testing.assert_array_equal(failing.frames[: rewound_to + 1], whole.frames[: rewound_to + 1])


def test_a_corrected_episode_really_happened(corrected, options):
    """Its actions, replayed from the initial state in a fresh simulator, give the same states bit by bit."""
    _, dataset = corrected
    slots = EmbeddedSlots(options)
    for episode in dataset:
        spec = EpisodeSpec.from_json({name: episode.meta[name] for name in EpisodeSpec.__dataclass_fields__})
        (replay,) = replays(slots, [spec], [episode.action])
        np.testing.assert_array_equal(replay.state, episode.state)
    slots.close()


def test_records_and_episodes_agree(corrected):
    _, dataset = corrected
    for record, episode in zip(dataset.records, dataset, strict=True):
        assert (record.length, record.success) == (len(episode), episode.success)
        assert (record.terminated, record.truncated) == (episode.terminated, episode.truncated)
        assert record.meta == episode.meta
    assert len({record.content for record in dataset.records}) == len(dataset)


def test_parts_that_are_stored_again_stay_as_they_are(corrected, tmp_path):
    _, dataset = corrected
    with LeRobotWriter(tmp_path / "copy", **vars(dataset.header)) as writer:
        for episode in dataset:
            writer.add_episode(episode)
    copy = EpisodeDataset.open(tmp_path / "copy")
    assert [len(one) for one in copy] == [len(one) for one in dataset]


def test_corrected_episodes_cannot_be_replayed_in_another_style(corrected):
    with pytest.raises(SettingError, match="give by=image"):
        restyled_specs(corrected[1], ["dim"], seed=0)


def test_damaged_marks_are_refused(corrected):
    _, dataset = corrected
    record = replace(dataset.records[-1], meta={"recovery": {"alarm": 10**6, "rewound": 0}})
    with pytest.raises(ArtefactError, match="collect it again"):
        parts_of(record, lambda: dataset[0])


def test_without_a_familiar_state_it_returns_to_the_beginning(monitor, options):
    (first, _) = play(replace(monitor(-1.0), intervene=True), options)
    assert first.meta["recovery"] == {"alarm": 0, "rewound": 0}
    np.testing.assert_array_equal(first.frames[0], first.frames[1])
    (alone, _) = play(ExpertActor(), options)
    np.testing.assert_array_equal(first.action[1:], alone.action)


def test_the_actor_travels_as_json(monitor):
    actor = replace(monitor(0.5), intervene=True)
    assert actor_from_json(actor_to_json(actor)) == actor


def test_nothing_is_corrected_after_the_first_success():
    """While a fulfilled task is held, an alarm comes too late to be one."""
    asked = SimpleNamespace(row=SimpleNamespace(takeover=object()), recording=SimpleNamespace(fulfilled=True))
    assert _hand_over(SimpleNamespace(), {0: asked}) == {}
