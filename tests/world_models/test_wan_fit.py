"""Training of the Wan world model through Accelerate: what moves, resume, accumulation, overfitting, many processes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.core.errors import NonFiniteError, SettingError
from worldrl.core.rng import stream
from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics
from worldrl.evaluation.world_model.rollout_error import padded_actions, replay
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.world_models.video import outcome_training
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.outcome_training import fit_outcome, imagine_episodes
from worldrl.world_models.video.training import WindowLoss, latent_rollouts
from worldrl.world_models.wan import fit as wan_fit
from worldrl.world_models.wan.adapter import is_published, is_trained
from worldrl.world_models.wan.fit import (
    ClipDraws,
    TrainedParts,
    clip_sampler,
    finished_weights,
    fit_wan,
    parameter_groups,
    whole,
)
from worldrl.world_models.wan.training import WanTraining

pytest.importorskip("diffusers")
pytest.importorskip("peft")
pytest.importorskip("accelerate")

CPU = torch.device("cpu")
SENTENCES = TaskInstructions(same={"PickRedCube": ("pick up the red cube", "lift the red block")}, other={})
SMALL = {"steps": 4, "batch": 2, "warmup": 1, "checkpoint_every": 2, "dtype": "float32", "new_learning_rate": 1e-3}
SCRIPT = Path(__file__).parent / "wan_script.py"


class StopError(Exception):
    """Raised in the middle of a training."""


@pytest.fixture
def fit(make_wan, push_episodes):
    def run(folder=None, *, model=None, log=None, adapter="lora", **over):
        model = make_wan(adapter=adapter) if model is None else model
        config = WanTraining(**(SMALL | over))
        report = fit_wan(
            model, push_episodes, config, instructions=SENTENCES, seed=3, device=CPU, folder=folder, log=log
        )
        return model, report

    return run


def keep(batch, generator, **_):
    """A loss that returns what it is given."""
    return batch, generator


def window_loss(model, episodes, config, *, part=keep, process=0, processes=1):
    """The loss of a process's clips, as ``fit_wan`` makes it."""
    sampler = clip_sampler(model, episodes, config, process=process, processes=processes)
    return WindowLoss(
        model,
        sampler,
        config,
        SENTENCES,
        3,
        latent_rollouts(model, sampler, config),
        part,
        names=ClipDraws(config.accumulate, process),
    )


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_only_what_is_trained_moves(make_wan, fit, adapter):
    model = make_wan(adapter=adapter)
    before = state(model)
    fit(model=model)
    after, config = state(model), model.config.dynamics
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    trained = {name for name in before if is_trained(name, config)}
    assert moved <= trained
    assert len(moved) > 0.9 * len(trained)
    kept = set(before) - trained
    assert all(name.startswith("codec.") for name in kept) == (adapter == "full")
    assert not model.training
    assert not model.dynamics.transformer.gradient_checkpointing


@pytest.mark.parametrize(
    ("over", "stop"),
    [({}, 0), ({}, 3), ({"adapter": "full"}, 2), ({"bootstrap": 1.0, "bootstrap_rows": 3, "accumulate": 2}, 6)],
)
def test_interrupted_resumes_to_the_same_bits(fit, monkeypatch, tmp_path, same_tree, over, stop):
    true_forward = TrainedParts.forward

    def run(folder, at=None):
        calls = []

        def forward(self, batch, generator, **told):
            calls.append(batch)
            if at is not None and len(calls) == at + 1:
                raise StopError
            return true_forward(self, batch, generator, **told)

        monkeypatch.setattr(TrainedParts, "forward", forward)
        model, report = fit(folder, **over)
        return state(model), report, len(calls)

    whole, _, _ = run(tmp_path / "whole")
    with pytest.raises(StopError):
        run(tmp_path / "cut", at=stop)
    again, report, _ = run(tmp_path / "cut")
    assert report.resumed_from == stop // over.get("accumulate", 1) // 2 * 2
    same_tree(again, whole)
    finished, report, calls = run(tmp_path / "cut")
    assert (report.resumed_from, calls) == (4, 0)
    same_tree(finished, whole)
    weights = finished_weights(tmp_path / "cut")
    same_tree({name: value for name, value in whole.items() if name in weights}, {n: weights[n] for n in whole if n in weights})  # fmt: skip
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".pt", ".bin", ".distcp", ".pkl")]


def test_accumulated_passes_are_one_larger_step(make_wan, push_episodes, fit):
    """AdamW's first step, by hand, from the mean gradient of both passes."""
    config = WanTraining(**(SMALL | {"steps": 1, "warmup": 0, "accumulate": 2, "weight_decay": 0.0}))
    model = make_wan()
    start = state(model)
    loss = window_loss(model, push_episodes, config, part=TrainedParts(model).train())
    for number in range(2):
        (loss(number)[0] / 2).backward()
    parameters = {name: p for name, p in model.named_parameters() if p.grad is not None}
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), config.clip_norm)
    rate = config.new_learning_rate
    expected = {name: start[name] - rate * p.grad / (p.grad.abs() + 1e-8) for name, p in parameters.items()}
    trained, report = fit(steps=1, warmup=0, accumulate=2, weight_decay=0.0)
    assert report.logs["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert report.logs["lr"] == pytest.approx(rate)
    for name, value in trained.named_parameters():
        if name in expected and parameters[name].grad.abs().min() > 1e-6:
            torch.testing.assert_close(value.detach(), expected[name], atol=1e-6, rtol=1e-5)


def test_published_weights_learn_at_their_own_rate(make_wan):
    config = WanTraining(learning_rate=1e-5, new_learning_rate=1e-3)
    sizes = {}
    for adapter in ("lora", "full"):
        groups = parameter_groups(TrainedParts(make_wan(adapter=adapter)), config)
        sizes[adapter] = {group["lr"]: sum(p.numel() for p in group["params"]) for group in groups}
    assert sizes["lora"].keys() == {1e-3}
    assert sizes["full"].keys() == {1e-5, 1e-3}
    assert is_published("dynamics.transformer.blocks.0.ffn.net.2.weight")
    assert not is_published("dynamics.transformer.condition_embedder.action_position")
    assert not is_published("success.head.frame")


def test_one_clip_is_learned_by_heart(make_wan, push_episodes):
    """The same clip with the same noise, a few hundred steps: the velocity comes out, so every path is connected."""
    model = make_wan(adapter="full", spread=0.0, bell_weight=False, memory_noise=0.0)
    batch, _ = window_loss(model, push_episodes, WanTraining(**(SMALL | {"batch": 1})))(0)
    part = TrainedParts(model).train()
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-2)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss, logs = part(batch, stream(0, "same noise"), depth=0, hidden=None, own=False)
        loss.backward()
        optimizer.step()
        losses.append(float(logs["wm/flow_loss"]))
    assert losses[-1] < 0.05 * losses[0]


def test_clips_carry_the_actions_that_led_to_their_frames(wan_model, push_episodes):
    config = WanTraining(**(SMALL | {"batch": 40, "first_chunk_share": 0.3, "static_share": 0.3, "event_share": 0.2}))
    clip, _ = window_loss(wan_model, push_episodes, config)(0)
    batch, action = clip, wan_model.window_condition(clip, slice(0, 4), None)
    assert clip.reference.shape == (40, 4, 4, 4)
    assert clip.memory.shape == clip.frames.shape == (40, 1, 4, 4, 4)
    null = torch.tensor([0, 0, 0, 0, 0, 0, -1.0])
    assert (action[:, 0] == null).all()
    for row in range(40):
        episode, start = push_episodes[int(batch.episode[row])], int(batch.start[row])
        known = episode.action[max(start - 4, 0) : start]
        past = action[row, 1:5]
        if batch.static[row]:
            assert (past[:, :6] == 0).all()
            assert (action[row, 1:, 6] == episode.command[start, 6]).all()
        else:
            assert (past[: 4 - len(known)] == null).all()
            assert np.array_equal(past[4 - len(known) :].numpy(), known)
    assert torch.equal(action[:, 5:], batch.action)
    config.accumulate = 2
    again = window_loss(wan_model, push_episodes, config)
    for number, same in ((0, True), (2, False), (1, False)):
        other, draws = again(number)
        assert torch.equal(other.frames, clip.frames) == same
        assert (draws.get_state().equal(again(0)[1].get_state())) == same


def test_static_clips_have_still_latents(wan_model, push_episodes):
    config = WanTraining(**(SMALL | {"static_share": 1.0, "event_share": 0.0, "first_chunk_share": 0.0}))
    batch = clip_sampler(wan_model, push_episodes, config).sample(4, torch.Generator().manual_seed(0))
    assert batch.static.all()
    assert torch.equal(batch.frames, batch.memory[:, -1:].expand_as(batch.frames))


def test_processes_share_the_episodes(wan_model, push_episodes):
    config = WanTraining(**SMALL)
    parts = [window_loss(wan_model, push_episodes, config, process=process, processes=3) for process in range(3)]
    assert sum(len(part.sampler.store.length) for part in parts) == len(push_episodes)
    assert not torch.equal(parts[0](0)[1].get_state(), parts[1](0)[1].get_state())
    with pytest.raises(SettingError, match="do not give one to each of 99 processes"):
        clip_sampler(wan_model, push_episodes, config, process=0, processes=99)


def test_bootstrapped_clips_begin_with_what_the_model_imagined(wan_model, push_episodes):
    """The context of a pass is what imagination would see there, and the recorded chunk after it the target."""
    config = WanTraining(**(SMALL | {"batch": 1, "bootstrap": 1.0, "bootstrap_rows": 1}))
    own = []
    source = window_loss(
        wan_model, push_episodes[:1], config, part=lambda batch, _, **told: own.append(told["own"]) or (batch, {})
    )
    rollouts, store = source.rollouts, source.sampler.store
    source(0)
    start, memory = int(rollouts.step[0]), rollouts.memory.clone()
    assert int(rollouts.begun[0]) == 1
    second, _ = source(1)
    assert own == [True, True]
    reference = torch.from_numpy(store.frames[:1])
    recorded = torch.from_numpy(store.frames[[start - 3, start - 2, start - 1, start]])[None]
    rows = np.minimum(np.arange(start + 1, start + 5), store.length[0])
    future = torch.from_numpy(store.frames[rows])[None]
    imagined, true = (
        wan_model.codec.encode(torch.cat([reference[:, None], seen, future], dim=1)) for seen in (memory, recorded)
    )
    assert torch.equal(torch.cat([second.reference[:, None], second.memory, second.frames], dim=1), imagined)
    assert not torch.allclose(imagined[:, 1], true[:, 1], atol=1e-3)
    assert torch.equal(second.memory_action[0], torch.from_numpy(store.action[start - 4 : start]))


def test_rollouts_walk_as_imagination_does(wan_model, push_episode):
    """Three chunks on its own images are those of a closed-loop replay under the same noise."""
    episode = push_episode(0, 12)
    config = WanTraining(**(SMALL | {"bootstrap": 1.0, "bootstrap_rows": 1, "event_share": 0}))
    source = window_loss(wan_model, [episode], config)
    rollouts, seen = source.rollouts, []
    rollouts.begun[:] = True
    rollouts.memory[:] = torch.from_numpy(source.sampler.store.frames[0])
    for chunk in range(3):
        context = rollouts.draw(1, stream(0, "draw", chunk))
        rollouts.advance(wan_model, context, stream(0, "replay", 0, chunk))
        seen.append(rollouts.memory[0, -1].numpy().copy())
    result = replay(wan_model, [episode], padded_actions(episode, 12)[None], seed=0)
    assert np.array_equal(np.stack(seen), result.imagined[0, 3::4])


def test_rollouts_are_kept_by_one_process(wan_model, push_episodes):
    config = WanTraining(**(SMALL | {"bootstrap": 0.5, "bootstrap_rows": 2}))
    with pytest.raises(SettingError, match="rollouts are kept by one process, 2 were launched"):
        clip_sampler(wan_model, push_episodes, config, process=0, processes=2)


def test_rollouts_are_not_kept_of_a_sharded_model(fit, monkeypatch):
    """One process under FSDP shards as well: what counts is the sharding, not how many processes there are."""
    monkeypatch.setattr(wan_fit, "is_sharded", lambda _: True)
    monkeypatch.setattr(wan_fit, "fit", None)
    with pytest.raises(SettingError, match=r"bootstrap_rows=2: .* this launch shards it"):
        fit(bootstrap=0.5, bootstrap_rows=2)


def test_without_the_anchor_clips_begin_with_the_oldest_memory(make_wan, push_episodes):
    model, other = make_wan(reference=False), make_wan()
    config = WanTraining(**(SMALL | {"batch": 6}))
    clips = [window_loss(m, push_episodes, config)(0) for m in (model, other)]
    source = clip_sampler(model, push_episodes, config)
    batch = source.sample(6, stream(3, "wan", 0, 0, 0))
    given = torch.cat([batch.memory[:, :1], batch.memory, batch.frames], dim=1)
    latents = [torch.cat([clip.reference[:, None], clip.memory, clip.frames], dim=1) for clip, _ in clips]
    assert torch.equal(latents[0], model.codec.encode(given))
    assert not torch.equal(latents[0], latents[1])
    assert torch.equal(clips[0][1].get_state(), clips[1][1].get_state())


def test_the_ensemble_learns_on_what_imagination_reads(make_wan, push_episode):
    """Findings of a followed episode give the probabilities of ``imagine`` under the same noise."""
    model, episode = make_wan(ensemble_size=1), push_episode(0, 12)
    told = imagine_episodes(model, [episode], WanTraining(**SMALL), TaskInstructions({}, {}), seed=0)
    generator = stream(0, "imagine-episodes", 0)
    (logit,), _ = model.outcome(told.findings[:1].float(), model.outcome.blank(1))
    state = model.start([record_at(episode, 0, memory_frames=4, frame_stride=1, source="")])
    torch.rand(1, generator=generator, dtype=torch.float64)  # where the rollout from the middle begins
    torch.rand(1, 2, generator=generator), torch.rand(1, 2, generator=generator)  # the two tellings
    for chunk in range(3):
        span = slice(4 * chunk, 4 * (chunk + 1))
        state, imagined = model.imagine(state, torch.from_numpy(episode.action[None, span]), generators=[generator])
        torch.testing.assert_close(imagined.success_prob, torch.sigmoid(logit[:, span]), atol=5e-3, rtol=0)


def test_an_ensemble_interrupted_resumes_to_the_same_bits_and_moves_nothing_else(
    make_wan, push_episodes, monkeypatch, tmp_path, same_tree
):
    config = WanTraining(**(SMALL | {"outcome_steps": 6, "outcome_batch": 3}))
    true_loss, calls = outcome_training.outcome_loss, []

    def run(folder, at=None):
        def loss(*args):
            calls.append(1)
            if len(calls) == at:
                raise StopError
            return true_loss(*args)

        calls.clear()
        monkeypatch.setattr(outcome_training, "outcome_loss", loss)
        model = make_wan(ensemble_size=1)
        fit_outcome(model, push_episodes[:3], config, instructions=SENTENCES, seed=3, folder=folder, log=None, rows=2)
        return state(model)

    whole_run, before = run(tmp_path / "whole"), state(make_wan(ensemble_size=1))
    with pytest.raises(StopError):
        run(tmp_path / "cut", at=4)
    monkeypatch.setattr(outcome_training, "imagine_episodes", None)  # cut short or finished, it imagines nothing again
    for folder in ("cut", "whole"):
        same_tree(run(tmp_path / folder), whole_run)
    monkeypatch.undo()
    moved = {name.split(".")[0] for name, value in whole_run.items() if not torch.equal(value, before[name])}
    assert moved == {"outcome"}
    with pytest.raises(SettingError, match="has no outcome head to train"):
        fit_outcome(make_wan(), push_episodes, config, instructions=SENTENCES, seed=3, folder=None, log=None)


def test_a_sharded_model_comes_back_whole_with_its_ensemble(make_wan, fit, monkeypatch, tmp_path, same_tree):
    model, _ = fit(tmp_path / "wan", model=make_wan(ensemble_size=1))
    assert whole(model, tmp_path / "wan") is model
    monkeypatch.setattr(wan_fit, "is_sharded", lambda _: True)
    again = whole(model, tmp_path / "wan")
    assert again is not model
    assert (
        again.outcome is model.outcome
    )  # outcome heads are in no process's shards: those that are trained later are these
    same_tree(state(again), state(model))


def test_what_is_logged(fit, tmp_path):
    with MetricLog(tmp_path, tracker=TrackerName.none) as log:
        fit(tmp_path / "wan", log=log)
    (line,) = read_metrics(tmp_path)
    assert (line["series"], line["step"]) == ("wan", 3)
    assert line["values"].keys() == {"loss", "wm/flow_loss", "wm/success_loss", "grad_norm", "lr"}


def test_damaged_gradients_stop_it_before_the_weights(make_wan, fit, monkeypatch):
    model = make_wan()
    before = state(model)
    monkeypatch.setattr(TrainedParts, "forward", lambda self, *_, **__: (sum(p.sum() for p in self.parameters() if p.requires_grad) * torch.nan, {}))  # fmt: skip
    with pytest.raises(NonFiniteError, match="loss is nan at step 0"):
        fit(model=model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_number_types_must_fit(make_wan, fit):
    with pytest.raises(SettingError, match="dtype must be bfloat16 beside"):
        fit(model=make_wan(base_dtype="bfloat16"))
    for over in (
        {"batch": 0}, {"accumulate": 0}, {"negative_share": 2.0}, {"bootstrap": 2.0}, {"bootstrap_rows": -1},
        {"bootstrap": 0.9}, {"bootstrap_rows": 64},
        {"outcome_dropout": 1.0}, {"outcome_episodes": 0},
    ):  # fmt: skip
        with pytest.raises(SettingError, match=next(iter(over))):
            WanTraining(**over)


def test_bfloat16_training_keeps_float32_weights(run_python, wan_base, tmp_path):
    """In a process of its own: Accelerate keeps one number type per process."""
    done = run_python(SCRIPT, wan_base, tmp_path, "bfloat16", "bfloat16", "lora", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result-0.json").read_text())
    assert result["trained"] == ["torch.float32"]
    assert "torch.bfloat16" in result["kept"]


FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
}


@pytest.mark.parametrize(
    ("env", "dtype", "adapter"),
    [
        ({}, "float32", "lora"),
        pytest.param(FSDP, "float32", "lora", marks=pytest.mark.slow),
        pytest.param(FSDP, "bfloat16", "full", marks=pytest.mark.slow),
    ],
)
def test_two_processes_learn_one_model_and_anyone_resumes_it(
    make_wan, run_python, wan_base, tmp_path, same_tree, env, dtype, adapter
):
    def run(*launch):
        done = run_python(*launch, SCRIPT, wan_base, tmp_path, dtype, "float32", adapter, cwd=tmp_path, **env)
        assert done.returncode == 0, done.stderr
        return [json.loads(path.read_text()) for path in sorted(tmp_path.glob("result-*.json"))]

    two = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    results = run(*two)
    assert [result["sharded"] for result in results] == [bool(env)] * 2
    assert results[0]["loss"] == results[1]["loss"]
    weights = finished_weights(tmp_path / "wan")
    model = make_wan(spread=0.0, adapter=adapter, lora_alpha=32.0)
    start = state(model)
    model.load_trained(weights)
    assert sum(not torch.equal(start[name], value) for name, value in weights.items()) > 0.9 * len(weights)
    shutil.rmtree(tmp_path / "wan" / "step-00000004")
    assert [result["resumed_from"] for result in run(*two)] == [2, 2]
    same_tree(finished_weights(tmp_path / "wan"), weights)
    shutil.rmtree(tmp_path / "wan" / "step-00000004")
    assert run()[0]["resumed_from"] == 2
