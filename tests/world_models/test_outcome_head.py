"""The outcome head remembers, and learns on whole episodes that the model imagined."""

import numpy as np
import pytest
import torch

from worldrl.core.rng import stream
from worldrl.world_models import outcome_training
from worldrl.world_models.outcome_head import OutcomeHead, outcome_loss
from worldrl.world_models.outcome_training import fit_outcome, imagine_episodes
from worldrl.world_models.training import Sentences, WorldModelTraining

SENTENCES = Sentences(
    same={"PickRedCube": ("pick up the red cube",), "PickGreenCylinder": ("take the green can",)},
    other={"PickRedCube": ("take the green can",), "PickGreenCylinder": ()},
)
CONFIG = WorldModelTraining(dtype="float32", outcome_steps=6, outcome_batch=3, warmup=2, checkpoint_every=2)


def test_chunk_by_chunk_is_all_at_once():
    head, findings = OutcomeHead(6, 8), torch.randn(3, 12, 6, generator=stream(0, "findings"))
    whole, last = head(findings, head.blank(3))
    belief, parts = head.blank(3), []
    for chunk in findings.split(4, dim=1):
        logit, belief = head(chunk, belief)
        parts.append(logit)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    torch.testing.assert_close(belief, last)


def test_it_remembers_what_only_the_first_frames_told():
    head, draw = OutcomeHead(4, 16), stream(0, "outcome")
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)

    def batch(rows):
        findings = torch.randn(rows, 8, 4, generator=draw)
        held = torch.randint(2, (rows,), generator=draw).bool()
        findings[:, :, 0] = 0.0
        findings[:, 1, 0] = 4.0 * held - 2  # seen once; succeeds from frame 5 on
        return findings, held[:, None] & (torch.arange(8) >= 5), torch.ones(rows, 8, dtype=torch.bool)

    for _ in range(300):
        findings, success, valid = batch(64)
        loss = outcome_loss(head(findings, head.blank(64))[0], success, valid)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    findings, success, _ = batch(400)
    with torch.no_grad():
        probability = torch.sigmoid(head(findings, head.blank(400))[0])
    assert ((probability > 0.5) == success).float().mean().item() > 0.98


def test_the_loss_counts_valid_frames():
    logit = torch.tensor([[0.0, 3.0], [-1.0, 50.0]])
    success, valid = torch.tensor([[True, True], [False, False]]), torch.tensor([[True, True], [True, False]])
    expected = (np.log(2) + np.log1p(np.exp(-3)) + np.log1p(np.exp(-1))) / 3
    assert outcome_loss(logit, success, valid).item() == pytest.approx(expected, rel=1e-6)
    assert outcome_loss(logit, success, torch.zeros_like(valid)).item() == 0


def test_episodes_are_imagined_whole_and_told_both_ways(world_model, push_episodes):
    told = imagine_episodes(world_model, push_episodes, CONFIG, SENTENCES, seed=0, batch=3)
    red = [e for e in push_episodes if e.task == "PickRedCube"]
    assert len(told) == len(push_episodes) + len(red)  # of the other task nothing untrue is known
    stride = world_model.frame_stride
    lengths = sorted(len(e) // stride for e in (*push_episodes, *red))
    assert sorted(told.valid.sum(dim=1).tolist()) == lengths
    frames = [sum(bool(e.reward[k - 1] > 0) for k in range(stride, len(e) + 1, stride)) for e in push_episodes]
    assert int((told.success & told.valid).sum()) == sum(frames) > 0  # a lie is never fulfilled
    again = imagine_episodes(world_model, push_episodes, CONFIG, SENTENCES, seed=0, batch=3)
    assert torch.equal(again.findings, told.findings)
    other = imagine_episodes(world_model, push_episodes, CONFIG, SENTENCES, seed=1, batch=3)
    assert not torch.equal(other.findings, told.findings)


def test_the_head_learns_on_what_imagination_reads(world_model, push_episodes):
    """One episode's findings, read from its beginning, give the probabilities of ``imagine`` under the same noise."""
    from worldrl.rollout.reset_store import record_at

    episode = push_episodes[0]
    told = imagine_episodes(world_model, [episode], CONFIG, Sentences({}, {}), seed=0)
    logit, _ = world_model.outcome(told.findings.float(), world_model.outcome.blank(1))
    record = record_at(
        episode, 0, memory_frames=world_model.memory_frames, frame_stride=world_model.frame_stride, source=""
    )
    length, frames = world_model.chunk_length, world_model.config.dynamics.chunk_frames
    state, generator = world_model.start([record]), stream(0, "imagine-episodes", 0)
    torch.rand(1, 2, generator=generator), torch.rand(1, 2, generator=generator)  # the two tellings
    for chunk in range(len(episode) // length):
        action = torch.from_numpy(episode.action[None, chunk * length : (chunk + 1) * length])
        state, imagined = world_model.imagine(state, action, generators=[generator])
        here = torch.sigmoid(logit[:, chunk * frames : (chunk + 1) * frames])
        torch.testing.assert_close(imagined.success_prob, here, atol=5e-3, rtol=0)


class StopError(Exception):
    """Raised in the middle of a training."""


@pytest.mark.parametrize("stop", [0, 3])
def test_a_training_cut_short_goes_on_to_the_same_bits_and_moves_nothing_else(
    make_world_model, push_episodes, monkeypatch, tmp_path, same_tree, stop
):
    true_loss, calls = outcome_training.outcome_loss, []

    def run(folder, at=None):
        def loss(*args):
            calls.append(len(calls))
            if at is not None and len(calls) == at + 1:
                raise StopError
            return true_loss(*args)

        calls.clear()
        monkeypatch.setattr(outcome_training, "outcome_loss", loss)
        model = make_world_model()
        fit_outcome(model, push_episodes, CONFIG, sentences=SENTENCES, seed=3, folder=folder, log=None)
        return dict(model.state_dict())

    before = dict(make_world_model().state_dict())
    whole = run(tmp_path / "whole")
    with pytest.raises(StopError):
        run(tmp_path / "cut", at=stop)
    same_tree(run(tmp_path / "cut"), whole)
    moved = {name.split(".")[0] for name, value in whole.items() if not torch.equal(value, before[name])}
    assert moved == {"outcome"}
