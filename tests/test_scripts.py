"""Units under test: the scripts that measure row by row: which commands they give, and what they make of the numbers."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from worldrl.cli import compose_command, find_command
from worldrl_envs.style import beyond_sampling, get_style

NUMBER = {"n": 4, "value": 1.0, "lo": 0.5, "hi": 1.5, "method": "bootstrap"}
RATE = {"k": 3, "n": 4, "rate": 0.75, "lo": 0.3, "hi": 0.95, "method": "wilson"}
METRICS = {
    "evaluate-world-model": {
        **{f"closed_loop.psnr@{h}": NUMBER for h in (8, 32, 64, 128, 256)},
        "action_swap_ratio": NUMBER,
        "outcome_alignment": RATE,
        "false_success_rate": None,
        "imagined_frames_per_s": {"64": {"latent": 200.0, "decoded": 100.0}},
        "drift": {"psnr": {"step": [2, 32, 64, 128, 256]}},
    },
}


@pytest.fixture
def commands(monkeypatch):
    """What would have run: command, composed settings; every command leaves a result."""
    asked = []

    def run(tokens, check):
        command, overrides = tokens[3], tokens[4:]
        settings = compose_command(find_command(command), overrides)
        asked.append((command, settings))
        folder = Path(settings.run_dir)
        folder.mkdir(parents=True)
        metrics = dict(METRICS.get(command, {}))
        if command == "evaluate-world-model":
            metrics["sampler"] = {
                "steps": settings.sampler.steps,
                "refinement_steps": settings.sampler.refinement_steps,
            }
        (folder / "result.json").write_text(json.dumps({"metrics": metrics}))

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_numbers_of_an_earlier_version_can_be_paired(script, tmp_path):
    """They hold less than a present evaluation's; only what is asked for is read."""
    folder = tmp_path / "stages" / "02-replays"
    folder.mkdir(parents=True)
    for part in range(2):
        np.savez(folder / f"{part:05d}.npz", error=np.full((3, 4), part))
    assert script("measured_rows").measures(tmp_path, "error").error.tolist() == [[0] * 4] * 3 + [[1] * 4] * 3


def test_decibels_lost_are_paired_and_against_the_most_steps(script, commands, tmp_path, monkeypatch, capsys):
    table = script("sampler_table")
    draws = np.random.default_rng(0).uniform(0.5, 1.5, (30, 5))

    def measures(folder, *names):
        return SimpleNamespace(error=0.01 * draws * (10**0.05 if folder.name == "bundled-1-0" else 1.0))

    monkeypatch.setattr(script("measured_rows"), "measures", measures)
    assert table.main(["data=u", f"out={tmp_path}", "steps=1,4", "refinement=0"]) == 0
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["steps"] for row in rows] == [1, 4]
    # The same episodes on both sides: half a decibel, beyond noise.
    for horizon in ("128", "256"):
        assert [rows[0]["lost"][horizon][end] for end in ("value", "lo", "hi")] == pytest.approx([0.5] * 3)
        assert rows[1]["lost"][horizon]["value"] == 0
    printed = capsys.readouterr().out
    assert "| +0.50 [+0.50, +0.50] | +0.50 [+0.50, +0.50] |" in printed
    assert "| 100 |" in printed
    assert [s.horizons for _, s in commands] == [[32, 64, 128, 256]] * 2


def test_a_flow_map_is_rows_beside_its_start_and_loses_against_its_own_most_steps(
    script, commands, tmp_path, monkeypatch
):
    table = script("sampler_table")

    def measures(folder, *names):
        factor = {"bundled-8-0": 1.0, "bundled-8-1": 0.5, "flow-map-bundled-8-0": 10**0.2}.get(folder.name, 10**0.1)
        return SimpleNamespace(error=np.full((30, 5), 0.01 * factor))

    monkeypatch.setattr(script("measured_rows"), "measures", measures)
    asked = ["data=u", "flow_map=d,e", "flow_map.flow_map_steps=9", "steps=1,8", f"out={tmp_path}", "threads=1"]
    assert table.main(asked) == 0
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [(Path(row["folder"]).name, row["lost"]["256"]["value"]) for row in rows] == [
        ("bundled-1-0", pytest.approx(1)),
        ("bundled-1-1", pytest.approx(1)),
        ("bundled-8-0", 0),
        ("bundled-8-1", pytest.approx(-10 * np.log10(2))),
        ("flow-map-bundled-1-0", pytest.approx(-1)),  # against its own eight steps, not those of its start
        ("flow-map-bundled-1-1", pytest.approx(-1)),
        ("flow-map-bundled-8-0", 0),
        ("flow-map-bundled-8-1", pytest.approx(-1)),
    ]
    trained = [settings for command, settings in commands if command == "train-world-model"]
    assert [(one.start, one.data) for one in trained] == [("bundled", ["d", "e"])]
    training = trained[0].training
    assert (training.codec_steps, training.steps, training.flow_map_steps) == (0, 0, 9)
    assert training.on_policy_steps == 300
    assert training.outcome_steps > 0  # it reads what the dynamics computes
    measured = [settings for command, settings in commands if command == "evaluate-world-model"]
    assert {settings.world_model for settings in measured} == {
        "bundled",
        str(tmp_path / "flow-map-bundled" / "world_model"),
    }
    assert {settings.threads for settings in measured} == {1}
    done = len(commands)
    assert table.main(asked) == 0
    assert len(commands) == done


def test_what_styles_cost_is_paired_and_measured_against_a_third(script, commands, tmp_path, monkeypatch, capsys):
    styles = script("style_robustness")
    wrong = {"start-other-looks": 40, "plain-other-looks": 30, "styled-other-looks": 10}

    def measures(folder, *names):
        predicted = np.arange(100) >= wrong.get(folder.name, 0)
        return SimpleNamespace(name=np.arange(100), predicted=predicted, actual=np.ones(100, bool))

    monkeypatch.setattr(styles, "measures", measures)
    assert styles.main(["data=d", "unseen=u", f"out={tmp_path}", "episodes=5"]) == 0
    found = json.loads((tmp_path / "table.json").read_text())
    assert [row["lost"]["value"] for row in found["rows"]] == pytest.approx([40, 30, 10])
    assert found["excess_over_a_third"]["value"] == pytest.approx(0)
    assert found["rows"][0]["lost"]["lo"] > 25
    assert "asked: at most 0" in capsys.readouterr().out
    trained = {Path(s.run_dir).name: s for command, s in commands if command == "train-world-model"}
    assert trained["plain"].training == trained["styled"].training
    assert trained["plain"].data == ["d", "d"]
    assert trained["styled"].data == ["d", str(tmp_path / "data-looks" / "dataset")]
    looks = {Path(s.run_dir).name: s.styles for command, s in commands if command == "restyle"}
    assert looks["data-looks"] == ["sampled"]
    assert [name for name in looks["unseen-looks"] if not beyond_sampling(get_style(name))] == []


def test_backends_get_the_same_time_whatever_a_step_costs(script, commands, tmp_path, monkeypatch, capsys):
    """A codec step costs 1 s, a transformer's 2, a U-Net's 20; whatever else a training does costs 30."""
    backends = script("backends_table")

    def cost(folder):
        settings = next(s for command, s in commands if command == "train-world-model" and s.run_dir == str(folder))
        step = {"flow_transformer": 2.0, "edm_unet": 20.0}[settings.model.dynamics.kind]
        return 30 + settings.training.codec_steps + step * settings.training.steps

    monkeypatch.setattr(backends, "cpu_seconds", cost)
    asked = ["data=d,e", "unseen=u", "minutes=10", "batch.edm_unet=4", f"out={tmp_path}"]
    assert backends.main(asked) == 0
    flow, unet = json.loads((tmp_path / "table.json").read_text())
    assert flow["steps"] == {"codec_steps": 120, "steps": 240}
    assert unet["steps"] == {"steps": 30}
    assert [row["cpu_minutes"] for row in (flow, unet)] == pytest.approx([10, 10])
    trained = {Path(s.run_dir).name: s for command, s in commands if command == "train-world-model"}
    assert trained["flow_transformer"].data == trained["edm_unet"].data == ["d", "e"]
    assert (trained["flow_transformer"].training.batch, trained["edm_unet"].training.batch) == (32, 4)
    assert (trained["edm_unet"].training.codec_steps, trained["edm_unet"].codec) == (0, None)
    assert "| edm_unet | 30 | 10.0 |" in capsys.readouterr().out


# --- scripted experts -------------------------------------------------------------------------------------------------


def test_experts_are_measured_on_each_tasks_stored_states_in_both_domains(script, monkeypatch, tmp_path, capsys):
    """Each stored state with looks of its own; the table and the file say how many succeeded, by domain."""
    experts, asked = script("check_experts"), []

    def episode(env, expert, begin):
        asked.append((env.spec.id.split("/")[1], env.unwrapped.domain, begin))
        return begin["options"]["init_id"] != 1, 30

    monkeypatch.setattr(experts, "run_episode", episode)
    tasks = ["BimanualOpenDrawer", "BimanualLiftPot"]
    given = [
        "--tasks",
        *tasks,
        "--states",
        "stored",
        "--episodes",
        "3",
        "--domains",
        "clean",
        "randomised",
        "--seed",
        "7",
    ]
    experts.main([*given, "--out", f"{tmp_path}/out.json"])
    assert asked[:3] == [
        ("BimanualOpenDrawer-v0", "clean", {"seed": 7 + k, "options": {"init_id": k}}) for k in range(3)
    ]
    assert [(task, domain) for task, domain, _ in asked[::3]] == [
        (f"{task}-v0", domain) for domain in ("clean", "randomised") for task in tasks
    ]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["states"] == "stored"
    row = found["tasks"]["randomised"]["BimanualLiftPot"]
    assert (row["success"]["k"], row["success"]["n"], row["failed"]) == (2, 3, [1])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 6
    assert said[-1].split()[:3] == ["all", "randomised", "4/6"]
    assert experts.start("sampled", 2, 7) == {"seed": 7, "options": {"index": 2}}


def test_experts_of_what_nobody_has_are_refused(script, capsys):
    experts = script("check_experts")
    for given, words in (
        (["--kind", "object", "--domains", "randomised"], "PickRedCube is of one arm"),
        (["--states", "stored"], "50 states are stored"),
        (["--episodes", "0"], "at least 1"),
    ):
        with pytest.raises(SystemExit):
            experts.parse(given)
        assert words in capsys.readouterr().err
    assert len(experts.parse(["--kind", "bimanual"]).tasks) == 7
