"""What happens to workers: real processes, killed, hung, failed, interrupted and left alone."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import worldrl.rollout.real.pool as pool
import worldrl.rollout.real.rollouts as real
import worldrl.workers.link.channel as channel
from worldrl.core.errors import SettingError, WorkerError
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.real.rollouts import EmbeddedPlayer

pytestmark = pytest.mark.usefixtures("no_orphans")


def run(specs, options, *, record=False, **settings):
    player = EmbeddedPlayer(options, **{"workers": 1, **settings})
    return list(player.play([(spec, ExpertActor()) for spec in specs], record=record))


def undisturbed(outcomes):
    return [dataclasses.replace(outcome, restarted=False) for outcome in outcomes]


def test_a_message_that_is_none_ends_the_run_by_the_typed_error(specs, options, monkeypatch):
    whole = channel.decode
    monkeypatch.setattr(channel, "decode", lambda message: whole(message[:-1]))
    with pytest.raises(WorkerError, match=r"worker 0 .* sent something that is not a message"):
        run(specs, options)


@pytest.mark.parametrize("kind", ["kill", "exit", "hang"])
def test_a_lost_worker_is_replaced_once(specs, options, faulty, kind):
    outcomes = run(specs, faulty(kind, times=1), timeout_s=5.0 if kind == "hang" else 120.0)
    assert [outcome.restarted for outcome in outcomes] == [False, True, False, False]
    assert undisturbed(outcomes) == run(specs, options, workers=0)


@pytest.mark.parametrize(
    ("kind", "end"), [("kill", "killed by SIGKILL"), ("exit", "exit code 7"), ("hang", "silent for 5 s and killed")]
)
def test_the_second_loss_is_an_error_that_names_everything(specs, faulty, kind, end):
    with pytest.raises(WorkerError, match=f"worker 0 .PickRedCube episode index 1, seed 5, .*{end}.*workers=0"):
        run(specs, faulty(kind), timeout_s=5.0 if kind == "hang" else 120.0)


def test_an_episode_may_lose_its_worker_as_often_as_is_allowed(specs, options, faulty):
    outcomes = run(specs, faulty("kill", times=2), restarts=2)
    assert [outcome.restarted for outcome in outcomes] == [False, True, False, False]
    assert undisturbed(outcomes) == run(specs, options, workers=0)


def test_losses_are_counted_by_episode_not_by_worker(specs, options, faulty):
    """A long run on a bad machine loses one worker after the other; only an episode that kills each of them ends it."""
    outcomes = run(specs, faulty("kill", index=None, times=1), restarts=1)
    assert [outcome.restarted for outcome in outcomes] == [True] * 4
    assert undisturbed(outcomes) == run(specs, options, workers=0)


def test_a_worker_is_replaced_after_so_many_episodes(specs, options, faulty, monkeypatch):
    """Two processes play two episodes each; one that is lost meanwhile is one more, and no episode hangs on any of it."""
    started = []
    start = pool.Worker._start
    monkeypatch.setattr(pool.Worker, "_start", lambda self: (start(self), started.append(list(self._given))))
    expected = run(specs, options, workers=0)
    assert run(specs, options, recycle_after=2) == expected
    assert started == [[0, 1], [2, 3]]
    started.clear()
    outcomes = run(specs, faulty("kill", index=1, times=1), recycle_after=2)
    assert [outcome.restarted for outcome in outcomes] == [False, True, False, False]
    assert undisturbed(outcomes) == expected
    assert started == [[0, 1], [1, 2], [3]]
    with pytest.raises(SettingError, match="recycle_after: must be >= 1"):
        run(specs, options, recycle_after=0)


def test_an_exception_is_not_tried_again(specs, faulty):
    with pytest.raises(WorkerError, match=r"(?s)index 1, seed 5.*RuntimeError: the arm fell off.*Traceback"):
        run(specs, faulty("raise"))


def test_sigkill_from_outside(specs, options, started):
    episodes = EmbeddedPlayer(options, workers=2).play([(spec, ExpertActor()) for spec in specs])
    first = next(episodes)
    victims = list(started)
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    found = [first, *episodes]
    expected = run(specs, options, workers=0, record=True)
    assert len(victims) == 2
    for episode, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(episode.frames, reference.frames)


def test_an_abandoned_iterator_leaves_nobody(specs, options, started):
    many = [dataclasses.replace(specs[0], index=index) for index in range(24)]  # no worker ends before the question
    episodes = EmbeddedPlayer(options, workers=2).play([(spec, ExpertActor()) for spec in many])
    next(episodes)
    assert [process.started.end(0) for process in started] == [None, None]
    episodes.close()


def test_waiting_results_are_bounded(specs, faulty, monkeypatch):
    """One slow episode at the front must not make the parent hoard the others."""
    held = []
    add = real._Held.add
    monkeypatch.setattr(real._Held, "add", lambda self, *item: (add(self, *item), held.append(len(self))))
    many = [dataclasses.replace(specs[0], index=index) for index in range(24)]
    outcomes = run(many, faulty("slow", index=0), workers=2)
    assert [outcome.spec.index for outcome in outcomes] == list(range(24))
    assert max(held) <= 2 * 2 + 1


SCRIPT = """
import json, sys
from worldrl.rollout.agents.actors import WanderActor
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec
from worldrl.simulators.process import SimulatorProcess

started, start = [], SimulatorProcess.__init__
SimulatorProcess.__init__ = lambda self, *a, **k: (started.append(self), start(self, *a, **k))[1]
if __name__ == "__main__":
    specs = [EpisodeSpec("PickRedCube", index, 0) for index in range(10_000)]
    options = EnvOptions.from_json(json.loads(sys.argv[1]))
    planned = [(spec, WanderActor()) for spec in specs]
    for _ in EmbeddedPlayer(options, workers=2).play(planned, order="completion"):
        print(*(process.pid for process in started), flush=True)
"""


FAULTY = str(Path(__file__).parent / "faulty")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads process states from /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path, faulty, number):
    """Ctrl-C reaches the whole process group, as in a terminal; SIGKILL only the parent. One worker hangs."""
    options = faulty("hang", index=0)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([FAULTY, *sys.path])}
    command = [sys.executable, str(script), json.dumps(options.to_json())]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
    ) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert all(alive(pid) for pid in workers)
        (os.killpg if number == signal.SIGINT else os.kill)(parent.pid, number)
        _, errors = parent.communicate(timeout=240)
    assert parent.returncode == -number
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)
    own = 1 if number == signal.SIGINT else 0  # the script's own KeyboardInterrupt, nothing from the workers
    assert errors.count("Traceback") == own, errors
