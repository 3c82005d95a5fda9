"""A lerobot policy's client, service and wire: real processes around a network of closed forms, without lerobot.

Units under test: ``rollout/lerobot_policy.py``, ``policies/lerobot_service.py``, ``policies/one_step.py``, ``workers/server.py``.
"""

import copy
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributions import Normal

from worldrl.core.errors import SettingError, WorkerError
from worldrl.core.rng import row_streams, stream
from worldrl.core.storage.log import MetricLog, TrackerName
from worldrl.core.types import CorrelatedNoise, PolicyObs
from worldrl.methods.imitation.lerobot_tuning import FineTuning, fine_tune
from worldrl.methods.rl.config import GrpoConfig
from worldrl.methods.rl.grpo import train_grpo
from worldrl.methods.rl.imagination import imagined_env
from worldrl.policies.exploration import Exploration
from worldrl.policies.lerobot.folder import read_lerobot_folder
from worldrl.policies.lerobot.one_step import unpack_trace
from worldrl.policies.lerobot.policy import LerobotPolicy
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.rollout.imagined.rollouts import imagine_rollouts
from worldrl.simulators.process import Launch
from worldrl.workers.link.boot import load_file

FAKE = Path(__file__).parents[1] / "policies" / "fake_network.py"
fake = load_file("fake_network", FAKE)
H, D, L, A = fake.HORIZON, fake.PADDED, fake.EXECUTED, fake.ACTION


def start(folder, **options):
    launch = Launch("fake policy", sys.executable, f"{FAKE}:Fake", {"folder": str(folder), **options})
    return LerobotPolicy(read_lerobot_folder(folder), launch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fake.publish(tmp_path_factory.mktemp("policies") / "smolvla")


@pytest.fixture(scope="module")
def policy(folder):
    policy = start(folder)
    yield policy
    policy.close()


@pytest.fixture
def network(folder):
    """The same network in this process."""
    return fake.FakeNetwork(folder)


def observe(rows, seed=0):
    return PolicyObs(*fake.observations(rows, seed))


def test_a_draws_log_probability_is_the_gaussians_of_its_one_stochastic_step(policy, network):
    obs, temperature = observe(5), 1.3
    chunk = policy.act(obs, generators=row_streams(3, ["act"], 5), temperature=temperature)
    own, before, after = unpack_trace(chunk.token, (H, D))
    weight, bias, told = (getattr(network.policy, name).detach() for name in ("weight", "bias", "command"))
    for row in range(5):
        k = int(own[row])
        sigma, later = 1 - k / fake.STEPS, 1 - (k + 1) / fake.STEPS
        scale = temperature * fake.ETA * (sigma / (1 - (sigma if sigma < 1 else 1 - 1 / fake.STEPS))) ** 0.5
        v = before[row] @ weight.T + bias + told @ obs.command[row]
        # x + v dt - s²/2 · score · dt with score = -(x + (1 - σ) v) / σ
        mean = before[row] + (v + 0.5 * scale**2 * (before[row] + (1 - sigma) * v) / sigma) * (later - sigma)
        expected = Normal(mean, scale * (sigma - later) ** 0.5).log_prob(after[row])[:L, :A]
        torch.testing.assert_close(chunk.logp[row], expected, rtol=1e-4, atol=1e-4)
    assert len(set(own.tolist())) > 1  # rows draw their step apart


def test_log_prob_recomputes_act_and_rows_are_their_own(policy):
    obs = observe(4)
    chunk = policy.act(obs, generators=row_streams(1, ["act"], 4))
    assert chunk.action.shape == chunk.logp.shape == (4, L, A)
    with torch.no_grad():
        torch.testing.assert_close(policy.log_prob(obs, chunk.token), chunk.logp, rtol=1e-5, atol=1e-5)
    alone = PolicyObs(obs.image[2:3], obs.command[2:3], obs.instruction[2:3])
    single = policy.act(alone, generators=row_streams(1, ["act"], 4)[2:3])
    torch.testing.assert_close(single.action, chunk.action[2:3], rtol=1e-5, atol=1e-6)
    again = policy.act(obs, generators=row_streams(1, ["act"], 4))
    assert torch.equal(again.action, chunk.action)


def test_temperature_zero_is_the_odes_euler_steps(policy, network):
    obs = observe(3)
    generators = row_streams(8, ["act"], 3)
    chunk = policy.act(obs, generators=generators, temperature=0.0)
    x = torch.stack([torch.randn(2, H, D, generator=g)[0] for g in row_streams(8, ["act"], 3)])
    with torch.no_grad():
        for _ in range(fake.STEPS):
            x = x - network.policy(x, obs.command) / fake.STEPS
    expected = network.actions(x[:, :L, :A]).clamp(-1, 1)
    torch.testing.assert_close(chunk.action, expected, rtol=1e-4, atol=1e-5)
    assert chunk.logp.abs().max() == 0


def test_what_lasts_of_the_exploration_enters_the_stochastic_step_alone(policy):
    obs, value = observe(2), torch.full((2, A), 1.5)
    chunk = policy.act(
        obs,
        generators=row_streams(1, ["act"], 2),
        correlated_noise=CorrelatedNoise(value, 1.0, torch.zeros_like(value)),
    )
    own, _, _ = unpack_trace(chunk.token, (H, D))
    # Everything lasts: each executed number was drawn 1.5 deviations above its mean.
    torch.testing.assert_close(chunk.logp - Normal(0.0, 1.0).log_prob(torch.tensor(1.5)), -policy_std(own).log())
    with pytest.raises(SettingError, match="this policy has no waypoint"):
        policy.act(
            obs, generators=row_streams(1, ["act"], 2), correlated_noise=CorrelatedNoise(value, 1.0, torch.ones(2, A))
        )


def policy_std(own):
    sigma = 1 - own / fake.STEPS
    divisor = 1 - torch.where(sigma < 1, sigma, torch.tensor(1 - 1 / fake.STEPS))
    return (fake.ETA * (sigma / divisor).sqrt() * (1 / fake.STEPS) ** 0.5)[:, None, None].expand(-1, L, A)


def test_gradients_cross_the_pipe(folder, network):
    policy = start(folder)
    obs = observe(4)
    chunk = policy.act(obs, generators=row_streams(1, ["act"], 4))
    seen = network.sampler.encode(network.batch(*features(obs)))
    fake_logp = fake.trace_log_prob(network.sampler, seen, chunk.token, 1.0)[:, :L, :A]
    factor = torch.randn(fake_logp.shape, generator=stream(0, "factor"))
    (factor * fake_logp).sum().backward()
    expected = torch.stack([p.grad.norm() for p in network.policy.parameters()]).norm()
    here = torch.optim.AdamW(network.policy.parameters(), lr=0.01, weight_decay=0.1)
    there = policy.make_optimizer(0.01, 0.1)
    for clip in (1e9, 0.5):
        for optimizer, own in ((here, network.policy), (there, policy)):
            if own is policy:
                optimizer.zero_grad()
                (factor * policy.log_prob(obs, chunk.token)).sum().backward()
            norm = torch.nn.utils.clip_grad_norm_(own.parameters(), clip)
            if clip > 1:
                torch.testing.assert_close(norm, expected, rtol=1e-4, atol=1e-5)
            optimizer.step()
        here.zero_grad()
        logp = fake.trace_log_prob(network.sampler, seen, chunk.token, 1.0)[:, :L, :A]
        (factor * logp).sum().backward()
    for name, parameter in network.policy.named_parameters():
        torch.testing.assert_close(policy.state_dict()[f"policy/{name}"], parameter.detach(), rtol=1e-4, atol=1e-6)
    twin = copy.deepcopy(policy)
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in policy.state_dict().items())
    saved = there.state_dict()
    assert {name.rpartition("/")[2] for name in saved["state"]} == {"step", "exp_avg", "exp_avg_sq"}
    other = twin.make_optimizer(0.5, 0.0)
    other.load_state_dict(saved)
    assert other.param_groups[0]["lr"] == 0.01
    assert all(torch.equal(value, other.state_dict()["state"][name]) for name, value in saved["state"].items())
    policy.close()
    twin.close()


def features(obs):
    picture = obs.image.permute(0, 3, 1, 2).float() / 255
    return {"observation.images.scene": picture, "observation.state": obs.command}, list(obs.instruction)


@pytest.fixture(scope="module")
def recalling(tmp_path_factory):
    """A policy that reads two observations."""
    policy = start(fake.publish(tmp_path_factory.mktemp("policies") / "two", type="diffusion", n_obs_steps=2))
    yield policy
    policy.close()


def test_two_observations_tell_the_chunk_and_it_is_executed_from_the_newer_one_on(recalling, policy):
    older, newer = observe(3, seed=1), observe(3, seed=2)
    told = newer.command + 0.5 * older.command  # of the fake network, which reads one command or at two
    generators = [row_streams(4, ["act"], 3) for _ in range(3)]
    chunk = recalling.act(replace(newer, past=(older,)), generators=generators[0], temperature=1.0)
    swapped = recalling.act(replace(older, past=(newer,)), generators=generators[1], temperature=1.0)
    assert not torch.equal(chunk.action, swapped.action)
    single = policy.act(replace(newer, command=told), generators=generators[2], temperature=1.0)
    torch.testing.assert_close(chunk.token, single.token)
    torch.testing.assert_close(chunk.action[:, :-1], single.action[:, 1:])  # its first action is past
    torch.testing.assert_close(chunk.logp[:, :-1], single.logp[:, 1:])
    again = recalling.log_prob(replace(newer, past=(older,)), chunk.token)
    torch.testing.assert_close(again.detach(), chunk.logp, rtol=1e-5, atol=1e-5)
    correlated_noise = CorrelatedNoise(torch.full((3, A), 1.5), 1.0, torch.zeros(3, A))
    lasting = recalling.act(
        replace(newer, past=(older,)), generators=row_streams(4, ["act"], 3), correlated_noise=correlated_noise
    )
    own, _, _ = unpack_trace(lasting.token, (H, D))
    torch.testing.assert_close(lasting.logp - Normal(0.0, 1.0).log_prob(torch.tensor(1.5)), -policy_std(own).log())


def test_without_the_observation_before_it_is_refused_by_name(recalling):
    with pytest.raises(SettingError, match=r"needs 2 observations.*n_obs_steps.*is shown 1$"):
        recalling.act(observe(2), generators=row_streams(1, ["act"], 2))


def test_fine_tuning_shows_the_frame_before_and_begins_the_chunk_there(recalling, push_episodes, tmp_path, monkeypatch):
    seen = []

    def loss(obs, action, *, seed):
        seen.append((obs, action))
        return 0 * recalling.anchor

    monkeypatch.setattr(recalling, "imitation_loss", loss)
    (episode,) = [episode for episode in push_episodes if episode.success][:1]
    config = FineTuning(steps=1, batch_size=64, warmup_steps=0, held_out_fraction=0.0)
    fine_tune(recalling, [episode], config=config, seed=0, folder=tmp_path, log=None)
    frames, action = episode.main_view, episode.action
    obs, chunk = seen[-1]  # the loss measured at the end goes through all samples in order
    (before,) = obs.past
    for step in range(len(episode)):
        early = max(step - 1, 0)  # before the first frame there is the first frame
        assert torch.equal(obs.image[step], torch.from_numpy(frames[step]))
        assert torch.equal(before.image[step], torch.from_numpy(frames[early]))
        assert torch.equal(before.command[step], torch.from_numpy(episode.command[early]))
        known = min(H - 1, len(episode) - step)
        assert torch.equal(chunk[step, 0], torch.from_numpy(action[early]))
        assert torch.equal(chunk[step, 1 : 1 + known], torch.from_numpy(action[step : step + known]))
    assert chunk.shape == (len(episode), H, A)


def test_the_saved_statistics_are_used(tmp_path, policy):
    shifted = {"action.mean": torch.full((A,), 0.30), "action.std": torch.full((A,), 0.2)}
    other = start(fake.publish(tmp_path / "shifted", statistics=shifted))
    obs, draws = observe(3), {"temperature": 0.0}
    plain = policy.act(obs, generators=row_streams(1, ["act"], 3), **draws).action
    moved = other.act(obs, generators=row_streams(1, ["act"], 3), **draws).action
    inside = (plain.abs() < 0.7) & (moved.abs() < 1)
    assert inside.float().mean() > 0.3
    torch.testing.assert_close(moved[inside], plain[inside] + 0.25)
    assert float(moved.max()) <= 1  # the robot's range
    other.close()


def test_a_round_trip_through_a_folder(tmp_path, policy):
    policy.save(tmp_path / "copy")
    other = start(tmp_path / "copy")
    obs = observe(2)
    a, b = (p.act(obs, generators=row_streams(1, ["act"], 2)) for p in (policy, other))
    assert torch.equal(a.action, b.action)
    assert other.folder.hash == policy.folder.hash
    other.close()


def test_wrong_requests_say_what_is_wrong(tmp_path, policy):
    obs = observe(2)
    with pytest.raises(SettingError, match="one stream per row: 2, got none"):
        policy.act(obs, generators=None)
    with pytest.raises(
        SettingError, match=r"does not fit(?s:.)*observation.images.scene \(16, 16, 3\) .*image \(8, 8, 3\)"
    ):
        policy.act(PolicyObs(obs.image[:, :8, :8], obs.command, obs.instruction), generators=row_streams(1, ["a"], 2))
    with pytest.raises(WorkerError, match="RuntimeError: no such thing"):
        start(fake.publish(tmp_path / "broken"), boom="no such thing")


def test_a_dead_worker_is_an_error_that_names_the_policy(folder):
    policy = start(folder)
    os.kill(policy.worker._process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"fake policy.*killed"):
        policy.act(observe(1), generators=row_streams(1, ["a"], 1))


def test_grpo_in_imagination_takes_real_steps_and_resumes(tmp_path, folder, world_model, make_record, monkeypatch):
    def decided(*given, **named):
        """Imagined rollouts of which half succeeded: this untrained world would say the same of all."""
        return replace(imagine_rollouts(*given, **named), success=torch.tensor([True, False, False, True]))

    monkeypatch.setattr("worldrl.methods.rl.imagination.imagine_rollouts", decided)
    records = [make_record(grey) for grey in (20, 120, 220)]
    env = imagined_env(world_model, ResetStore(records), SuccessRule(0.01, 1), rows=4, horizon={"PickRedCube": 8})
    config = GrpoConfig(
        iterations=2,
        checkpoint_every=1,
        groups=2,
        group_size=2,
        minibatch=8,
        learning_rate=1e-2,
        keep_low=0,
        keep_high=1,
        kl=0.1,
    )

    def train(name, upto):
        policy = start(folder)
        with MetricLog(tmp_path / name, tracker=TrackerName.none) as log:
            train_grpo(
                policy,
                env,
                GrpoConfig(**{**vars(config), "iterations": upto}),
                exploration=Exploration(1.0, 0.3),
                p_keyframe=0.0,
                seed=1,
                folder=tmp_path / name / "checkpoints",
                log=log,
                series="grpo",
            )
        state = policy.state_dict()
        policy.close()
        return state

    before, whole = fake.load_file(folder / "model.safetensors"), train("whole", 2)
    assert any(not torch.equal(value, before[name.partition("/")[2]]) for name, value in whole.items())
    train("parts", 1)
    assert all(torch.equal(value, whole[name]) for name, value in train("parts", 2).items())


def test_fine_tuning_lowers_the_policys_own_loss_and_resumes(tmp_path, folder, push_episodes):
    def train(name, steps):
        policy = start(folder)
        config = FineTuning(steps=6, batch_size=8, learning_rate=3e-2, warmup_steps=1, checkpoint_every=2)
        if steps < 6:
            with pytest.raises(RuntimeError, match="enough"):
                stopped(policy, config, steps)
        else:
            report = fine_tune(policy, push_episodes, config=config, seed=0, folder=tmp_path / name, log=None)
            state = policy.state_dict()
            policy.close()
            return report, state

    def stopped(policy, config, steps):
        original, taken = policy.imitation_loss, 0

        def limited(*args, **kwargs):
            nonlocal taken
            taken += 1
            if taken > steps:
                raise RuntimeError("enough")
            return original(*args, **kwargs)

        policy.imitation_loss = limited
        try:
            fine_tune(policy, push_episodes, config=config, seed=0, folder=tmp_path / "parts", log=None)
        finally:
            policy.close()

    report, whole = train("whole", 6)
    assert report.train < 0.95 * untrained_loss(folder, push_episodes)
    train("parts", 4)
    _, resumed = train("parts", 6)
    assert all(torch.equal(value, whole[name]) for name, value in resumed.items())


def untrained_loss(folder, episodes):
    from worldrl.methods.imitation.lerobot_tuning import measured_loss
    from worldrl.policies.samples import make_samples

    policy = start(folder)
    value = measured_loss(policy, make_samples([e for e in episodes if e.success], H), FineTuning(batch_size=8), seed=0)
    policy.close()
    return value
