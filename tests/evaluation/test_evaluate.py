import dataclasses

import numpy as np
import pytest
import torch

import worldrl.evaluation.policy.result as provenance
from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import ProtocolError
from worldrl.core.storage.tensorfile import save_tensors
from worldrl.evaluation.policy.evaluate import computing, evaluate, evaluate_policy, fitting_facts, surroundings
from worldrl.evaluation.policy.result import EvalResult
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.rollout.agents.actors import ExpertActor, PolicyActor
from worldrl.rollout.real.rollouts import EmbeddedPlayer


def expert(protocol, workers=0, envs_per_worker=4, **measuring):
    player = EmbeddedPlayer(protocol.env_options, workers, envs_per_worker)
    return evaluate(player, ExpertActor(noise=0.4), protocol, name="expert", identity="its settings", **measuring)


@pytest.mark.parametrize(("workers", "envs"), [(0, 4), (2, 1)])
def test_initial_states_and_outcomes_do_not_depend_on_batch_or_workers(protocol, workers, envs):
    recorded = {}

    def run(name, **settings):
        recorded[name] = {}

        def keep(episode):
            recorded[name][(episode.task, episode.meta["index"])] = episode.frames[0]

        return expert(protocol, record_videos=3, on_recording=keep, **settings)

    reference = run("one", envs_per_worker=1)
    assert run("many", workers=workers, envs_per_worker=envs).outcomes == reference.outcomes
    assert len(recorded["one"]) == 6
    for key, frame in recorded["one"].items():
        np.testing.assert_array_equal(frame, recorded["many"][key])


def test_an_interrupted_evaluation_continues_with_what_is_missing(protocol, tmp_path):
    whole = expert(protocol)
    started = []

    class StopError(Exception):
        pass

    def stop_at_the_third(episode):
        started.append(episode.meta["index"])
        if len(started) == 3:
            raise StopError

    with pytest.raises(StopError):
        expert(protocol, out=tmp_path, record_videos=3, on_recording=stop_at_the_third)
    seen = []
    result = expert(protocol, out=tmp_path, record_videos=3, on_recording=lambda episode: seen.append(episode.task))
    assert len(seen) == 4  # the third was not counted yet
    assert result.outcomes == whole.outcomes
    assert EvalResult.load(tmp_path) == result
    assert expert(protocol, out=tmp_path, record_videos=3, on_recording=seen.append) == result
    assert len(seen) == 4


def test_recordings_are_the_first_of_each_task(protocol):
    seen = []
    expert(protocol, record_videos=1, on_recording=lambda episode: seen.append((episode.task, episode.meta["index"])))
    assert sorted(seen) == [("CloseDrawer", 0), ("PickRedCube", 0)]


def test_a_policy_is_measured_under_its_own_chunk_length(protocol, tmp_path):
    ones = torch.ones(7)
    config = TokenPolicyConfig(image_size=16, chunk_length=8, width=8, blocks=1, keypoints=2, hidden=16)
    TokenPolicy(config, PolicyStatistics(-ones, ones, 0 * ones, ones)).save(tmp_path / "policy")
    protocol = dataclasses.replace(protocol, episodes_per_task=1)
    result = evaluate_policy(EmbeddedPlayer(protocol.env_options, 0), tmp_path / "policy", protocol)
    assert (result.policy, len(result.outcomes)) == ("policy", 2)
    assert len(result.policy_hash) == 64
    wrong = dataclasses.replace(protocol, chunk_length=9)
    with pytest.raises(ProtocolError, match="decides 8 actions at once, the protocol says 9"):
        evaluate_policy(EmbeddedPlayer(protocol.env_options, 0), tmp_path / "policy", wrong)


def test_as_many_numbers_that_mean_others_are_refused(protocol, tmp_path, tiny_policy):
    """A robot of as many joints passes every check of sizes; what differs is said."""
    tiny_policy(chunk_length=8).save(tmp_path / "policy")
    assert fitting_facts(tmp_path / "policy", protocol).actions == TOOL_ACTIONS
    fast = dataclasses.replace(TOOL_ACTIONS, high=(2.0, *TOOL_ACTIONS.high[1:]))
    with pytest.raises(
        ProtocolError, match=r"with another meaning \(its own -> the robot's\): high: \(1\.0, .* -> \(2\.0, "
    ):
        fitting_facts(tmp_path / "policy", dataclasses.replace(protocol, actions=fast))


def test_a_result_says_on_what_it_was_measured(protocol):
    from worldrl.core.device import hardware

    found = expert(protocol).provenance
    assert {"python", "torch", "mujoco", "physics", "code", "device", "hardware", "workers"} <= found.keys()
    assert (found["device"], found["hardware"], found["physics"]) == ("cpu", hardware("cpu"), "mujoco 4.0.0")
    assert not {"dtype", "attention"} & found.keys()  # a scripted expert computes with neither


def test_a_result_says_in_which_numbers_the_policy_decided(protocol, tmp_path, tiny_policy, monkeypatch):
    """The first thing that authors ask somebody who does not reach their number (FastWAM#23)."""
    tiny_policy(chunk_length=8).save(tmp_path / "policy")
    monkeypatch.setattr(provenance, "driver", lambda: "550.54.15")
    found = surroundings(EmbeddedPlayer(protocol.env_options), PolicyActor(str(tmp_path / "policy")), protocol)
    assert (found["dtype"], found["attention"], found["driver"]) == ("float32", "matrix products", "550.54.15")
    others = tmp_path / "lerobot"
    others.mkdir()
    (others / "config.json").write_text('{"type": "act", "input_features": {}}')
    mixed = {"a": torch.zeros(1, dtype=torch.bfloat16), "b": torch.zeros(1), "n": torch.zeros(1, dtype=torch.int64)}
    save_tensors(others / "model.safetensors", mixed)
    assert computing(PolicyActor(str(others))) == {"dtype": "bfloat16, float32"}
