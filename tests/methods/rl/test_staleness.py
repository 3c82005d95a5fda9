"""Asynchronous improvement with a fixed lag, in real processes: one that imagines, one that learns.

Units under test: ``methods.rl.staleness``, ``methods.rl.imagining``.
"""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import SettingError, WorkerError
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.log import read_metrics
from worldrl.core.types import PolicyObs
from worldrl.methods.rl import imagining, staleness
from worldrl.methods.rl.config import PACE
from worldrl.methods.rl.imagination import PolicyImagination, imagined_env
from worldrl.methods.rl.imagining import ImaginingProcess, pack, restored, serve, unpack, weights_file
from worldrl.methods.rl.improve import pace_of
from worldrl.methods.rl.interfaces import Evaluated, Request
from worldrl.methods.rl.staleness import MEND, SETTING, Ahead, Pace, mismatch
from worldrl.methods.rl.trust import FilterResult
from worldrl.policies.exploration import Exploration
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.workers.link.boot import load_file

SCRIPT = Path(__file__).parents[1] / "improve_script.py"
script = load_file("improve_script", SCRIPT)
LAG = 2
OWN = ("grpo/lag", "grpo/stale_ratio", "grpo/stale_kl")
"""What a run with a lag logs besides."""


def improved(folder, lag):
    """Weights, history and log of a run, the pace of which stays in its folder."""
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    learner, history = script.improved("grpo", folder, staleness=lag)
    lines = [(line["step"], line["values"]) for line in read_metrics(folder)]
    return SimpleNamespace(weights=learner.state_dict(), history=history, lines=lines, folder=folder)


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    """A run with a lag of two, its batches, and the weights at the beginning of each iteration."""
    versions, taken, (begin, take) = {}, [], (Ahead.__call__, ImaginingProcess.take)

    def begun(self, method, iteration, logs):
        versions[iteration] = {name: value.clone() for name, value in self.policy.state_dict().items()}
        return begin(self, method, iteration, logs)

    def received(self):
        taken.append(take(self))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ahead, "__call__", begun)
        patch.setattr(ImaginingProcess, "take", received)
        found = improved(tmp_path_factory.mktemp("ahead") / "run", LAG)
    found.versions, found.taken = versions, [batch.rollouts for batch in taken]
    return found


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_without_a_lag_another_process_changes_no_bit(tmp_path, monkeypatch, ahead):
    """``staleness=0`` imagines in the learner's process; in one of its own all numbers are the same."""
    made = staleness.imagined_ahead
    monkeypatch.setattr(staleness, "imagined_ahead", lambda method, policy, _, *rest: made(method, policy, 0, *rest))
    one, two = improved(tmp_path / "one", 0), improved(tmp_path / "two", 1)
    assert len(set(one.history)) > 1
    assert one.history == two.history
    assert equal(one.weights, two.weights)
    assert not (one.folder / "checkpoints" / PACE).exists()
    assert one.lines == [(step, {k: v for k, v in values.items() if k not in OWN}) for step, values in two.lines]
    assert {values["grpo/lag"] for _, values in two.lines} == {0.0}
    assert {values.get("grpo/stale_ratio", 1.0) for _, values in two.lines} == {1.0}
    assert not equal(one.weights, ahead.weights)  # a lag does change what is learned


def test_each_batch_is_of_the_version_that_the_lag_allows(ahead):
    versions = [rollouts.version for rollouts in ahead.taken]
    assert versions == [max(0, t - LAG) for t in range(7)]
    assert [values["grpo/lag"] for _, values in ahead.lines] == [t - version for t, version in enumerate(versions)]


def test_rollouts_hold_the_log_probabilities_of_the_version_that_drew_them(ahead):
    policy, chunk = script.policy().eval(), torch.tensor([0, 0])
    row = torch.tensor([0, 1])
    assert sorted(ahead.versions) == list(range(7))
    for rollouts in ahead.taken:
        gaps = {}
        for version, weights in ahead.versions.items():
            policy.load_state_dict(weights)
            found = policy.log_prob(rollouts.observed(chunk, row), rollouts.token[chunk, row])
            gaps[version] = float((found.detach() - rollouts.logp[chunk, row]).abs().max())
        near = {version for version, gap in gaps.items() if gap < 1e-5}
        same = {v for v, weights in ahead.versions.items() if equal(weights, ahead.versions[rollouts.version])}
        assert near == same, gaps


def test_a_run_tells_lags_frames_and_mismatch(ahead):
    pace = pace_of(ahead.folder / "checkpoints")["staleness"]
    assert {lag: row["batches"] for lag, row in pace["lags"].items()} == {"0": 1, "1": 1, "2": 5}
    assert pace["lags"]["0"]["ratio"] == 1.0
    assert pace["lags"]["2"]["kl"] > 0 == pace["lags"]["0"]["kl"]
    told = [values["grpo/stale_kl"] for _, values in ahead.lines if values["grpo/lag"] == 2 and OWN[2] in values]
    assert pace["lags"]["2"]["kl"] == pytest.approx(sum(told) / len(told))
    assert pace["imagined_frames"] == sum(int(r.valid.sum()) * r.probability.shape[-1] for r in ahead.taken)
    assert 0 < pace["waited_wall_s"] <= pace["wall_s"]
    assert sorted(path.name for path in (ahead.folder / "checkpoints").iterdir())[0] == PACE  # nothing else is left


def test_an_interrupted_and_killed_run_equals_an_unbroken_one(tmp_path, ahead):
    """Ctrl-C for both processes while batch 1 is awaited, SIGKILL of the learner in batch 5, then left alone."""
    cut = tmp_path / "cut"
    cut.mkdir()
    for moment, number, code in ((1, signal.SIGINT, -2), (3, signal.SIGKILL, -9)):
        command = [sys.executable, SCRIPT, "grpo", cut, moment, LAG, int(number)]
        ended = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, start_new_session=True, timeout=300
        )
        assert ended.returncode == code, ended.stderr
        if code == -2:
            assert "interrupted: finishing this iteration" in ended.stderr
            assert ended.stderr.count("Traceback") == 1  # the learner's own, at its end
        gone(int((cut / "imagining.pid").read_text()))
    again = improved(cut, LAG)
    assert again.history == ahead.history
    assert equal(again.weights, ahead.weights)
    assert again.lines == ahead.lines
    pace, whole = (read_json(run.folder / "checkpoints" / PACE) for run in (again, ahead))
    assert {k: v for k, v in pace.items() if "wall_s" not in k} == {k: v for k, v in whole.items() if "wall_s" not in k}


def gone(pid):
    """Wait for the end of a process."""
    for _ in range(2000):
        if not alive(pid):
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} outlived the learner")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- the process that imagines --------------------------------------------------------------------------------------


@pytest.fixture
def source():
    env = imagined_env(
        script.world_model(),
        ResetStore([script.record(20)]),
        SuccessRule(0.1, 2),
        rows=2,
        horizon={"PickRedCube": 8},
    )
    return PolicyImagination(env, script.policy().eval(), Exploration(), 0.0, 1)


REQUEST = Request.make(3, torch.tensor([0]), torch.tensor([2]))


def test_the_end_of_the_process_is_one_line(tmp_path, source):
    other = ImaginingProcess(source, tmp_path / "underway", SETTING)
    try:
        other.ask(REQUEST, 1, source.policy.state_dict())
        os.kill(other._process.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"^improvement\.grpo\.staleness: .* was killed by SIGKILL; the same .*$"):
            other.take()
    finally:
        other.close()
    assert not (tmp_path / "underway").exists()


def answers(source, folder, weights):
    """What the process answers to one request, here in a thread of this one."""
    ours, theirs = Pipe()
    pack(folder / weights_file(4), {"version": 4, "policy": weights})
    rows = {name: getattr(REQUEST, name).tolist() for name in imagining.ROWS}
    ours.send_bytes(json.dumps({"iteration": 3, "version": 4, **rows}).encode())
    thread = threading.Thread(target=serve, args=(theirs, source, 1, folder))
    thread.start()
    answer = json.loads(ours.recv_bytes())
    ours.close()
    thread.join()
    return answer


def test_what_is_imagined_there_is_what_is_imagined_here(tmp_path, source, same_tree):
    found = restored(unpack(tmp_path / answers(source, tmp_path, source.policy.state_dict())["file"]))
    expected = source.imagine(REQUEST)
    same_tree(found._replace(rollouts=None), expected._replace(rollouts=None))
    same_tree(vars(found.rollouts), vars(replace(expected.rollouts, version=4)))
    assert list(tmp_path.iterdir()) == []


def test_an_error_there_is_one_line_here(tmp_path, source, monkeypatch):
    def fails(self, request):
        raise SettingError("the policy observes what is not shown")

    monkeypatch.setattr(PolicyImagination, "imagine", fails)
    told = answers(source, tmp_path, source.policy.state_dict())
    assert told == {"failed": "the policy observes what is not shown"}
    told = answers(source, tmp_path, {})
    assert told["failed"].startswith("RuntimeError: Error(s) in loading state_dict")
    assert "\n" not in told["failed"]
    waiting = ImaginingProcess(source, tmp_path, SETTING, mend=MEND)
    waiting._connection, theirs = Pipe()
    imagining._tell(theirs, told)
    with pytest.raises(WorkerError, match=r"imagines failed: RuntimeError: .*; .*staleness=0 needs no other process$"):
        waiting.take()


def test_observations_of_earlier_steps_and_trust_travel_too(tmp_path, source, same_tree):
    rollouts = source.imagine(REQUEST).rollouts
    before = PolicyObs(rollouts.image, rollouts.command, rollouts.instruction, {"state": torch.rand(2, 2, 8)})
    sent = FilterResult(
        replace(rollouts, past=(before,), end=replace(rollouts.end, past=(before,))), torch.rand(2), None
    )
    pack(tmp_path / "batch", {**sent._asdict(), "rollouts": imagining.asdict(sent.rollouts)})
    found = restored(unpack(tmp_path / "batch"))
    same_tree(vars(found.rollouts), vars(sent.rollouts))
    same_tree(found._replace(rollouts=None), sent._replace(rollouts=None))


# -- what is stored ---------------------------------------------------------------------------------------------------


def test_mismatch_is_that_of_the_decisions_drawn():
    before = torch.zeros(3, 2, 1)
    now = torch.tensor([0.0, math.log(2), 5.0])[:, None, None].expand(3, 2, 1)
    found = Evaluated(now, before, torch.ones(3), torch.ones(3), external=torch.tensor([False, False, True]))
    told = mismatch(found)
    assert float(told["stale_ratio"]) == pytest.approx(1.5)  # tokens of ratio 1 and 2; the demonstration is left out
    assert float(told["stale_kl"]) == pytest.approx((0 + 2 * (2 - 1 - math.log(2))) / 2)


def test_means_are_of_the_batches_that_taught_something():
    rollouts = SimpleNamespace(valid=torch.tensor([[True, True], [True, False]]), probability=torch.zeros(2, 2, 4))
    pace = Pace(seconds=8.0)
    for number, waited in enumerate((1.0, 2.0, 3.0)):
        pace.arrived(1, FilterResult(rollouts), waited)
        if number:
            pace.measured(1, torch.tensor(number / 2), torch.tensor(float(number)))
    pace.arrived(2, FilterResult(rollouts), 0.0)
    lags = {"1": {"batches": 3, "ratio": 0.75, "kl": 1.5}, "2": {"batches": 1, "ratio": None, "kl": None}}
    told = {"staleness": 2, "lags": lags, "imagined_frames": 48, "wall_s": 8.0, "waited_wall_s": 6.0}
    assert pace.summary(2) == told
