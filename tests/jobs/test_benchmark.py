"""Unit under test: ``worldrl benchmark``; the embedded suite for real, LIBERO's path through a tiny suite's workers."""

import csv
import json
import platform
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import worldrl.rollout.suites.libero as rollout_libero
from worldrl.cli import main
from worldrl.core.errors import ProtocolError, SettingError, WorkerEnvironmentError
from worldrl.evaluation.policy.compare import compare
from worldrl.evaluation.policy.protocol import EvalProtocol, suite_protocol
from worldrl.evaluation.policy.result import EvalResult
from worldrl.evaluation.report.store import load_report_data
from worldrl.jobs.benchmark.benchmark import BenchmarkSettings
from worldrl.jobs.benchmark.films import recycle_after_of
from worldrl.rollout.suites.registry import find_suite
from worldrl.simulators.environments import WorkerEnvironment
from worldrl.simulators.pool import SimulatorPool
from worldrl.simulators.process import Launch
from worldrl.workers.libero import facts as libero_facts
from worldrl.workers.libero import package as libero_package
from worldrl.workers.link.boot import load_file
from worldrl.workers.link.server import Refusal

FAKE = Path(__file__).parents[1] / "policies" / "fake_network.py"
fake = load_file("fake_network", FAKE)
TARGET = f"{Path(__file__).parents[1] / 'workers' / 'fake_suite.py'}:Fake"
SOURCES = {"bddl": "b0", "robosuite": "r0", "libero": "l0"}
DESCRIBED = {
    "tasks": [{"name": "a"}, {"name": "b"}],
    "packages": {"mujoco": "3.3.7"},
    "assets": "0123",
    "sources": SOURCES,
    "stored_states": 50,
    "control_hz": 20.0,
}


def protocol(suite="libero_goal", **settings):
    values = {"episodes_per_task": 5, "seed": 0, "chunk_length": 1, "shadows": True, **settings}
    return suite_protocol(find_suite(suite), DESCRIBED, **values)


@pytest.fixture
def fake_libero(monkeypatch):
    """LIBERO's launch starts a tiny suite instead; everything else is the real path."""

    def install(**options):
        launch = Launch("libero_goal", sys.executable, TARGET, {"suite": "libero_goal", "image_size": 4, **options})
        monkeypatch.setattr(rollout_libero, "libero_launch", lambda suite, **settings: launch)

    record = type("E", (), {"record": {"assets_note": "toy"}})
    monkeypatch.setattr(rollout_libero, "find_environment", lambda name: record)
    monkeypatch.setitem(libero_facts.UNSCRIPTED, "libero_goal", ())  # the tiny suite's expert plays all of its tasks
    install()
    return install


def run(tmp_path, name, *tokens):
    folder = tmp_path / name
    code = main(["benchmark", "suite=libero_goal", "policy=expert", "episodes=3", f"run_dir={folder}", *tokens])
    return code, folder


def test_the_table_does_not_depend_on_workers_accidents_or_interruption(tmp_path, fake_libero, capsys):
    assert run(tmp_path, "plain", "workers=1", "envs=2")[0] == 0
    fake_libero(fault={"share": 0.02})
    assert run(tmp_path, "shot", "workers=2", "envs=2", "restarts=1000", "recycle_after=2")[0] == 0
    fake_libero(fault={"task": "reach_up", "init_id": 1, "at": 2, "kind": "raise"})
    code, folder = run(tmp_path, "cut", "workers=1", "envs=2")
    assert code == 2
    fake_libero()
    assert run(tmp_path, "cut", "workers=1", "envs=2")[0] == 0
    tables = [(tmp_path / name / "results.csv").read_text() for name in ("plain", "shot", "cut")]
    assert tables[0] == tables[1] == tables[2]
    (*tasks, everything) = csv.DictReader(tables[0].splitlines())
    assert [row["task"] for row in tasks] == ["reach_right", "reach_up"]
    assert (everything["successes"], everything["episodes"]) == ("6", "6")
    assert float(everything["low"]) == pytest.approx(0.6097, abs=1e-3)  # Wilson's lower end of 6 of 6
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    assert metrics["assets_note"] == "toy"
    assert "toy" in metrics["protocol"]["conventions"]["assets"]
    assert "this is not a libero_goal result" in capsys.readouterr().err
    a, b = (EvalResult.load(tmp_path / name) for name in ("plain", "cut"))
    assert compare(a, b).overall["diff"] == 0
    python = platform.python_version()
    assert (a.provenance["suite python"], a.provenance["workers"], "frame" in a.provenance) == (python, "1", False)
    assert a.provenance["physics"] == "mujoco 3.3.7"
    assert "suite python" in (tmp_path / "plain" / "report.html").read_text()


def test_a_finished_run_is_read_and_nothing_starts(tmp_path, fake_libero, capsys, monkeypatch):
    """A second start printed and wrote the same, after it had started all workers again."""
    tokens = ["workers=1", "envs=2", "tasks=[reach_up]"]
    code, folder = run(tmp_path, "run", *tokens)
    told, result = capsys.readouterr(), (folder / "result.json").read_text()
    assert (code, json.loads((folder / "inputs.json").read_text())["policy"]["path"]) == (0, "expert")
    with monkeypatch.context() as patched:
        patched.setattr(SimulatorPool, "__enter__", lambda _: pytest.fail("a worker was started"))
        assert run(tmp_path, "run", *tokens)[0] == 0
    again = capsys.readouterr()
    assert "report:" in again.err
    assert [line for line in again.err.splitlines() if "reach_up" in line] == [
        line for line in told.err.splitlines() if "reach_up" in line
    ]
    assert (folder / "result.json").read_text() == result
    plain = json.loads(result)
    plain["metrics"].pop("images_note")  # killed before the page was drawn
    (folder / "result.json").write_text(json.dumps(plain))
    (folder / "report.html").unlink()
    assert run(tmp_path, "run", *tokens)[0] == 0
    assert (folder / "report.html").exists()
    assert json.loads((folder / "result.json").read_text())["metrics"].keys() == json.loads(result)["metrics"].keys()
    inputs = json.loads((folder / "inputs.json").read_text())
    inputs["policy"]["hash"] = "another"
    (folder / "inputs.json").write_text(json.dumps(inputs))
    assert run(tmp_path, "run", *tokens)[0] == 2
    assert "begun with other content: policy.hash" in capsys.readouterr().err


def test_the_note_belongs_to_the_assets_whatever_the_settings_say(tmp_path, fake_libero, monkeypatch, capsys):
    """A folder of the same content, and another note, dropped "toy" once: an unlabelled number seems LIBERO's."""
    told = {"assets": "/told/to/setup", "assets_note": "other", "assets_notes": {"0123": "toy"}}
    monkeypatch.setattr(rollout_libero, "find_environment", lambda name: type("E", (), {"record": told}))
    for name, tokens, note in (
        ("copy", ["assets=/a/copy"], "toy"),
        ("more", ["assets=/a/copy", "assets_note=mine"], "toy; mine"),
        ("edited", ["assets=/told/to/setup"], "toy; other"),
    ):
        code, folder = run(tmp_path, name, "workers=1", "envs=2", "tasks=[reach_up]", *tokens)
        metrics = json.loads((folder / "result.json").read_text())["metrics"]
        assert (code, metrics["assets_note"]) == (0, note)
        assert metrics["protocol"]["conventions"]["assets"] == f"0123 ({note})"
        assert f"assets: {note};" in capsys.readouterr().err


def test_embedded_suite_with_its_expert(tmp_path):
    tokens = ["episodes=2", "tasks=[PickRedCube]", "workers=0", "envs=1", f"run_dir={tmp_path / 'run'}"]
    assert main(["benchmark", "suite=embedded", "policy=expert", *tokens]) == 0
    result = EvalResult.load(tmp_path / "run")
    assert (result.rate()["k"], result.rate()["n"]) == (2, 2)


def test_the_expert_in_the_randomised_domain_is_another_protocol(tmp_path, capsys):
    told = ["benchmark", "policy=expert", "episodes=1", "workers=0", "tasks=[BimanualOpenDrawer]"]
    assert main([*told, f"run_dir={tmp_path}/drawn", "domain=randomised"]) == 0
    protocol = EvalResult.load(tmp_path / "drawn").protocol
    assert protocol.domain == protocol.env_options.domain == "randomised"
    assert main([*told, "suite=libero_goal", f"run_dir={tmp_path}/foreign", "domain=randomised"]) == 2
    assert "domain: is of the embedded suite's bimanual tasks" in capsys.readouterr().err


def test_restarts_are_allowed_to_the_embedded_suites_workers_too(tmp_path, monkeypatch):
    class SeenError(Exception):
        pass

    def seen(player, planned, **_):
        raise SeenError(player.restarts)

    monkeypatch.setattr("worldrl.rollout.real.rollouts.EmbeddedPlayer.play", seen)
    with pytest.raises(SeenError, match="7"):
        main(["benchmark", "policy=expert", "episodes=1", "restarts=7", f"run_dir={tmp_path / 'run'}"])


def test_missing_environment_is_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path / "cache"))
    assert main(["benchmark", "suite=libero_goal", "policy=expert", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "worldrl setup libero" in capsys.readouterr().err
    assert main(["benchmark", "suite=libero_gaol", "policy=expert"]) == 2
    assert "did you mean 'libero_goal'" in capsys.readouterr().err


def test_what_a_suite_lacks_is_exit_code_2_in_its_own_words(tmp_path, fake_libero, capsys):
    """The first thing that LIBERO's new users meet is missing assets; no traceback of a worker says more than the message."""
    assert issubclass(libero_package.LiberoError, Refusal)
    with pytest.raises(libero_package.LiberoError, match="worldrl setup libero assets=") as missing:
        libero_package.find_assets(tmp_path, "")
    fake_libero(refused=str(missing.value))
    code, folder = run(tmp_path, "bare", "workers=1", "envs=1")
    said = capsys.readouterr().err
    assert code == 2
    assert "LIBERO's assets (meshes, textures) are not in" in said
    assert "Traceback" not in said
    assert not (folder / "episodes.jsonl").exists()


def test_a_physics_that_fails_its_probe_plays_no_episode(tmp_path, fake_libero, capsys):
    fake_libero(unsettled="settle probe: the bowl fell off")
    code, folder = run(tmp_path, "fallen", "workers=1", "envs=1")
    assert code == 2
    assert "the bowl fell off" in capsys.readouterr().err
    assert not (folder / "episodes.jsonl").exists()


@pytest.mark.parametrize(("suite", "episodes"), [("embedded", 250), ("libero_goal", 50), ("maniskill", 50)])
def test_workers_are_replaced_after_as_many_episodes_as_the_page_says(suite, episodes):
    assert recycle_after_of(BenchmarkSettings(policy="expert", suite=suite)) == episodes
    assert recycle_after_of(BenchmarkSettings(policy="expert", suite=suite, recycle_after=7)) == 7
    page = (Path(__file__).parents[2] / "docs" / "guide" / "benchmarks.md").read_text()
    assert re.search(rf"\b{episodes} of", " ".join(page[page.index("`recycle_after`") :].split())[:160])


def test_an_environment_in_which_nothing_renders_is_exit_code_2(tmp_path, monkeypatch, capsys):
    environment = WorkerEnvironment("libero", tmp_path, {"python": sys.executable})
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(rollout_libero, "find_environment", lambda name: environment)
    monkeypatch.setitem(libero_facts.UNSCRIPTED, "libero_goal", ())
    reasons = ["egl: no device", "osmesa: not installed"]
    monkeypatch.setattr(rollout_libero, "choose_backend", lambda python, timeout_s, backends: (None, reasons))
    code, folder = run(tmp_path, "blind", "videos=1")
    assert code == 2
    said = capsys.readouterr().err
    assert "nothing renders in its environment (egl: no device; osmesa: not installed)" in said
    assert "apt-get install" in said
    assert not (folder / "result.json").exists()


def test_protocol_holds_the_conventions_and_round_trips(tmp_path):
    made = protocol()
    assert made.horizon == {"a": 300, "b": 300}
    assert made.packages == {"mujoco": "3.3.7"}
    assert made.conventions["settle_steps"] == 10
    assert [spec.init_id for spec in made.specs()] == [0, 1, 2, 3, 4] * 2
    made.save(tmp_path / "protocol.json")
    assert EvalProtocol.load(tmp_path / "protocol.json").hash == made.hash
    hashes = [
        made.hash,
        protocol(shadows=False).hash,
        protocol(assets_note="stand-in bowl").hash,
        protocol("libero_spatial").hash,
        protocol("libero_spatial@lerobot").hash,
    ]
    assert len(set(hashes)) == len(hashes)


def test_results_of_different_conventions_refuse_to_be_compared():
    from worldrl.rollout.real.specs import EpisodeOutcome

    def result(made):
        outcomes = tuple(EpisodeOutcome(spec, True, True, 9, 9) for spec in made.specs())
        return EvalResult(made, "expert", "0", outcomes)

    with pytest.raises(ProtocolError, match="conventions"):
        compare(result(protocol()), result(protocol(shadows=False)))
    with pytest.raises(ProtocolError, match="horizon"):
        compare(result(protocol("libero_spatial")), result(protocol("libero_spatial@lerobot")))


@pytest.fixture
def half_scripted(monkeypatch, fake_libero):
    """The expert plays one of the tiny suite's two tasks; a worker that starts is one too many."""
    monkeypatch.setitem(libero_facts.UNSCRIPTED, "libero_goal", ("reach_up",))
    monkeypatch.setattr(rollout_libero, "libero_tasks", lambda suite: ["reach_right", "reach_up"])
    fake_libero(boom="a worker was started")


def test_tasks_that_the_expert_does_not_play_are_refused_before_the_start(tmp_path, half_scripted, capsys):
    assert run(tmp_path, "run")[0] == 2
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "policy: the scripted expert of libero_goal does not play reach_up; select others with tasks=[reach_right]"
        in told
    )
    assert run(tmp_path, "one", "tasks=[reach_right]")[0] == 2
    assert "a worker was started" in capsys.readouterr().err
    assert main(["benchmark", "suite=maniskill", "policy=expert", f"run_dir={tmp_path / 'cubes'}"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "does not play PlaceSphere-v1, LiftPegUpright-v1" in told
    assert "tasks=[PickCube-v1,PushCube-v1,PullCube-v1,StackCube-v1]" in told
    assert main(["benchmark", "suite=robotwin_clean", "policy=expert", f"run_dir={tmp_path / 'arms'}"]) == 2
    assert "no scripted expert that acts step by step" in " ".join(capsys.readouterr().err.split())


def test_more_episodes_than_stored_states_are_refused():
    with pytest.raises(SettingError, match="50 initial states"):
        protocol(episodes_per_task=51)
    with pytest.raises(SettingError, match="unknown task 'c'"):
        protocol(tasks=["c"])


def test_a_video_shows_the_episode(tmp_path, fake_libero):
    fake_libero(image_size=16)
    code, folder = run(tmp_path, "film", "videos=1", "workers=1", "envs=1", "image_size=16")
    assert code == 0
    names = {path.name for path in (folder / "recordings").iterdir()}
    assert names == {"reach_right-000-success.mp4", "reach_up-000-success.mp4"}
    data, page = load_report_data(folder), (folder / "report.html").read_text()
    assert [video.title for video in data.videos] == ["reach_right, initial state 0", "reach_up, initial state 0"]
    assert data.videos[0].mp4 == (folder / "recordings" / "reach_right-000-success.mp4").read_bytes()
    assert page.count("data:video/mp4;base64") == 2
    assert EvalResult.load(folder).provenance["frame"] == "00ff"
    assert np.isfinite(json.loads((folder / "result.json").read_text())["metrics"]["mean_steps"])


@pytest.mark.parametrize("trouble", ["no renderer", "lost worker"])
def test_images_that_fail_are_a_note_and_lose_no_result(tmp_path, fake_libero, monkeypatch, capsys, trouble):
    """The expert observes nothing, so only the films of its failures need a renderer."""

    def launch(suite, *, cameras, **settings):
        if cameras and trouble == "no renderer":
            raise WorkerEnvironmentError("libero: nothing renders in its environment")
        fault = {"task": "reach_up", "init_id": 0, "at": 2, "kind": "kill"} if cameras else None
        options = {"suite": suite, "image_size": 16 * len(cameras), "lazy": True, "fault": fault}
        return Launch(suite, sys.executable, TARGET, options)

    monkeypatch.setattr(rollout_libero, "libero_launch", launch)
    monkeypatch.setitem(libero_facts.SUITES, "libero_goal", libero_facts.SuiteFacts(2, 24))
    code, folder = run(tmp_path, "run", "workers=1", "envs=1", "restarts=0", "failures=2")
    assert code == 0
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    assert (metrics["success"]["k"], metrics["success"]["n"]) == (0, 6)
    word, shown = {"no renderer": ("nothing renders", 0), "lost worker": ("SIGKILL", 1)}[trouble]
    assert f"{shown} of 2 failed episodes" in metrics["images_note"]
    assert word in metrics["images_note"]
    data = load_report_data(folder)
    assert metrics["images_note"] in data.notes
    assert len(data.filmstrips) == shown
    assert word in " ".join(capsys.readouterr().err.split())


def test_a_success_that_does_not_last_is_reported_only_where_episodes_continue_after_it(tmp_path, fake_libero, capsys):
    """Episodes that end at their first success are fulfilled at their end by construction: nothing was measured."""
    fake_libero(undone="reach_up")
    held, ended = (run(tmp_path, f"hold-{n}", "workers=1", "envs=2", f"hold_steps={n}") for n in (3, 0))
    assert held[0] == ended[0] == 0
    table = {row["task"]: row for row in csv.DictReader((held[1] / "results.csv").read_text().splitlines())}
    assert [table[name]["successes"] for name in ("reach_right", "reach_up", "all")] == ["3", "3", "6"]
    assert [table[name]["at_end"] for name in ("reach_right", "reach_up", "all")] == ["3", "0", "3"]
    (states, *_) = load_report_data(held[1]).tables
    assert [row[-1] for row in states.rows] == ["none", "0, 1, 2"]
    (states, *_) = load_report_data(ended[1]).tables
    assert [row[-1] for row in states.rows] == ["not measured"] * 2
    metrics = [json.loads((folder / "result.json").read_text())["metrics"] for _, folder in (held, ended)]
    assert metrics[0]["success_at_end"]["k"] == 3
    assert metrics[1]["success_at_end"] is metrics[1]["tasks_at_end"] is None
    assert metrics[0]["protocol"]["hold_steps"] == 3
    assert "not measured" in capsys.readouterr().err
    a, b = (EvalResult.load(folder) for _, folder in (held, ended))
    with pytest.raises(ProtocolError, match="hold_steps: 3 against 0"):
        compare(a, b)
    with pytest.raises(ProtocolError, match="hold_steps is 0"):
        compare(b, b, at_end=True)


def test_numbers_outside_the_robots_range_are_counted_and_never_reach_a_simulator(tmp_path, fake_libero, monkeypatch):
    """One number of seven is always 3; whoever clips it in silence only measures a bad policy."""
    mean = torch.tensor([3.0, 0.1, 0, 0, 0, 0, -0.5])
    statistics = {"action.mean": mean, "action.std": torch.full((7,), 1e-4)}
    policy = fake.publish(tmp_path / "policy", size=4, statistics=statistics)
    worker = Launch("fake policy", sys.executable, f"{FAKE}:Fake", {"folder": str(policy)})
    monkeypatch.setattr("worldrl.policies.lerobot.policy.lerobot_launch", lambda folder, device: worker)
    executed = []
    steps = SimulatorPool.steps
    monkeypatch.setattr(
        SimulatorPool,
        "steps",
        lambda self, actions, **more: (
            executed.extend(a for n in actions.values() for a in n) or steps(self, actions, **more)
        ),
    )
    monkeypatch.setitem(libero_facts.SUITES, "libero_goal", libero_facts.SuiteFacts(2, 24))
    fake_libero(image_size=4)
    tokens = ["suite=libero_goal", "tasks=[reach_up]", "episodes=2", "workers=1", "envs=2", "failures=1"]
    assert main(["benchmark", f"policy={policy}", *tokens, f"run_dir={tmp_path / 'run'}"]) == 0
    result = EvalResult.load(tmp_path / "run")
    assert (
        [outcome.clipped for outcome in result.outcomes] == [outcome.steps for outcome in result.outcomes] == [24] * 2
    )
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["clipped_share"] == pytest.approx(
        1 / 7
    )
    assert [
        note for note in load_report_data(tmp_path / "run").notes if note.startswith("14 % of the policy's numbers")
    ]
    assert {float(action[0]) for action in executed} == {1.0}


def test_a_result_is_written_before_its_images(tmp_path, fake_libero, monkeypatch):
    monkeypatch.setattr("worldrl.jobs.benchmark.benchmark.film_failures", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, "run", "workers=1", "envs=1")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["success"]["n"] == 6


def test_a_comparison_ends_when_it_is_decided(tmp_path, fake_libero, capsys, monkeypatch):
    def play(name, *more):
        folder = tmp_path / name
        given = ["suite=libero_goal", "policy=expert", "episodes=6", "workers=1", "envs=2", f"run_dir={folder}"]
        return main(["benchmark", *given, *more]), folder

    assert play("first")[0] == 0
    done = EvalResult.load(tmp_path / "first")
    lost = tuple(replace(o, success_once=False, success_at_end=False, first_success=None) for o in done.outcomes)
    replace(done, outcomes=lost, policy="worse", policy_hash="worse").save(tmp_path / "worse")
    code, folder = play("second", f"against={tmp_path / 'worse'}")
    assert code == 0
    comparison = json.loads((folder / "result.json").read_text())["metrics"]["race"]
    assert (comparison["verdict"], comparison["n_max"], comparison["against"]) == (
        "b is better",
        12,
        "worse",
    )
    assert len((folder / "episodes.jsonl").read_text().splitlines()) < 12
    assert not (folder / "results.csv").exists()  # no rate is claimed from a part of the episodes
    assert "b is better after" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(SimulatorPool, "__enter__", lambda _: pytest.fail("a worker was started"))
        assert play("second", f"against={tmp_path / 'worse'}")[0] == 0
    assert "b is better after" in capsys.readouterr().err
    code, folder = play("equal", f"against={tmp_path / 'first'}")
    assert json.loads((folder / "result.json").read_text())["metrics"]["race"]["verdict"] == "not decided"
    assert play("other", f"against={tmp_path / 'first'}", "first_index=1")[0] == 2
    assert "first_index" in capsys.readouterr().err


def test_a_comparison_on_other_initial_states_ends_by_step(tmp_path, fake_libero, capsys):
    def play(name, *more):
        folder = tmp_path / name
        given = ["suite=libero_goal", "policy=expert", "episodes=6", "workers=1", "envs=2", f"run_dir={folder}"]
        return main(["benchmark", *given, "plan.alpha=0.3", *more]), folder

    assert play("all")[0] == 0
    task = EvalResult.load(tmp_path / "all").protocol.tasks[0]
    assert play("first", f"tasks=[{task}]")[0] == 0
    done = EvalResult.load(tmp_path / "first")
    lost = tuple(replace(o, success_once=False, success_at_end=False, first_success=None) for o in done.outcomes)
    replace(done, outcomes=lost, policy="worse", policy_hash="worse").save(tmp_path / "worse")
    against = [f"against={tmp_path / 'worse'}", "stopping=step", f"tasks=[{task}]"]
    code, folder = play("second", *against, "first_index=6")
    assert code == 0
    found = json.loads((folder / "result.json").read_text())
    comparison = found["metrics"]["race"]
    assert (
        comparison["rule"],
        comparison["verdict"],
        comparison["n_max"],
        comparison["solved_a"],
    ) == ("step", "b is better", 6, 0)
    assert found["protocol_hash"] != done.protocol.hash
    assert f"after {comparison['n']} of at most 6 episodes of each" in " ".join(capsys.readouterr().err.split())
    assert play("shared", *against)[0] == 2
    assert "share 6 initial states" in " ".join(capsys.readouterr().err.split())
