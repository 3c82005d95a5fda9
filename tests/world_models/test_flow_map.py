"""AnyFlow: the map of a Gaussian flow in closed form, old weights unchanged, both stages resumable, and refusals."""

import copy
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from worldrl.cli import main
from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.training.ema import Ema
from worldrl.diffusion.flow import add_noise, expand_sigma
from worldrl.methods.alignment.task import AlignmentTask
from worldrl.nn.blocks import Mlp
from worldrl.world_models.video import flow_map, training
from worldrl.world_models.video.config import DynamicsConfig
from worldrl.world_models.video.extension import extended
from worldrl.world_models.video.flow_map import (
    ForwardLoss,
    OnPolicyLoss,
    add_target_level,
    draw_levels,
    draw_rollout,
    fit_flow_map,
    jump,
    map_target,
    matching_direction,
    simulate,
)
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.losses import window_state
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining

NOTHING = TaskInstructions({}, {})
CONFIG = WorldModelTraining(
    dtype="float32", unroll=2, batch=8, warmup=2, checkpoint_every=2, ema_decay=0.0, learning_rate=3e-3,
    flow_map_steps=4, flow_map_rollout_steps=4, on_policy_steps=4, on_policy_learning_rate=3e-4,
)  # fmt: skip
WIDE = 0.5  # standard deviation of the Gaussian data


# --- closed form: z ~ N(0, WIDE²), so x_t ~ N(0, s_t²) and the flow maps x_t to x_t s_r / s_t --------------------------


def spread(t):
    return (t.square() + (1 - t).square() * WIDE**2).sqrt()


def gaussian_velocity(x, t):
    return x * expand_sigma((t - (1 - t) * WIDE**2) / spread(t).square(), x)


def gaussian_clean(x, t, r):
    """What the exact map answers: x_t - t u, with the mean velocity u, or the flow's own where r = t."""
    step = expand_sigma(t - r, x)
    mean = x * (1 - expand_sigma(spread(r) / spread(t), x)) / step.clamp_min(1e-12)
    return x - expand_sigma(t, x) * torch.where(step > 1e-6, mean, gaussian_velocity(x, t))


PAIRS = [(1.0, 0.0), (1.0, 0.5), (0.8, 0.3), (0.4, 0.05), (0.6, 0.6), (0.2, 0.0)]


@pytest.fixture
def rows():
    t, r = (torch.tensor(levels, dtype=torch.float64) for levels in zip(*PAIRS, strict=True))
    return torch.randn(len(PAIRS), 3, generator=stream(0, "rows"), dtype=torch.float64), t, r


def test_jumps_of_the_exact_map_compose(rows):
    x, t, r = rows
    middle = (t + r) / 2
    two = jump(gaussian_clean, jump(gaussian_clean, x, t, middle), middle, r)
    torch.testing.assert_close(two, jump(gaussian_clean, x, t, r))
    torch.testing.assert_close(two, x * expand_sigma(spread(r) / spread(t), x))


def test_the_exact_map_is_its_own_target(rows):
    x, t, r = rows
    target = map_target(gaussian_clean, x, t, r, gaussian_velocity(x, t))
    torch.testing.assert_close(target, gaussian_clean(x, t, r), atol=0.025, rtol=0)  # of the difference


def test_another_map_is_not(rows):
    """The flow's own answer, whatever r is, is right at r = t only; there, and only there, a negated map is wrong."""
    x, t, r = rows

    def away(wrong):
        return (map_target(wrong, x, t, r, gaussian_velocity(x, t)) - wrong(x, t, r)).abs().amax(dim=1)

    ignored = away(lambda x, t, r: gaussian_clean(x, t, t))
    assert (ignored[t > r + 0.3] > 0.05).all()
    assert ignored[t == r].max() < 1e-6
    assert away(lambda x, t, r: -gaussian_clean(x, t, r))[t == r].min() > 0.1


def test_simulation_ends_where_the_flow_does():
    noise = torch.randn(5, 3, generator=stream(0, "noise"), dtype=torch.float64)
    for levels in ([1.0, 0.0], [1.0, 0.5, 0.0], [1.0, 0.75, 0.5, 0.0]):
        torch.testing.assert_close(simulate(gaussian_clean, noise, levels), WIDE * noise)


def test_a_tiny_network_learns_the_map():
    """After 400 steps every sampler ends within 0.08 of 0.5, the exact end of a path from 1; the plain flow's one step ends at 0."""
    powers = [(a, b) for a in range(5) for b in range(5 - a)]
    with initial_weights(0, "tiny"):
        network = Mlp(len(powers), 32, 1)

    def predict(x, t, r):
        return x * network(torch.stack([t**a * r**b for a, b in powers], dim=1))

    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    for step in range(400):
        generator = stream(0, "tiny", step)
        t, r = draw_levels(256, pure_noise_share=0.25, shift=1.0, generator=generator)
        clean, noise = WIDE * torch.randn(256, 1, generator=generator), torch.randn(256, 1, generator=generator)
        x = add_noise(clean, noise, t)
        with torch.no_grad():
            target = map_target(predict, x, t, r, gaussian_velocity(x, t))
        optimizer.zero_grad()
        (predict(x, t, r) - target).square().mean().backward()
        optimizer.step()
        schedule.step()
    one = torch.ones(1, 1)
    with torch.no_grad():
        ends = [simulate(predict, one, torch.linspace(1, 0, n + 1).tolist()).item() for n in (1, 2, 4, 8)]
        halfway = jump(predict, one, torch.ones(1), torch.full((1,), 0.5)).item()
    assert ends == pytest.approx([WIDE] * 4, abs=0.08)
    assert max(ends) - min(ends) < 0.08
    assert halfway == pytest.approx(spread(torch.tensor(0.5)).item(), abs=0.03)


# --- draws ---------------------------------------------------------------------------------------------------------


def test_levels_are_drawn_in_the_published_shares():
    t, r = draw_levels(20_000, pure_noise_share=0.3, shift=1.0, generator=stream(0, "levels"))
    assert ((r >= 0) & (r <= t) & (t >= flow_map.LOWEST) & (t <= 1)).all()
    assert (r == t).float().mean().item() == pytest.approx(0.5, abs=0.01)
    assert (r == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert (t == 1).float().mean().item() == pytest.approx(0.3, abs=0.01)
    free = (r > 0) & (r < t) & (t < 1)
    assert t[free].mean().item() == pytest.approx(0.5, abs=0.02)
    assert (t[t < 1] < 0.2).float().mean().item() == pytest.approx(0.2, abs=0.01)  # at small t the map is held
    assert (r / t)[free].mean().item() == pytest.approx(0.5, abs=0.02)
    shifted, _ = draw_levels(20_000, pure_noise_share=0.0, shift=5.0, generator=stream(0, "levels"))
    assert shifted.median() > 0.8 > t.median()


def test_every_step_of_every_short_sampler_is_simulated():
    found = {tuple(draw_rollout(6, 1.0, stream(0, "rollout", n))) for n in range(400)}
    wanted = set()
    for steps in (1, 2, 4, 6):
        grid = torch.linspace(1, 0, steps + 1, dtype=torch.float64).float().tolist()
        wanted |= {tuple(sorted({1.0, *ends, 0.0}, reverse=True)) for ends in itertools.pairwise(grid)}
    assert found == wanted
    assert max(map(len, found)) == 4  # never more than three jumps


def test_matching_moves_a_sample_to_the_real_prediction_and_rests_where_both_agree():
    sample, real = torch.tensor([[2.0, 2.0], [4.0, 0.0]]), torch.tensor([[1.0, 1.0], [2.0, 0.0]])
    assert matching_direction(sample, real, real).abs().max() == 0
    direction = matching_direction(sample, real, fake=sample)  # the fake network knows its own samples
    torch.testing.assert_close(direction, torch.tensor([[1.0, 1.0], [2.0, 0.0]]))  # real - sample over its mean
    assert ((sample - 0.1 * direction) - real).abs().sum() < (sample - real).abs().sum()


# --- the network ---------------------------------------------------------------------------------------------------


@pytest.fixture
def chunk(world_model, push_episodes):
    """Recorded chunks with their context, as a backend's loss gets them."""
    batch = latent_sampler(world_model, push_episodes, CONFIG).sample(16, stream(0, "chunk"))
    state, target = window_state(batch)
    length, frames = world_model.chunk_length, world_model.config.dynamics.chunk_frames
    condition = world_model.condition(batch.action[:, :length], batch.commands[:, :length])
    return target[:, :frames], batch.valid[:, :frames], state.reference, state.memory, condition


def noise_of(model):
    return torch.randn(16, *model.noise_shape, generator=stream(0, "noise"))


@torch.no_grad()
def sampled(model, chunk, steps):
    model.dynamics.config.sampling_steps = steps
    return model.dynamics.sample(noise_of(model), *chunk[2:])[0]


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_an_untrained_second_level_changes_no_bit(make_world_model, chunk, steps):
    plain, larger = make_world_model(spread=0.3), make_world_model(spread=0.3)
    add_target_level(larger, seed=1)
    wanted = copy.deepcopy(plain.config)
    wanted.dynamics.flow_map = True
    for other in (larger, extended(plain, wanted, seed=2)):
        assert other.config.dynamics.flow_map
        assert torch.equal(sampled(other, chunk, steps), sampled(plain, chunk, steps))


def test_the_second_level_is_used_once_it_is_trained(make_world_model, chunk):
    model = make_world_model(spread=0.3)
    dynamics = add_target_level(model, seed=1)
    with torch.no_grad():
        dynamics.target_in[-1].weight.normal_(generator=stream(0, "shaken"))
        x, t = noise_of(model), torch.full((16,), 0.7)
        own, same, other = (dynamics(x, t, *chunk[2:], *target)[0] for target in ((), (t,), (0 * t,)))
    assert torch.equal(own, same)
    assert (own - other).abs().max() > 1e-3


def test_weights_with_and_without_it_are_stored_and_read(make_world_model, chunk, tmp_path):
    model = make_world_model(spread=0.3)
    model.save(tmp_path / "old")
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    assert config["dynamics"].pop("flow_map") is False
    del config["schema"], config["kind"]
    old = VideoWorldModel.load(tmp_path / "old")
    assert old.dynamics.target_in is None
    assert type(old.config).from_json(config) == old.config  # a file from before the setting
    assert torch.equal(sampled(old, chunk, 2), sampled(model, chunk, 2))
    with torch.no_grad():
        add_target_level(model, seed=1).target_in[-1].weight.fill_(0.1)
    model.save(tmp_path / "new")
    new = VideoWorldModel.load(tmp_path / "new")
    assert new.config.dynamics.flow_map
    assert torch.equal(sampled(new, chunk, 2), sampled(model, chunk, 2))
    assert not torch.equal(sampled(new, chunk, 2), sampled(old, chunk, 2))


def test_the_sampler_jumps_from_level_to_level_and_reads_at_the_end(make_world_model, chunk, monkeypatch):
    model = make_world_model(flow_map=True, refinement_steps=1, refinement_sigma=0.02, sampling_steps=4)
    asked = []

    def forward(x, t, reference, memory, action, target):
        asked.append((round(t[0].item(), 3), round(target[0].item(), 3)))
        return memory[:, -1:].expand_as(x), torch.zeros(len(x), 4, 16)

    monkeypatch.setattr(model.dynamics, "forward", forward)
    sampled(model, chunk, 4)
    model.dynamics.read(chunk[0], chunk[0], *chunk[2:])
    assert asked == [(1.0, 0.75), (0.75, 0.5), (0.5, 0.25), (0.25, 0.0), (0.02, 0.0), (0.02, 0.0)]


# --- losses --------------------------------------------------------------------------------------------------------


def on_policy(model):
    student = add_target_level(model, seed=0)
    real, fake = (copy.deepcopy(student).requires_grad_(own) for own in (False, True))
    return OnPolicyLoss(ForwardLoss(student), real, fake, 4)


def test_networks_that_are_right_everywhere_have_no_loss(make_world_model, chunk, monkeypatch):
    """One certain future: every level leads to it on a straight line, and simulated chunks are the recorded ones."""
    loss = on_policy(make_world_model())
    for network in (loss.forward.student, loss.real, loss.fake):
        monkeypatch.setattr(network, "forward", lambda x, *rest: (chunk[0], torch.zeros(len(x), 4, 16)))
    found = loss(*chunk, generator=stream(0, "loss"))
    assert {name: value.item() for name, value in found.logs.items()} == pytest.approx(
        {"wm/flow_map_loss": 0, "wm/matching_loss": 0, "wm/fake_loss": 0}, abs=1e-8
    )
    assert found.level.shape == (16, 1)


def test_a_wrong_network_has_the_loss_of_its_error(make_world_model, chunk, monkeypatch):
    model = make_world_model(motion_weight=0.0)
    student = add_target_level(model, seed=0)
    monkeypatch.setattr(student, "forward", lambda x, t, r, m, a, s: (chunk[0] + 0.1, torch.zeros(len(x), 4, 16)))
    monkeypatch.setattr(flow_map, "DIFFUSION", 1.0)  # r = t: the target is the recorded chunk
    found = ForwardLoss(student)(*chunk, generator=stream(0, "loss")).loss
    assert found.item() == pytest.approx(0.01 * chunk[1].float().mean().item(), rel=1e-4)


def test_each_network_learns_from_its_own_loss(make_world_model, chunk):
    loss = on_policy(make_world_model(spread=0.3))
    with torch.no_grad():
        loss.real.tokens_out.bias.add_(0.1)
    found = loss(*chunk, generator=stream(0, "loss"))
    assert found.logs["wm/matching_loss"] > 0
    found.loss.backward()
    largest = {
        name: max((p.grad.abs().max().item() for p in network.parameters() if p.grad is not None), default=0.0)
        for name, network in (("student", loss.forward.student), ("real", loss.real), ("fake", loss.fake))
    }
    assert largest["student"] > 0 < largest["fake"]
    assert largest["real"] == 0
    first = [p.grad.clone() for p in loss.fake.parameters() if p.grad is not None]
    loss.fake.zero_grad()
    with torch.no_grad():
        loss.real.tokens_out.bias.add_(1)  # another pull on the student
    again = loss(*chunk, generator=stream(0, "loss"))
    assert again.logs["wm/matching_loss"] != found.logs["wm/matching_loss"]
    again.loss.backward()
    assert all(map(torch.equal, first, [p.grad for p in loss.fake.parameters() if p.grad is not None]))


# --- training ------------------------------------------------------------------------------------------------------


def test_both_stages_leave_a_flow_map_that_samples(make_world_model, push_episodes, chunk):
    model = make_world_model()
    config = replace(CONFIG, flow_map_sampling_steps=4)
    fit_flow_map(model, push_episodes, config, instructions=NOTHING, seed=0, folder=None, log=None)
    assert model.config.dynamics.flow_map
    assert model.dynamics.config.sampling_steps == 4
    assert model.dynamics.target_in[-1].weight.abs().max() > 0
    assert sampled(model, chunk, 1).isfinite().all()


@pytest.mark.parametrize(("stop", "ema_decay"), [(3, 0.0), (7, 0.5)], ids=["forward", "on policy"])
def test_a_training_interrupted_resumes_to_the_same_bits(make_world_model, push_episodes, resumed, stop, ema_decay):
    config = replace(CONFIG, ema_decay=ema_decay)

    def train(folder):
        model = make_world_model()
        fit_flow_map(model, push_episodes, config, instructions=NOTHING, seed=3, folder=folder, log=None)
        return model

    assert resumed(train, flow_map, "map_target", stop=stop)[1] == 8


def test_the_average_leaves_the_fake_network_out(make_world_model, push_episodes, monkeypatch):
    averaged = []

    class NotedEma(Ema):
        def __init__(self, source, decay):
            averaged.append(list(source))
            super().__init__(source, decay)

    monkeypatch.setattr(training, "Ema", NotedEma)
    config = replace(CONFIG, ema_decay=0.5)
    fit_flow_map(make_world_model(), push_episodes, config, instructions=NOTHING, seed=0, folder=None, log=None)
    assert averaged == [["dynamics", "success", "gripper"]] * 2


# --- refusals ------------------------------------------------------------------------------------------------------


def test_what_has_no_flow_map_is_refused_with_the_reason(make_world_model, push_episodes, capsys):
    model = make_world_model(kind="edm_unet")
    with pytest.raises(SettingError, match=r"needs dynamics\.kind=flow_transformer; edm_unet denoises frame after"):
        fit_flow_map(model, push_episodes, CONFIG, instructions=NOTHING, seed=0, folder=None, log=None)
    with pytest.raises(SettingError, match=r"dynamics\.flow_map is the flow transformer's"):
        DynamicsConfig(kind="edm_unet", flow_map=True)
    with pytest.raises(SettingError, match=r"give training\.flow_map_steps too"):
        WorldModelTraining(on_policy_steps=1)
    with pytest.raises(SettingError, match="flow_map_sampling_steps"):
        WorldModelTraining(flow_map_sampling_steps=0)
    assert main(["train-world-model", "backbone=wan", "training.flow_map_steps=5"]) == 2
    assert "backbone=video" in capsys.readouterr().err


def test_alignment_leaves_no_map_behind(make_world_model):
    model, starts = make_world_model(flow_map=True), SimpleNamespace(__len__=lambda self: 1)
    with pytest.raises(SettingError, match=r"before training\.flow_map_steps"):
        AlignmentTask(model, starts, None, None, 0.1, None, 0)
