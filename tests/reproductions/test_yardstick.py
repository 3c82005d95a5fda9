"""Units under test: ``worldrl.reproductions.yardstick`` and ``worldrl reproduce methods``."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from worldrl.cli import main as command_line
from worldrl.core.errors import ArtefactError
from worldrl.core.rng import stream
from worldrl.core.types import PolicyObs
from worldrl.methods.rl.advantages import group_std
from worldrl.methods.rl.interfaces import MATES, needs
from worldrl.reproductions import reproduce
from worldrl.reproductions.findings import compared
from worldrl.reproductions.reproduce import ReproduceSettings
from worldrl.reproductions.yardstick import gradients
from worldrl.reproductions.yardstick.gradients import OWN, REFERENCE, OneForward, compared_parts, make_method, slope
from worldrl.reproductions.yardstick.recorded import FRAMES, INFORMATIVE, Batch, sources
from worldrl.reproductions.yardstick.reproduction import conclude
from worldrl.reproductions.yardstick.settings import YardstickSettings
from worldrl.rollout.imagined.rollouts import ImaginedRollouts

SIZES = YardstickSettings(groups=16, group_size=8, batch_groups=4, starts=4)
CHUNKS = 2


def played(policy, number):
    """A batch in which a rollout succeeds where its first token is above the middle; the second start always fails."""
    draw, rows = stream(number, "played"), SIZES.batch_groups * SIZES.group_size
    group = torch.arange(SIZES.batch_groups).repeat_interleave(SIZES.group_size)
    pictures = torch.randint(256, (SIZES.batch_groups, 16, 16, 3), generator=stream(0, "look")).byte()
    image, command = pictures[group].expand(CHUNKS, rows, 16, 16, 3), torch.zeros(CHUNKS, rows, 7)
    seen = PolicyObs(image[0], command[0], ["pick"] * rows)
    with torch.no_grad():
        numbers = torch.randint(10**6, (CHUNKS, rows), generator=draw).tolist()
        chunks = [policy.act(seen, generators=[stream(n, "act") for n in each]) for each in numbers]
    token, logp = (torch.stack([getattr(one, name) for one in chunks]) for name in ("token", "logp"))
    success = (token[0, :, 0, 0] > 2) & (group != 1)
    valid = torch.ones(CHUNKS, rows, dtype=torch.bool)
    valid[1] = ~success
    probability = success.float().expand(CHUNKS, rows)[..., None].repeat(1, 1, 2)
    return Batch(
        ImaginedRollouts(image, command, ("pick",) * rows, token, logp, valid, success, group, ("PickRedCube",) * rows,
                         end=seen, probability=probability),
        torch.arange(SIZES.batch_groups),
    )  # fmt: skip


@pytest.fixture
def policy(tiny_policy):
    return tiny_policy()


@pytest.fixture
def batches(policy):
    return sources([played(policy, n) for n in range(SIZES.batches)], policy, SIZES, 0)


def test_dispersion_by_hand():
    same, apart = torch.tensor([[3.0, 4.0]] * 3), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    rows = torch.randn(6, 4, generator=stream(0, "rows"), dtype=torch.float64)
    expected = np.trace(np.cov(rows.numpy().T)) / rows.mean(dim=0).square().sum().item()
    for given, number in (
        (same, 0.0),
        (apart, 2.0),
        (rows, expected),
    ):  # orthogonal rows are noise: as many as there are
        mean = given.mean(dim=0)
        found = gradients.dispersion(given.square().sum(dim=1).tolist(), float(mean @ mean))
        assert found == pytest.approx(number)
    assert gradients.dispersion([1.0, 1.0], 0.0) is None


def test_cosine_by_hand():
    a = torch.tensor([3.0, 4.0])
    assert gradients.cosine(a, 2 * a) == pytest.approx(1)
    assert gradients.cosine(a, -a) == pytest.approx(-1)
    assert gradients.cosine(a, torch.tensor([1.0, 0.0])) == pytest.approx(0.6)
    assert gradients.cosine(a, 0 * a) == 0


@needs(MATES)
def flipped(value, trace):
    return -group_std(value, trace)


def test_a_flipped_sign_points_away(policy, batches, monkeypatch):
    part = ("advantage", "flipped")
    monkeypatch.setitem(
        gradients.REGISTRIES, "advantage", SimpleNamespace(get={"flipped": flipped, "own": group_std}.get)
    )
    found = gradients.measure(batches, policy, [("advantage", "own"), part])
    assert min(found["advantage.own"]["cosines"]) > 0
    assert max(found["advantage.flipped"]["cosines"]) < 0
    assert found["advantage.flipped"]["dispersion"] == pytest.approx(found["advantage.own"]["dispersion"])


def gradient(part, policy, source, way="by_row"):
    seen = OneForward(policy, source)
    found, logs = slope(part, source, policy, seen, 0)
    return getattr(seen, way)([found])[0], logs


def test_a_batch_is_no_part_of_its_own_reference(policy, batches):
    first, second = (gradient(REFERENCE, policy, one)[0] for one in batches[:2])
    found = gradients.measure(batches[:2], policy, [REFERENCE])["reference.reinforce"]["cosines"]
    assert found == pytest.approx([gradients.cosine(first, second)] * 2, rel=1e-4)


@pytest.mark.parametrize("way", ["by_row", "by_chunk"])
@pytest.mark.parametrize(
    "part", [REFERENCE, ("advantage", "novelty"), ("selection", "two_levels"), ("budget", "knapsack")]
)
def test_one_forward_gives_the_gradient_of_grpo_itself(policy, batches, part, way):
    found, _ = gradient(part, policy, batches[0], way)
    (loss,) = make_method(part, batches[0], policy).losses(0, {})
    expected = torch.autograd.grad(loss, list(policy.parameters()), materialize_grads=True)
    torch.testing.assert_close(found, torch.cat([one.flatten() for one in expected]), rtol=1e-4, atol=1e-6)
    assert found.norm() > 0


def test_the_reference_is_reinforce(policy, batches):
    """A = R - mean of the group, for every chunk alike."""
    rollouts, (found, logs) = batches[0].batch, gradient(REFERENCE, policy, batches[0])
    reward = rollouts.success.float().view(SIZES.batch_groups, SIZES.group_size)
    chunk, row = rollouts.valid.nonzero(as_tuple=True)
    advantage = (reward - reward.mean(dim=1, keepdim=True)).flatten()[row]
    logp = policy.likelihood(rollouts.observed(chunk, row), rollouts.token[chunk, row]).logp.mean(dim=(1, 2))
    expected = torch.autograd.grad(-(advantage * logp).mean(), list(policy.parameters()), materialize_grads=True)
    torch.testing.assert_close(found, torch.cat([one.flatten() for one in expected]), rtol=1e-4, atol=1e-6)
    assert logs[INFORMATIVE] == 0.75  # one start of four always fails


def test_a_budget_has_half_of_the_rollouts_and_knows_the_other_batches(policy, batches):
    whole, half = (gradient(part, policy, batches[0])[1][FRAMES] for part in (REFERENCE, ("budget", "uniform")))
    assert 0.4 * whole < half < 0.6 * whole
    sizes = make_method(("budget", "root_variance"), batches[0], policy).request(0).group.bincount()
    assert sizes[1] == sizes.min() < sizes.max()  # the start that always fails gets least
    known = batches[0].records
    assert known.wins[1] == 0
    assert (known.wins + known.losses)[0] == pytest.approx(8 * (1 + 0.9 + 0.81))


def test_the_same_groups_give_the_same_numbers_twice(policy, batches):
    parts = compared_parts()
    assert {kind for kind, _ in parts} == {"reference", "advantage", "selection", "budget", "loss"}
    assert not {"by_depth", "parent_best", "nft", "preference", "with_demonstrations", "decoupled"} & {
        n for _, n in parts
    }
    first, again = (gradients.measure(batches, policy, parts) for _ in range(2))
    assert first == again
    alike = (first[f"advantage.{name}"]["cosines"] for name in ("mean_only", "leave_one_out"))
    assert next(alike) == pytest.approx(next(alike), rel=1e-4)  # one is G / (G - 1) times the other


def test_recorded_groups_are_read_as_they_were_written(policy, tmp_path, same_tree):
    batch = played(policy, 0)
    batch.save(tmp_path / "batch.npz")
    read = Batch.load(tmp_path / "batch.npz")
    same_tree(vars(replace(read.rollouts, end=None)), vars(replace(batch.rollouts, end=None)))
    assert torch.equal(read.rollouts.end.image, batch.rollouts.end.image)
    (tmp_path / "batch.npz").write_bytes(b"half")
    with pytest.raises(ArtefactError, match="remove it and run again"):
        Batch.load(tmp_path / "batch.npz")


@pytest.fixture
def folders(tmp_path, policy, tiny_policy, make_world_model):
    """Folders of two start policies and a world model that imagines some successes."""
    world = make_world_model()
    world.config.outcome.threshold = 0.9
    for name, one in (("a", policy), ("b", tiny_policy(seed=1)), ("world", world)):
        one.save(tmp_path / name)
    return tmp_path


def test_a_resumed_run_gives_the_same_result(folders: Path):
    settings = ReproduceSettings(
        name="methods", run_dir=str(folders / "run"), scale="tiny", seeds=1, workers=0,
        policies=[str(folders / "a"), str(folders / "b")], change={"world_model": str(folders / "world")},
    )  # fmt: skip
    first = reproduce.main(settings)
    assert list(first["methods"]) == ["policy-1", "policy-2"]
    assert all(0 < stage["imagined_success"] < 1 for (stage,) in first["methods"].values())
    kept = folders / "run" / "shared" / "groups-policy-1-seed-0"
    times = {file: file.stat().st_mtime_ns for file in kept.glob("*.npz")}
    assert len(times) == 2
    (folders / "run" / "stages" / "seed-0-policy-1" / "stage.json").unlink()
    (kept / "made.json").unlink()  # as killed after the first batch
    (kept / "batch-1.npz").unlink()
    assert reproduce.main(settings) == first
    assert (kept / "batch-0.npz").stat().st_mtime_ns == times[kept / "batch-0.npz"]
    page = (folders / "run" / "report.html").read_text()
    verdicts = [claim["verdict"] for claim in first["claims"]]
    assert first["verdict"] == compared(verdicts)
    assert first["verdict"] in page
    assert set(verdicts) <= {"nearer", "farther", "undecided"}
    assert "policy-2: " in page
    assert "selection=extremes is nearer than informative" in page
    assert json.loads((folders / "run" / "result.json").read_text())["metrics"]["name"] == "methods"


def test_the_verdict_counts_decided_comparisons_in_each_direction():
    own = {f"{kind}.{name}": 0.0 for kind, name in OWN.items()}
    gains = {"loss.near": 0.2, "loss.far": -0.2, "loss.even": 0.0, **own}
    noise = np.array([-0.01, 0.0, 0.01])
    parts = {part: {"cosines": list(0.1 + shift + noise * (part == "loss.even"))} for part, shift in gains.items()}
    stage = {
        "parts": {part: {**held, "dispersion": 1.0, "informative": 1.0, "frames": 8} for part, held in parts.items()}
    }
    findings = conclude(YardstickSettings(), {"bundled": [{**stage, "imagined_success": 0.5}]})
    assert [claim.verdict for claim in findings.claims] == ["nearer", "farther", "undecided"]
    assert findings.verdict == (
        "2 of 3 comparisons are decided, 1 nearer and 1 farther; 0.2 are expected by chance at 5 %"
    )
    assert reproduce.sentence("methods", findings) == f"methods: {findings.verdict} (one seed, 95 % intervals)."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["methods", "change.groups=12"], "change.groups: must be 2 or more times change.batch_groups=8, got 12"),
        (["methods", "change.group_size=5"], "change.group_size: must be even and at least 4, got 5"),
        (["methods", "policies=[nowhere]"], "policies: nowhere holds no policy; give folders of worldrl train-policy"),
        (["neubay-bandit", "policies=[bundled]"], "policies: neubay-bandit starts from none; leave it out"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command_line(["reproduce", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
