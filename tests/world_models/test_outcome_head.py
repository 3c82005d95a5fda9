"""The outcome head remembers, and learns on whole episodes that the model imagined."""

import numpy as np
import pytest
import torch

from worldrl.core.rng import stream
from worldrl.world_models.video import episode_rollouts, outcome_training
from worldrl.world_models.video.heads import (
    OutcomeEnsemble,
    OutcomeHead,
    ensemble_success,
    named_as_ensemble,
    outcome_loss,
)
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.outcome_training import fit_outcome, imagine_episodes
from worldrl.world_models.video.training_config import WorldModelTraining

SENTENCES = TaskInstructions(
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


def test_an_ensemble_reads_the_same_and_remembers_apart():
    jury, findings = OutcomeEnsemble(6, 8, ensemble_size=3), torch.randn(2, 12, 6, generator=stream(0, "findings"))
    votes, belief = jury(findings, jury.blank(2))
    assert votes.shape == (3, 2, 12)
    assert belief.shape == (2, 24)
    for number, member in enumerate(jury.members):
        alone, last = member(findings, member.blank(2))
        torch.testing.assert_close(votes[number], alone)
        torch.testing.assert_close(belief[:, 8 * number : 8 * (number + 1)], last)
    assert not torch.equal(votes[0], votes[1])


def test_a_verdict_is_the_mean_of_probabilities_and_uncertainty_their_spread():
    votes = torch.logit(torch.tensor([[[0.2, 0.5]], [[0.8, 0.5]]], dtype=torch.float64))
    probability, uncertainty = ensemble_success(votes)
    torch.testing.assert_close(probability, torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    torch.testing.assert_close(uncertainty, torch.tensor([[0.3, 0.0]], dtype=torch.float64))


def test_weights_of_a_single_head_are_an_ensemble_of_one():
    single, jury = OutcomeHead(6, 8), OutcomeEnsemble(6, 8, ensemble_size=1)
    found = named_as_ensemble({f"outcome.{name}": value for name, value in single.state_dict().items()})
    jury.load_state_dict({name.removeprefix("outcome."): value for name, value in found.items()})
    assert named_as_ensemble(found).keys() == found.keys()
    findings = torch.randn(2, 4, 6, generator=stream(0, "findings"))
    assert torch.equal(jury(findings, jury.blank(2))[0][0], single(findings, single.blank(2))[0])


def test_it_remembers_what_only_the_first_frames_show():
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


def test_episodes_are_imagined_to_their_ends_and_reported_both_ways(world_model, push_episodes):
    told = imagine_episodes(world_model, push_episodes, CONFIG, SENTENCES, seed=0, batch=3)
    red = [e for e in push_episodes if e.task == "PickRedCube"]
    rows = [*push_episodes, *red]  # of the other task nothing untrue is known
    assert len(told) == 2 * len(rows)
    stride, valid = world_model.frame_stride, told.valid.sum(dim=1).tolist()
    for length in (len(e) // stride for e in rows):
        valid.remove(length)  # each from its beginning
    assert max(valid) < max(len(e) // stride for e in rows)  # and each from its middle
    assert min(valid) >= world_model.chunk_length // stride
    again = imagine_episodes(world_model, push_episodes, CONFIG, SENTENCES, seed=0, batch=3)
    assert torch.equal(again.findings, told.findings)
    other = imagine_episodes(world_model, push_episodes, CONFIG, SENTENCES, seed=1, batch=3)
    assert not torch.equal(other.findings, told.findings)


@pytest.mark.parametrize("start", [0, 5])
def test_success_is_what_came_and_a_lie_is_never_fulfilled(world_model, push_episodes, monkeypatch, start):
    monkeypatch.setattr(
        episode_rollouts, "_middle", lambda length, chunk, generator: np.full(len(length), start, dtype=np.int64)
    )
    told = imagine_episodes(world_model, push_episodes, CONFIG, SENTENCES, seed=0)
    stride = world_model.frame_stride
    real = sum(
        bool(e.reward[k - 1] > 0)
        for first in (0, start)
        for e in push_episodes
        for k in range(first + stride, len(e) + 1, stride)
    )
    assert int((told.success & told.valid).sum()) == real > 0


@pytest.mark.parametrize("step", [0, 6])
def test_the_head_learns_on_what_imagination_reads(make_world_model, kind, push_episodes, monkeypatch, step):
    """Findings, read from where an episode was entered, give the probabilities of ``imagine`` under the same noise."""
    from worldrl.rollout.imagined.reset_store import record_at

    world_model = make_world_model(kind=kind)

    monkeypatch.setattr(episode_rollouts, "_middle", lambda *_: np.array([step]))
    episode = push_episodes[0]
    told = imagine_episodes(world_model, [episode], CONFIG, TaskInstructions({}, {}), seed=0)
    length, frames = world_model.chunk_length, world_model.config.dynamics.chunk_frames
    generator = stream(0, "imagine-episodes", 0)
    for row, first in enumerate((0, step)):
        (logit,), _ = world_model.outcome(told.findings[row, None].float(), world_model.outcome.blank(1))
        record = record_at(
            episode, first, memory_frames=world_model.memory_frames, frame_stride=world_model.frame_stride, source=""
        )
        state = world_model.start([record])
        torch.rand(1, 2, generator=generator), torch.rand(1, 2, generator=generator)  # the two tellings
        for chunk in range((len(episode) - first) // length):
            span = slice(first + chunk * length, first + (chunk + 1) * length)
            state, imagined = world_model.imagine(
                state, torch.from_numpy(episode.action[None, span]), generators=[generator]
            )
            here = torch.sigmoid(logit[:, chunk * frames : (chunk + 1) * frames])
            torch.testing.assert_close(imagined.success_prob, here, atol=5e-3, rtol=0)


@pytest.mark.parametrize("stop", [0, 3])
def test_a_training_interrupted_resumes_to_the_same_bits_and_moves_nothing_else(
    make_world_model, push_episodes, resumed, stop
):
    def train(folder):
        model = make_world_model()
        fit_outcome(model, push_episodes, CONFIG, instructions=SENTENCES, seed=3, folder=folder, log=None)
        return model

    before = make_world_model().state_dict()
    whole, _ = resumed(train, outcome_training, "outcome_loss", stop=stop)
    moved = {name.split(".")[0] for name, value in whole.items() if not torch.equal(value, before[name])}
    assert moved == {"outcome"}
