"""What happens to simulator workers: real processes with a tiny suite, killed, hung, failed and left alone.

Units under test: ``rollout/simulator.py``, ``rollout/simulator_pool.py``, ``workers/server.py``, ``workers/boot.py``.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import worldrl.simulators.process as simulator
from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import SettingError, WorkerError
from worldrl.core.types import Chunk
from worldrl.rollout.agents.actors import ExpertActor, PolicyActor, WanderActor
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.episodes import Rules, play_episodes
from worldrl.simulators.pool import SimulatorPool, Start
from worldrl.simulators.process import Launch
from worldrl.workers.link.wire import PROTOCOL

TARGET = f"{Path(__file__).parents[1] / 'workers' / 'fake_suite.py'}:Fake"
HORIZON = {"reach_right": 40, "reach_up": 40}
SPECS = [EpisodeSpec(task, index, 5, init_id=index) for task in HORIZON for index in range(3)]


def launch(**options):
    return Launch("fake", sys.executable, TARGET, options)


def play(specs=SPECS, *, workers=1, slots=2, image_size=0, record=(), fault=None, drift=0.0, **settings):
    cameras = ("scene",) if image_size else ()
    options = {"image_size": image_size, "fault": fault, "drift": drift}
    with SimulatorPool(launch(**options), workers=workers, slots=slots, **settings) as pool:
        found = list(play_episodes(pool, specs, ExpertActor(), Rules(HORIZON, cameras, 2, frozenset(record))))
    return {item.meta["init_id"] if hasattr(item, "meta") else item.spec.key: item for item in found}


@pytest.fixture(scope="module")
def undisturbed():
    return play()


def bare(outcomes):
    return {key: {**outcome.to_json(), "restarted": False} for key, outcome in outcomes.items()}


def test_each_episode_is_played_once_and_the_expert_succeeds(undisturbed):
    assert sorted(undisturbed) == sorted(spec.key for spec in SPECS)
    assert all(outcome.success_once and outcome.success_at_end for outcome in undisturbed.values())
    assert not any(outcome.restarted for outcome in undisturbed.values())


class Recalling:
    """It reads three observations and writes down the newest step's commands and what all images show."""

    chunk_length, needs_noise, more, actions, n_obs_steps = 2, False, (), TOOL_ACTIONS, 3

    def __init__(self):
        self.shown = []

    def act(self, obs, **_):
        for row in range(len(obs.instruction)):
            self.shown.append([(o.command[row].numpy(), int(o.image[row, 0, 0, 0])) for o in (*obs.past, obs)])
        motion = torch.zeros(len(obs.instruction), 2, 7)
        motion[..., 0] = torch.tensor([0.5, 1.0])
        return Chunk(motion, motion, motion, motion)


@pytest.mark.parametrize("fault", [None, {"task": "reach_up", "init_id": 1, "at": 5, "kind": "kill"}])
def test_a_policy_that_looks_back_is_shown_the_images_of_those_steps(monkeypatch, tmp_path, fault):
    policy = Recalling()
    monkeypatch.setattr("worldrl.rollout.agents.policy_folder.load_policy", lambda folder, device: policy)
    options = {"image_size": 4, "fault": fault and {**fault, "marker": str(tmp_path / "once")}}
    rules = Rules({"reach_right": 7, "reach_up": 6}, ("scene",))
    with SimulatorPool(launch(**options), slots=2) as pool:
        found = list(play_episodes(pool, SPECS, PolicyActor("recalling"), rules))
    assert len(found) == len(SPECS)
    assert any(outcome.restarted for outcome in found) == bool(fault)
    started = 0
    for steps in policy.shown:
        places = [command[:2].astype(np.float64) for command, _ in steps]
        for place, (_, grey) in zip(places, steps, strict=True):
            assert abs(grey - int(255 * abs(np.sin(place.sum())))) <= 1  # each image is of its own step
        moved = [after - before for before, after in itertools.pairwise(places)]
        started += not np.any(moved)
        if np.any(moved):
            np.testing.assert_allclose(
                moved, [[0.025, 0.0], [0.05, 0.0]], atol=1e-6
            )  # step by step, within the episode
    assert started == len(SPECS)


class Seeking:
    """It goes straight to the mark in chunks of four, whose middle often fulfils the task."""

    chunk_length, needs_noise, more, actions, n_obs_steps = 4, False, (), TOOL_ACTIONS, 1

    def act(self, obs, **_):
        marks = torch.tensor([[0.5, 0.0] if "right" in told else [0.0, 0.5] for told in obs.instruction])
        motion = torch.zeros(len(marks), 4, 7)
        motion[..., :2] = (5 * (marks - obs.command[:, :2])).clamp(-1, 1)[:, None]
        return Chunk(motion, motion, motion, motion)


@pytest.mark.parametrize(("hold_steps", "looks"), [(0, 3), (3, 1)])
def test_steps_that_nobody_reads_are_one_message_and_change_nothing(monkeypatch, tmp_path, hold_steps, looks):
    policy = Seeking()
    policy.n_obs_steps = looks
    monkeypatch.setattr("worldrl.rollout.agents.policy_folder.load_policy", lambda folder, device: policy)
    sent, send = [], simulator.SimulatorProcess.send
    monkeypatch.setattr(
        simulator.SimulatorProcess,
        "send",
        lambda self, header, arrays=None: (sent.append((header, arrays)), send(self, header, arrays)),
    )

    def seek(together, *, fault=None, record=()):
        sent.clear()
        with SimulatorPool(launch(image_size=4, fault=fault), slots=2) as pool:
            pool.suite["several_steps"] = together
            rules = Rules(HORIZON, ("scene",), hold_steps, record)
            found = list(play_episodes(pool, SPECS, PolicyActor("seeking"), rules))
        messages = [arrays["action"].shape[1] for header, arrays in sent if header["kind"] == "step"]
        return found, messages

    def outcomes(found):
        return {outcome.spec.key: outcome for outcome in found}

    found, one_by_one = seek(False)
    single = outcomes(found)
    found, together = seek(True)
    assert all(outcome.success_once for outcome in single.values())
    assert any(outcome.first_success % 4 for outcome in single.values())  # in the middle of a chunk
    assert bare(outcomes(found)) == bare(single)
    assert set(one_by_one) == {1}
    assert max(together) == 4 - (looks - 1)
    assert len(together) < len(one_by_one)
    key, middle = next((key, o.first_success) for key, o in single.items() if o.first_success % 4)
    at = middle + 2 if hold_steps else middle  # behind a chunk that ended early, or in it
    fault = {"task": key[0], "init_id": key[2], "at": at, "kind": "kill", "marker": str(tmp_path / "once")}
    lost = outcomes(seek(True, fault=fault)[0])
    assert bare(lost) == bare(single)
    assert lost[key].restarted
    assert set(seek(True, record=range(len(SPECS)))[1]) == {1}  # every frame is kept


class Passing(Seeking):
    """It continues over the mark, in chunks of eight: the success in their middle is undone before they end."""

    chunk_length = 8

    def act(self, obs, **_):
        marks = torch.tensor([[0.5, 0.0] if "right" in told else [0.0, 0.5] for told in obs.instruction])
        motion = torch.zeros(len(marks), 8, 7)
        motion[..., :2] = (4 * (marks - obs.command[:, :2])).clamp(-1, 1)[:, None]
        return Chunk(motion, motion, motion, motion)


def test_a_success_that_is_undone_is_held_as_long_whether_anybody_looks_or_not(monkeypatch):
    hold_steps = 3
    monkeypatch.setattr("worldrl.rollout.agents.policy_folder.load_policy", lambda folder, device: Passing())

    def play(together):
        with SimulatorPool(launch(image_size=4), slots=2) as pool:
            pool.suite["several_steps"] = together
            rules = Rules({"reach_right": 60, "reach_up": 60}, ("scene",), hold_steps)
            return {outcome.spec.key: outcome for outcome in play_episodes(pool, SPECS, PolicyActor("passing"), rules)}

    single = play(False)
    assert any(outcome.success_once and not outcome.success_at_end for outcome in single.values())
    assert all(outcome.steps == outcome.first_success + hold_steps for outcome in single.values())
    assert bare(play(True)) == bare(single)


def test_a_worker_that_is_busy_with_many_steps_is_not_silent():
    with SimulatorPool(launch(pause_s=0.6), timeout_s=4.0, restarts=0) as pool:
        pool.reset({0: Start("reach_up", 1, 0)}, render=False)
        rows = pool.steps({0: np.zeros((10, 7), np.float32)}, render=())[0]
    assert len(rows) == 10


def test_workers_and_recycling_change_nothing(undisturbed):
    assert bare(play(workers=2, slots=2)) == bare(undisturbed)
    assert bare(play(workers=2, slots=3, recycle_after=1)) == bare(undisturbed)


def test_a_worker_is_replaced_after_episodes_of_its_own_in_all_its_slots_together():
    with SimulatorPool(launch(), workers=2, slots=4, recycle_after=2) as pool:  # slots 0 and 2 are worker 0's
        first, other = pool.pids
        pool.reset({0: Start("reach_up", 0, 0), 2: Start("reach_up", 1, 0)}, render=False)
        pool.reset({1: Start("reach_up", 2, 0)}, render=False)
        assert pool.pids == [first, other]  # two episodes have begun in worker 0, one in worker 1
        pool.reset({0: Start("reach_up", 3, 0), 1: Start("reach_up", 4, 0)}, render=False)
        assert first not in pool.pids
        assert other in pool.pids


def test_recorded_traces_do_not_depend_on_workers():
    one, two = (play(SPECS[:3], workers=workers, slots=3, image_size=4, record=range(3)) for workers in (1, 3))
    for key, episode in one.items():
        for name in ("frames", "state", "action", "reward"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(two[key], name))
    assert one[0].frames.shape[1:] == (1, 4, 4, 3)


@pytest.mark.parametrize(
    ("kind", "end"), [("kill", "killed by SIGKILL"), ("exit", "exit code 7"), ("hang", "silent for 2 s and killed")]
)
def test_a_lost_worker_is_replaced_and_its_episode_continues(kind, end, undisturbed, tmp_path, caplog):
    fault = {"task": "reach_up", "init_id": 1, "at": 5, "kind": kind, "marker": str(tmp_path / "once")}
    found = play(fault=fault, timeout_s=2.0 if kind == "hang" else 60.0)
    assert bare(found) == bare(undisturbed)
    assert found["reach_up", 1, 1, 5].restarted
    assert not found["reach_right", 0, 0, 5].restarted
    (message,) = [record.getMessage() for record in caplog.records]
    assert "fake: worker 0 (reach_up initial state" in message
    assert "at 'step'" in message
    assert end in message
    assert "a simulator prints what it likes" in message


def test_an_episode_that_kills_every_worker_is_an_error_that_names_it():
    fault = {"task": "reach_up", "init_id": 1, "at": 5, "kind": "kill"}
    with pytest.raises(WorkerError, match=r"worker 0 \(reach_up initial state 1, seed 5, .*SIGKILL.*restarted 1 times"):
        play(fault=fault, restarts=1, slots=1)


def test_an_exception_is_reported_and_not_tried_again():
    fault = {"task": "reach_right", "init_id": 0, "at": 1, "kind": "raise"}
    with pytest.raises(WorkerError, match=r"(?s)RuntimeError: the arm fell off.*Traceback"):
        play(fault=fault)


def test_a_simulator_that_is_not_deterministic_is_found_out(tmp_path):
    fault = {"task": "reach_up", "init_id": 1, "at": 5, "kind": "kill", "marker": str(tmp_path / "once")}
    with pytest.raises(WorkerError, match="the simulator is not deterministic"):
        play(fault=fault, drift=1e-6)


def test_killed_in_a_loop(undisturbed):
    """Every step may be a worker's last, in each process anew; nothing hangs, is lost or counted twice."""
    found = play(fault={"share": 0.02}, workers=2, slots=2, restarts=1000)
    assert bare(found) == bare(undisturbed)


@pytest.mark.slow
def test_killed_a_hundred_times_from_outside(undisturbed):
    """A second process shoots workers at random moments, while they start, reset, step or wait."""
    draw, kills = np.random.default_rng(0), 0
    with SimulatorPool(launch(), workers=2, slots=2, restarts=10_000) as pool:
        while kills < 100:
            found = []
            for item in play_episodes(pool, SPECS, ExpertActor(), Rules(HORIZON, (), 2)):
                found.append(item)
                victim = int(draw.choice(pool.pids))
                time.sleep(float(draw.uniform(0, 0.02)))
                os.kill(victim, signal.SIGKILL)
                kills += 1
            assert bare({item.spec.key: item for item in found}) == bare(undisturbed)
            assert len(found) == len(SPECS)


def test_a_worker_that_cannot_start_says_why():
    with pytest.raises(WorkerError, match="RuntimeError: no assets here"), SimulatorPool(launch(boom="no assets here")):
        pass
    missing = Launch("fake", "/no/such/python", TARGET)
    with pytest.raises(WorkerError, match="/no/such/python cannot be started"), SimulatorPool(missing):
        pass


@pytest.mark.parametrize("settings", [{"workers": 0}, {"recycle_after": 0}, {"timeout_s": 0.0}, {"restarts": -1}])
def test_numbers_out_of_range(settings):
    with pytest.raises(SettingError):
        SimulatorPool(launch(), **settings)


def test_an_actor_that_cannot_act_here_is_refused():
    with (
        SimulatorPool(launch()) as pool,
        pytest.raises(SettingError, match="give a policy, imagined rollouts, or its expert"),
    ):
        next(play_episodes(pool, SPECS, WanderActor(), Rules(HORIZON)))


def test_the_worker_sees_none_of_the_cores_packages():
    """The suite's environment must not see the core's: no PYTHONPATH, no torch by accident."""
    program = "import sys, worldrl; sys.stdout.write(str([p for p in sys.path if 'libero' in p or 'worldrl' in p]))"
    found = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False, env={"PYTHONPATH": "."}
    )
    assert "No module named" in found.stderr or found.stdout  # an installed worldrl is no business of this test
    with SimulatorPool(launch()) as pool:
        child = Path(f"/proc/{pool.pids[0]}/environ").read_bytes()
        assert b"PYTHONPATH=" not in child
        assert b"/torch/" not in Path(f"/proc/{pool.pids[0]}/maps").read_bytes()


def test_nobody_is_left_when_the_parent_is_killed():
    script = (
        "import sys, time\n"
        "from worldrl.simulators.process import Launch\n"
        "from worldrl.simulators.pool import SimulatorPool\n"
        f"with SimulatorPool(Launch('fake', sys.executable, {TARGET!r}), workers=2) as pool:\n"
        "    sys.stdout.write(' '.join(map(str, pool.pids)) + '\\n'); sys.stdout.flush(); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_start_names_its_episode():
    assert Start("reach_up", 3, 7).describe() == "reach_up initial state 3, seed 7"


def test_a_worker_refuses_a_core_of_another_protocol(monkeypatch):
    monkeypatch.setattr(simulator, "PROTOCOL", 99)
    with (
        pytest.raises(WorkerError, match=rf"this worker speaks protocol {PROTOCOL}, the core says .*99"),
        SimulatorPool(launch()),
    ):
        pass


OTHER_VERSION = """
import sys

class Fake:
    def describe(self):
        sys.modules["worldrl.workers.link.server"].PROTOCOL = 99
        return {}
"""


def test_the_core_refuses_a_worker_of_another_protocol(tmp_path):
    (tmp_path / "other.py").write_text(OTHER_VERSION)
    other = Launch("other", sys.executable, f"{tmp_path / 'other.py'}:Fake", {})
    with pytest.raises(WorkerError, match=rf"the worker speaks protocol 99, the core {PROTOCOL}"), SimulatorPool(other):
        pass
