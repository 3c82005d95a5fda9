"""A token policy of several cameras and the measured state."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import initial_weights
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.types import PolicyObs
from worldrl.methods.imitation.behaviour_cloning import train_policy
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.policies.observation import ObservationError
from worldrl.policies.samples import Samples, make_samples
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.policies.token.waypoint import Augmented
from worldrl.rollout.agents.policy_folder import policy_facts

CAMERAS = ["image", "wrist_image"]
SMALL = {"image_size": 16, "chunk_length": 4, "bins": 5, "width": 8, "blocks": 1, "keypoints": 2, "text_width": 8}


@pytest.fixture(scope="module")
def episodes(push_episode):
    """Two cameras, and a state that nothing else tells."""
    made = [push_episode(number, 24, close_at=None) for number in range(6)]
    return [
        replace(
            e,
            frames=np.concatenate([e.frames, 255 - e.frames], axis=1),
            cameras=("scene", "wrist"),
            state=np.random.default_rng(n).normal(size=(len(e) + 1, 8)).astype(np.float32),
        )
        for n, e in enumerate(made)
    ]


@pytest.fixture
def policy(episodes):
    config = TokenPolicyConfig(**SMALL, hidden=16, cameras=CAMERAS, state="measured")
    with initial_weights(0, "policy"):
        return TokenPolicy(config, PolicyStatistics.from_episodes(episodes)).eval()


def observe(episodes, **over):
    samples = make_samples(episodes, 4, ("wrist_image", "state"))
    more = {name: value[:3] for name, value in samples.more.items()} | over
    return PolicyObs(samples.image[:3], samples.command[:3], samples.instruction[:3], more)


def test_every_input_decides(policy, episodes):
    torch.nn.init.ones_(policy.waypoint_head.correction[-1].weight)  # it starts at 0
    plain = policy.logits(observe(episodes))
    for name, other in (("wrist_image", torch.zeros(3, 16, 16, 3, dtype=torch.uint8)), ("state", torch.zeros(3, 8))):
        changed = policy.logits(observe(episodes, **{name: other}))
        assert not torch.allclose(plain, changed), name
    hidden = Augmented(torch.zeros(3).bool(), torch.zeros(3, 7), [torch.zeros(3, 2).long()] * 2)
    config = TokenPolicyConfig(**SMALL, hidden=16, cameras=CAMERAS, state="measured", waypoint=False)
    older = TokenPolicy(config, PolicyStatistics.from_episodes(episodes)).eval()
    shown = [older.logits(observe(episodes, state=torch.full((3, 8), v))) for v in (0.0, 1.0)]
    assert not torch.allclose(*shown)
    without = [older.logits(observe(episodes, state=torch.full((3, 8), v)), augmented=hidden) for v in (0.0, 1.0)]
    assert torch.equal(*without)  # hidden with the command, which the state tells


def test_observations_are_checked_by_name(policy, episodes):
    bad = torch.zeros(3, 8)
    bad[1, 2] = float("nan")
    for over, named in (
        ({"state": torch.zeros(3, 7)}, r"state: shape must be \[3, 8\]"),
        ({"state": bad}, r"state\[1\]: must be finite"),
        ({"wrist_image": torch.zeros(3, 8, 8, 3, dtype=torch.uint8)}, "wrist_image: shape"),
    ):
        with pytest.raises(ObservationError, match=named):
            policy.logits(observe(episodes, **over))
    whole = observe(episodes)
    with pytest.raises(ObservationError, match=r"wrist_image: the policy needs it.*command, image, instruction"):
        policy.logits(replace(whole, more={}))


def test_a_folder_states_its_observation_and_one_without_is_of_one_camera(policy, episodes, tmp_path, tiny_policy):
    policy.save(tmp_path / "two")
    again = TokenPolicy.load(tmp_path / "two", "cpu")
    assert torch.equal(again.logits(observe(episodes)), policy.logits(observe(episodes)))
    facts = policy_facts(tmp_path / "two")
    assert (facts.more, facts.cameras) == (("wrist_image", "state"), ("scene", "wrist"))
    assert facts.observation == policy.observation
    stored = read_artefact(tmp_path / "two", kind="policy")
    assert stored.config["observation"] == policy.observation.to_json()
    damaged = {**stored.config, "observation": {**stored.config["observation"], "state": None}}
    write_artefact(tmp_path / "damaged", kind="policy", config=damaged, tensors=dict(stored.tensors))
    with pytest.raises(ArtefactError, match="observation differs"):
        TokenPolicy.load(tmp_path / "damaged", "cpu")

    old = tiny_policy()
    old.save(tmp_path / "old")
    stored = read_artefact(tmp_path / "old", kind="policy")
    config = {name: v for name, v in stored.config.items() if name not in ("observation", "cameras", "state")}
    write_artefact(tmp_path / "older", kind="policy", config=config, tensors=dict(stored.tensors))
    assert policy_facts(tmp_path / "older").more == TokenPolicy.load(tmp_path / "older", "cpu").more == ()
    stateless = PolicyStatistics(old.action_low, old.action_high, old.command_mean, old.command_std)
    with pytest.raises(SettingError, match="measured state"):
        TokenPolicy(policy.config, stateless)


def test_samples_keep_what_is_observed_besides(episodes):
    samples = make_samples(episodes, 4, ("wrist_image", "state"))
    assert torch.equal(samples.more["wrist_image"], 255 - samples.image)
    index = torch.tensor([3, 1])
    part = samples.select(index)
    joined = Samples.join([part, part])
    assert torch.equal(joined.more["state"], samples.more["state"][index].repeat(2, 1))


def test_an_action_that_only_the_state_tells_is_learned(episodes, tmp_path):
    told = []
    for episode in episodes:
        action = episode.action.copy()
        action[:, 0] = np.sign(episode.state[:-1, 0])
        reward = np.zeros(len(episode), np.float32)
        reward[-1] = 1
        told.append(replace(episode, action=action, reward=reward, terminated=True, truncated=False))
    errors = {}
    for state in ("measured", "none"):
        small = SMALL | {"chunk_length": 1, "waypoint": False}  # a waypoint's decoder sees no measured pose
        config = TokenPolicyConfig(**small, hidden=32, cameras=CAMERAS, state=state)
        training = BehaviourCloning(steps=120, batch_size=32, warmup_steps=5, learning_rate=5e-3, command_dropout=0.0)
        with initial_weights(0, "policy"):
            learner = TokenPolicy(config, PolicyStatistics.from_episodes(told))
        report = train_policy(
            learner, told, config=training, seed=0, folder=tmp_path / state, log=None, device="cpu", paraphrases=None
        )
        errors[state] = report.train["action_error"]
    assert errors["measured"] < 0.5 * errors["none"]
