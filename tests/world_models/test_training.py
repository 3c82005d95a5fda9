"""Training of the world model: resume, relabelling, and a world that is really learned."""

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.evaluation.world_model.rollout_error import action_swap_ratio
from worldrl.world_models.video import training
from worldrl.world_models.video.instructions import TaskInstructions, relabel
from worldrl.world_models.video.training import fit_codec, fit_dynamics, latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining

SENTENCES = TaskInstructions(
    same={"PickRedCube": ("pick up the red cube", "lift the red block"), "PickGreenCylinder": ("take the green can",)},
    other={"PickRedCube": ("take the green can", "grab the green tin"), "PickGreenCylinder": ()},
)
SMALL = {"steps": 6, "batch": 4, "warmup": 2, "checkpoint_every": 2, "dtype": "float32", "unroll": 2, "codec_batch": 4}


class StopError(Exception):
    """Raised in the middle of a training."""


@pytest.mark.parametrize(
    ("kind", "ema_decay", "stop"),
    [*(("flow_transformer", ema, stop) for ema in (0.0, 0.9) for stop in (0, 1, 3, 5)), ("edm_unet", 0.9, 3)],
)
def test_dynamics_cut_short_continue_to_the_same_bits(
    make_world_model, push_episodes, monkeypatch, tmp_path, same_tree, kind, ema_decay, stop
):
    config = WorldModelTraining(**SMALL, ema_decay=ema_decay)
    true_loss, calls = training.dynamics_loss, []

    def run(folder, at=None):
        def loss(*args, **kwargs):
            calls.append(len(calls))
            if at is not None and len(calls) == at + 1:
                raise StopError
            return true_loss(*args, **kwargs)

        calls.clear()
        monkeypatch.setattr(training, "dynamics_loss", loss)
        model = make_world_model(kind=kind)
        report = fit_dynamics(model, push_episodes, config, instructions=SENTENCES, seed=3, folder=folder, log=None)
        return dict(model.state_dict()), report

    whole, _ = run(tmp_path / "whole")
    with pytest.raises(StopError):
        run(tmp_path / "cut", at=stop)
    again, report = run(tmp_path / "cut")
    assert report.resumed_from == stop // 2 * 2
    same_tree(again, whole)
    finished, report = run(tmp_path / "cut")
    assert (report.resumed_from, calls) == (6, [])
    same_tree(finished, whole)
    without, _ = run(None)
    same_tree(without, whole)


def test_the_codec_stays_while_dynamics_learn_and_only_it_learns_before(make_world_model, push_episodes, same_tree):
    model = make_world_model()
    frames = torch.from_numpy(np.concatenate([episode.frames[:, 0] for episode in push_episodes]))
    config = WorldModelTraining(**SMALL, codec_steps=3)

    def parts():
        return [{k: v.clone() for k, v in part.state_dict().items()} for part in (model.codec, model.dynamics)]

    start = parts()
    fit_codec(model, frames, config, seed=0, folder=None, log=None)
    after_codec = parts()
    same_tree(start[1], after_codec[1])
    assert not all(torch.equal(start[0][name], after_codec[0][name]) for name in start[0])
    fit_dynamics(model, push_episodes, config, instructions=SENTENCES, seed=0, folder=None, log=None)
    same_tree(after_codec[0], parts()[0])
    assert not all(torch.equal(after_codec[1][name], parts()[1][name]) for name in start[1])
    assert not model.training


def test_pixels_need_no_codec_training(make_world_model, push_episodes):
    frames = torch.from_numpy(push_episodes[0].frames[:, 0])
    with pytest.raises(SettingError, match="codec_steps=0"):
        fit_codec(make_world_model(kind="edm_unet"), frames, WorldModelTraining(**SMALL, codec_steps=3), seed=0, folder=None, log=None)  # fmt: skip


def test_averaged_weights_are_the_ones_kept(make_world_model, push_episodes):
    results = []
    for decay in (0.0, 0.9, 0.9999):
        model = make_world_model()
        start = torch.cat([p.detach().flatten() for p in model.dynamics.parameters()])
        config = WorldModelTraining(**SMALL, ema_decay=decay, learning_rate=1e-2)
        fit_dynamics(model, push_episodes, config, instructions=SENTENCES, seed=0, folder=None, log=None)
        results.append((torch.cat([p.detach().flatten() for p in model.dynamics.parameters()]) - start).norm().item())
    assert results[0] > results[1] >= results[2]


# -- instructions ---------------------------------------------------------------------------------------------------


@pytest.fixture
def batch(world_model, push_episodes):
    config = WorldModelTraining(dtype="float32", unroll=2)
    return latent_sampler(world_model, push_episodes, config).sample(400, stream(0, "windows"))


def test_relabelled_windows_say_the_same_or_something_certainly_unfulfilled(batch):
    new = relabel(batch, SENTENCES, 0.3, stream(0, "relabel"))
    task, said = np.array(new.task), np.array(new.instruction)
    red = task == "PickRedCube"
    negative = np.isin(said, SENTENCES.other["PickRedCube"]) & red
    assert set(said[red]) == {*SENTENCES.same["PickRedCube"], *SENTENCES.other["PickRedCube"]}
    assert 0.2 < negative[red].mean() < 0.4
    assert set(said[~red]) == set(SENTENCES.same["PickGreenCylinder"])  # nothing certainly unfulfilled is known
    assert not new.success[torch.from_numpy(negative)].any()
    assert batch.success[torch.from_numpy(negative)].any()
    assert torch.equal(new.success[torch.from_numpy(~negative)], batch.success[torch.from_numpy(~negative)])
    assert new.frames is batch.frames


def test_without_negatives_or_instructions_nothing_is_unfulfilled(batch):
    new = relabel(batch, TaskInstructions({}, SENTENCES.other), 0.0, stream(0, "relabel"))
    assert new.instruction == batch.instruction
    assert torch.equal(new.success, batch.success)
    assert relabel(batch, SENTENCES, 0.3, stream(1, "r")).instruction == relabel(batch, SENTENCES, 0.3, stream(1, "r")).instruction  # fmt: skip


@pytest.mark.parametrize("over", [{"bootstrap": 1.5}, {"negative_share": -0.1}, {"unroll": 1}])
def test_impossible_settings_are_refused(over):
    with pytest.raises(SettingError, match=next(iter(over))):
        WorldModelTraining(**over)


# -- a world that is really learned ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pushed_square_is_learned_with_its_actions(make_world_model, push_episode):
    """64 pixels; the model must draw the square where the actions push it, not where another episode's would."""
    episodes = [push_episode(n, 16, size=64, close_at=8) for n in range(80)]
    sizes = {"width": 64, "depth": 2, "heads": 4}
    model = make_world_model(
        size=64, spread=0.0, codec={"width": 64, "depth": 1, "channels": 8, "heads": 4}, chunk_length=8,
        memory_frames=2, **sizes,
    )  # fmt: skip
    frames = torch.from_numpy(np.concatenate([episode.frames[:, 0] for episode in episodes]))
    config = WorldModelTraining(
        codec_steps=200, codec_batch=32, codec_learning_rate=2e-3, steps=300, batch=32, learning_rate=2e-3, warmup=20,
        ema_decay=0.0, unroll=2, bootstrap=0.3, dtype="float32",
    )  # fmt: skip
    held_out = [push_episode(n, 16, size=64, close_at=8) for n in range(1000, 1008)]
    assert action_swap_ratio(model, held_out, 16, seed=0) == pytest.approx(1, abs=0.01)
    fit_codec(model, frames, config, seed=0, folder=None, log=None)
    fit_dynamics(model, episodes, config, instructions=TaskInstructions({}, {}), seed=0, folder=None, log=None)
    assert action_swap_ratio(model, held_out, 16, seed=0) > 1.5
