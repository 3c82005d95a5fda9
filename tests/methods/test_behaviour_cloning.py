import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.core.actions import joint_targets
from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.storage.log import MetricLog, TrackerName
from worldrl.core.types import Episode, PolicyObs
from worldrl.methods.imitation.behaviour_cloning import token_loss, train_policy
from worldrl.methods.imitation.config import ONE_TOKEN_ROLLOUT, BehaviourCloning
from worldrl.methods.imitation.one_token_rollout import WRONG
from worldrl.policies.samples import make_samples
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.policies.token.tokens import soft_target, still_dimensions

SMALL = BehaviourCloning(steps=12, batch_size=8, warmup_steps=2, checkpoint_every=4, held_out_fraction=0.25)


class KilledError(Exception):
    pass


def make_episode(seed: int, steps: int = 6, *, success: bool = True, colour: str = "red") -> Episode:
    """A bright square says where to go: the action is its direction, so images alone tell what to do."""
    draw = np.random.default_rng(seed)
    x, y = draw.integers(2, 12, 2)
    frames = np.zeros((steps + 1, 1, 16, 16, 3), np.uint8)
    frames[:, :, y : y + 4, x : x + 4, ("red", "green").index(colour)] = 230
    action = np.zeros((steps, 7), np.float32)
    action[:, 0], action[:, 1] = (x + 2 - 8) / 8, (y + 2 - 8) / 8
    action[:, 6] = np.where(np.arange(steps) < steps // 2, -1, 1)
    reward = np.zeros(steps, np.float32)
    reward[-1] = success
    command = np.zeros((steps + 1, 7), np.float32)
    command[1:, 6] = action[:, 6]
    command[1:, :2] = 0.02 * np.cumsum(action[:, :2], axis=0)
    command[:, 2] = np.linspace(0, 0.1, steps + 1)
    return Episode(
        frames=frames,
        state=np.zeros((steps + 1, 8), np.float32),
        command=command,
        action=action,
        reward=reward,
        contact=np.zeros(steps + 1, bool),
        terminated=success,
        truncated=not success,
        meta={"seed": seed},  # some show the same square, and are recordings of their own all the same
        instruction=f"follow the {colour} square",
        task=f"Follow{colour.title()}",
    )


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    return [make_episode(seed, colour=("red", "green")[seed % 2]) for seed in range(24)]


@pytest.fixture
def make_policy(episodes) -> Callable[..., TokenPolicy]:
    def make(*, waypoint: bool = True) -> TokenPolicy:
        sizes = {"width": 16, "blocks": 1, "keypoints": 4, "hidden": 64}
        config = TokenPolicyConfig(image_size=16, chunk_length=3, bins=17, **sizes, waypoint=waypoint)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return TokenPolicy(config, PolicyStatistics.from_episodes(episodes))

    return make


def same_weights(a: TokenPolicy, b: TokenPolicy) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def run(policy: TokenPolicy, episodes: Sequence[Episode], folder: Path, config=SMALL, seed: int = 0, **more):
    more = {"log": None, **more}
    return train_policy(policy, episodes, config=config, seed=seed, folder=folder, device="cpu", **more)


def test_one_batch_is_overfitted(make_policy, episodes, tmp_path: Path):
    config = BehaviourCloning(
        steps=800, batch_size=16, label_width=0, way_noise=0, shift_pixels=0, jitter=0, held_out_fraction=0,
        learning_rate=3e-3, weight_decay=0, checkpoint_every=400,
    )  # fmt: skip
    policy = make_policy()

    report = run(policy, episodes[:4], tmp_path, config)

    assert report.train["token_accuracy"] == 1
    assert report.train["loss"] < 0.05
    assert report.held_out == {}
    samples = make_samples(episodes[:4], 3)
    chunk = policy.act(PolicyObs(samples.image, samples.command, samples.instruction), generators=None)
    moving = policy.action_high > policy.action_low
    half_bin = (policy.action_high - policy.action_low) / 16 / 2
    inside = samples.chunk.clamp(policy.action_low, policy.action_high)
    assert ((chunk.action - inside).abs()[..., moving] <= half_bin[moving] + 1e-6).all()


def test_training_learns_what_the_image_shows_and_measures_it_on_held_out_episodes(make_policy, tmp_path: Path):
    many = [make_episode(seed, colour=("red", "green")[seed % 2]) for seed in range(80)]
    config = replace(
        SMALL,
        steps=300,
        batch_size=32,
        learning_rate=3e-3,
        way_noise=0.1,
        shift_pixels=0,
        checkpoint_every=300,
        jitter=0.05,
    )

    report = run(make_policy(), many, tmp_path, config)

    assert (report.episodes, report.held_out_episodes) == (60, 20)
    assert report.held_out["action_error"] < 0.6 * error_without_looking(many)


def error_without_looking(episodes: Sequence[Episode]) -> float:
    """Mean absolute error of knowing everything but the directions, of which the image alone tells."""
    action = np.stack([episode.action[0, :2] for episode in episodes])
    return float(np.abs(action - np.median(action, axis=0)).mean()) * 2 / 7


def test_same_seed_gives_the_same_bits_and_another_seed_others(make_policy, episodes, tmp_path: Path):
    policies = [make_policy() for _ in range(3)]
    for index, (policy, seed) in enumerate(zip(policies, (0, 0, 1), strict=True)):
        run(policy, episodes, tmp_path / str(index), seed=seed)

    assert same_weights(policies[0], policies[1])
    assert not same_weights(policies[0], policies[2])


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_stopped_and_resumed_equals_uninterrupted(make_policy, episodes, tmp_path: Path, monkeypatch, ema_decay):
    config = replace(SMALL, ema_decay=ema_decay)
    whole, stopped, resumed = make_policy(), make_policy(), make_policy()
    expected = run(whole, episodes, tmp_path / "whole", config)
    calls = 0
    original = TokenPolicy.predict

    def dies(self, *args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == 7:
            raise KilledError
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(TokenPolicy, "predict", dies)
        with pytest.raises(KilledError):
            run(stopped, episodes, tmp_path / "parts", config)

    report = run(resumed, episodes, tmp_path / "parts", config)

    assert same_weights(whole, resumed)
    assert report == expected


def test_averaged_weights_are_returned(make_policy, episodes, tmp_path: Path):
    last, average = make_policy(), make_policy()
    run(last, episodes, tmp_path / "last")
    run(average, episodes, tmp_path / "average", replace(SMALL, ema_decay=0.9))

    assert not same_weights(last, average)


def test_failures_are_left_out_and_counted(make_policy, episodes, tmp_path: Path):
    failures = [make_episode(100 + seed, success=False) for seed in range(3)]
    first, second = make_policy(), make_policy()
    run(first, episodes, tmp_path / "a")

    report = run(second, [*episodes, *failures], tmp_path / "b")

    assert (report.skipped_failures, report.episodes, report.held_out_episodes) == (3, 18, 6)
    assert same_weights(first, second)
    assert json.loads(json.dumps(report.to_json()))["samples"] == 18 * 6
    with pytest.raises(SettingError, match="none of 3 succeeded"):
        run(first, failures, tmp_path / "c")


def test_paraphrases_of_the_task_replace_the_recorded_instruction(make_policy, episodes, tmp_path: Path, monkeypatch):
    heard: set[str] = set()
    original = TokenPolicy.predict

    def listen(self, obs, **kwargs):
        if kwargs.get("augmented"):  # training steps only
            heard.update(obs.instruction)
        return original(self, obs, **kwargs)

    monkeypatch.setattr(TokenPolicy, "predict", listen)
    run(make_policy(), episodes, tmp_path, paraphrases={"FollowRed": ["go to red", "red one please"]})

    assert heard == {"go to red", "red one please", "follow the green square"}
    with pytest.raises(SettingError, match=r"paraphrases\['FollowRed'\]"):
        run(make_policy(), episodes, tmp_path / "b", paraphrases={"FollowRed": []})


def test_loss_of_one_hot_labels_is_cross_entropy_of_the_moving_dimensions(make_policy):
    policy = make_policy()
    logp = torch.randn(4, 3, 7, 17, generator=stream(0, "logits")).log_softmax(dim=-1)
    chunk = torch.zeros(4, 3, 7)
    chunk[..., 6] = 1  # the gripper's last bin
    weights = torch.tensor([2.0, 1, 1, 1, 1, 1, 3])

    loss = token_loss(policy, logp, chunk, label_width=0, weights=weights)

    zero = [
        round(float((0 - lo) / (hi - lo)) * 16)
        for lo, hi in zip(policy.action_low, policy.action_high, strict=True)
        if hi > lo
    ]
    x, y = zero[0], zero[1]
    expected = -(2 * logp[:, :, 0, x].mean() + logp[:, :, 1, y].mean() + 3 * logp[:, :, 6, 16].mean()) / 6
    torch.testing.assert_close(loss, expected)

    more = torch.cat([chunk, torch.full((2, 3, 7), torch.nan)])
    wild = torch.cat([logp, torch.full((2, 3, 7, 17), -9.0)]).requires_grad_()
    beside = token_loss(policy, wild, more, label_width=0, weights=weights)
    torch.testing.assert_close(beside, expected)  # actions that are not to be imitated count nothing
    beside.backward()
    assert wild.grad is not None
    assert wild.grad[4:].abs().max() == 0
    assert token_loss(policy, logp, torch.full_like(chunk, torch.nan), label_width=0, weights=weights) == 0


def test_the_objective_is_that_of_the_loss_and_of_the_training(make_policy, episodes, tmp_path: Path):
    """Of one-hot labels One-Token Rollout is -Σ π̄ R log π, over the moving numbers."""
    policy = make_policy()
    batch = make_samples(episodes[:2], policy.chunk_length)
    logp, weights = policy.log_softmax(batch.observed).detach(), torch.ones(7)
    found = token_loss(policy, logp, batch.chunk, label_width=0, weights=weights, objective=ONE_TOKEN_ROLLOUT)
    label = soft_target(batch.chunk, policy.action_low, policy.action_high, bins=policy.config.bins, width=0)
    reward = torch.where(label > 0, 1.0, WRONG)
    moving = ~still_dimensions(policy.action_low, policy.action_high)
    expected = -(logp.exp() * reward * logp).sum(-1)[..., moving].mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    other = make_policy()
    run(policy, episodes, tmp_path / "likelihood")
    run(other, episodes, tmp_path / "rollout", replace(SMALL, objective=ONE_TOKEN_ROLLOUT))
    assert not same_weights(policy, other)


def test_hidden_commands_in_training_change_what_is_learned(make_policy, episodes, tmp_path: Path):
    shown, hidden = make_policy(waypoint=False), make_policy(waypoint=False)
    run(shown, episodes, tmp_path / "a", replace(SMALL, command_dropout=0.0))
    run(hidden, episodes, tmp_path / "b", replace(SMALL, command_dropout=0.9))

    assert not same_weights(shown, hidden)


def test_log_holds_every_step_once(make_policy, episodes, tmp_path: Path):
    log = MetricLog(tmp_path / "run", tracker=TrackerName.none)
    run(make_policy(), episodes, tmp_path / "fit", log=log)
    log.close()

    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(12))
    assert all("policy/loss" in line["values"] for line in lines)


def test_trained_policy_survives_saving(make_policy, episodes, tmp_path: Path):
    policy = make_policy()
    untrained = copy.deepcopy(policy)
    run(policy, episodes, tmp_path / "fit")
    policy.save(tmp_path / "policy")

    assert same_weights(policy, TokenPolicy.load(tmp_path / "policy", "cpu"))
    assert not same_weights(policy, untrained)


@pytest.mark.parametrize(
    "bad",
    [{"steps": 0}, {"command_dropout": 1.0}, {"label_width": -1}, {"dimension_weights": (-1.0,) * 7},
     {"dimension_weights": (0.0,) * 7}, {"warmup_steps": 1500}, {"ema_decay": 1.0}],
)  # fmt: skip
def test_settings_out_of_range(bad):
    with pytest.raises(SettingError, match=f"^{next(iter(bad))}: "):
        BehaviourCloning(**bad)


def test_weights_from_a_configuration_file_become_a_tuple():
    assert BehaviourCloning(dimension_weights=[1, 1, 1, 0, 0, 0, 2]).dimension_weights == (1, 1, 1, 0, 0, 0, 2)


def test_weights_are_one_for_each_number_of_the_robots_actions():
    pair = joint_targets(("joint1", "gripper"), (-1.0, 0.0), (1.0, 1.0))
    assert BehaviourCloning().weights(pair).tolist() == [1, 1]
    assert BehaviourCloning(dimension_weights=(1, 2)).weights(pair).tolist() == [1, 2]
    with pytest.raises(SettingError, match="one for each of joint1, gripper"):
        BehaviourCloning(dimension_weights=(1.0,) * 7).weights(pair)
