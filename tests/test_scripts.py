"""Units under test: the scripts that measure row by row: which commands they give, and what they make of the numbers."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from worldrl.cli import compose_command, find_command
from worldrl.core.statistics.intervals import paired
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import EvalResult
from worldrl.rollout.real.specs import EpisodeOutcome
from worldrl_envs.style import beyond_sampling, get_style

NUMBER = {"n": 4, "value": 1.0, "lo": 0.5, "hi": 1.5, "method": "bootstrap"}
RATE = {"k": 3, "n": 4, "rate": 0.75, "lo": 0.3, "hi": 0.95, "method": "wilson"}
METRICS = {
    "train-vla": {
        "comparison": {"paired": {"diff": 0.2, "lo": 0.1, "hi": 0.3}},
        "verify": {"precision": RATE},
        "world_model": "stages/world_model",
    },
    "evaluate-world-model": {
        **{f"closed_loop.psnr@{h}": NUMBER for h in (8, 32, 64, 128, 256)},
        "action_swap_ratio": NUMBER,
        "outcome_alignment": RATE,
        "false_success_rate": None,
        "imagined_frames_per_s": {"64": {"latent": 200.0, "decoded": 100.0}},
        "drift": {"psnr": {"step": [2, 32, 64, 128, 256]}},
    },
}


PROTOCOL = EvalProtocol(
    suite="worldrl_envs",
    suite_version="2",
    tasks=("PickRedCube",), episodes_per_task=20, seed=3, horizon={"PickRedCube": 40}, chunk_length=8, replan=8, control_hz=20.0,
    packages={},
)  # fmt: skip


def aligned_plans(row):
    """How a row's last policy did: of twenty states the first ten are solved, without masks the first four."""
    solved = 4 if row.endswith("no_masks") else 10
    outcomes = [EpisodeOutcome(spec, n < solved, False, 40, None) for n, spec in enumerate(PROTOCOL.specs())]
    return EvalResult(PROTOCOL, row, row, tuple(outcomes))


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
        if command == "train-vla":
            aligned_plans(folder.name).save(folder / "stages" / "05-after" / "evaluation")
        if command == "evaluate-world-model":
            metrics["sampler"] = {
                "steps": settings.sampler.steps,
                "refinement_steps": settings.sampler.refinement_steps,
            }
        (folder / "result.json").write_text(json.dumps({"metrics": metrics}))

    monkeypatch.setattr(subprocess, "run", run)
    return asked


@pytest.fixture
def errors(script, monkeypatch):
    """Each episode's squared errors: without the anchor a tenth more than in every other row."""
    draws = np.random.default_rng(0).uniform(0.01, 0.02, (20, 5))

    def measures(folder, *names):
        return SimpleNamespace(error=draws * (1.1 if folder.name == "no_anchor-drift" else 1.0))

    monkeypatch.setattr(script("measured_rows"), "measures", measures)


def ablate(script, tmp_path, *arguments):
    return script("ablations").main(["supervised=p", "unseen=u/dataset", f"out={tmp_path}", *arguments])


def test_quick_rows_share_recordings_and_codec_and_the_loop_begins_with_the_bundle(
    script, commands, errors, tmp_path, capsys
):
    asked = "rows=full,no_anchor,no_near_success,no_bootstrapping,styles,loop_full,loop_no_masks"
    assert ablate(script, tmp_path, "scale=quick", asked) == 0
    named = [command for command, _ in commands]
    assert named.count("collect") == 3
    assert named.count("restyle") == 3  # two recordings, and the unseen episodes
    worlds = {Path(s.run_dir).name: s for command, s in commands if command == "train-world-model"}
    assert sorted(worlds) == [f"{name}-world" for name in ("full", "no_anchor", "no_bootstrapping", "no_near_success", "styles")]  # fmt: skip
    assert {world.codec for world in worlds.values()} == {"bundled"}
    assert not worlds["no_anchor-world"].model.dynamics.reference
    assert worlds["full-world"].model.dynamics.reference
    assert (worlds["no_bootstrapping-world"].training.bootstrap, worlds["full-world"].training.bootstrap) == (0, 0.3)
    assert len(worlds["full-world"].data) == len(worlds["no_near_success-world"].data) == 2
    assert sum("styled" in folder for folder in worlds["styles-world"].data) == 2
    loops = {Path(s.run_dir).name: s for command, s in commands if command == "train-vla"}
    assert sorted(loops) == ["loop_full", "loop_no_masks"]
    assert {loop.start for loop in loops.values()} == {"bundled"}
    assert (loops["loop_no_masks"].improvement.stop_at_success, loops["loop_full"].improvement.stop_at_success) == (False, True)  # fmt: skip
    printed = capsys.readouterr().out.splitlines()
    no_drift = "| – | – | – | – | – |"
    assert sum("| +20.0 [+10.0, +30.0] |" in line and no_drift in line for line in printed) == 2
    assert sum("| – | – | 1.0 [0.5, 1.5] |" in line for line in printed) == 5  # the world models' no gain

    assert sum("| +0.00 [+0.00, +0.00] |" in line for line in printed) == 3  # the full row has nothing to lose against
    assert sum("| +0.41 [+0.41, +0.41] |" in line for line in printed) == 1  # 10 log10(1.1), paired

    done = len(commands)
    assert ablate(script, tmp_path, "scale=quick", asked) == 0
    assert len(commands) == done  # nothing runs twice
    with pytest.raises(SystemExit, match=r"table-quick.json: full was measured under other settings \(rounds\)"):
        ablate(script, tmp_path, "scale=quick", asked, "rounds=3")


@pytest.mark.parametrize("scale", ["quick", "practised", "full"])
def test_every_row_is_a_valid_run_and_differs_from_the_full_one(script, commands, errors, tmp_path, scale):
    assert ablate(script, tmp_path, f"scale={scale}") == 0
    table = json.loads((tmp_path / f"table-{scale}.json").read_text())
    assert [row["row"] for row in table] == [row.name for row in script("ablations").rows_of(scale)]
    listed = {"no_anchor", "no_memory_noise", "no_near_success", "no_success_loss", "no_bootstrapping"}
    listed |= {"latent_buffer", "loop_no_coevolution", "loop_no_masks", "loop_keyframes", "loop_hallucination"}
    assert {row["row"] for row in table} >= listed
    changed: dict[str, str] = {}
    for command, settings in commands:
        if command in ("train-vla", "train-world-model"):
            own = {"run_dir": None} | ({} if scale != "practised" or command != "train-vla" else {"start": None})
            row = Path(settings.run_dir).name.removesuffix("-world")
            changed[row] = changed.get(row, "") + repr({**vars(settings), **own})
    assert sorted(changed) == sorted(row["row"] for row in table)
    assert len(set(changed.values())) == len(table)


def test_practised_rows_practise_in_the_world_they_learned_and_refine_it_without_what_they_leave_out(
    script, commands, errors, tmp_path
):
    assert ablate(script, tmp_path, "scale=practised", "rows=full,no_bootstrapping,no_near_success", "threads=1") == 0
    worlds = {Path(s.run_dir).name: s for command, s in commands if command == "train-world-model"}
    loops = {Path(s.run_dir).name: s for command, s in commands if command == "train-vla"}
    assert {name: loop.start for name, loop in loops.items()} == {
        name: f"{worlds[f'{name}-world'].run_dir}/world_model"
        for name in ("full", "no_bootstrapping", "no_near_success")
    }
    assert {loop.rounds for loop in loops.values()} == {1}
    assert {loop.threads for loop in loops.values()} == {1}
    assert worlds["full-world"].training.steps == 3000
    assert worlds["full-world"].training.bootstrap > 0
    assert loops["full"].training.bootstrap > 0
    assert worlds["no_bootstrapping-world"].training.bootstrap == loops["no_bootstrapping"].training.bootstrap == 0
    assert loops["full"].collection.expert_episodes > loops["no_near_success"].collection.expert_episodes == 0
    table = json.loads((tmp_path / "table-practised.json").read_text())
    assert all(row["gain"] and row["psnr"] for row in table)
    assert [row.get("difference", {}).get("to") for row in table] == [None, "full", "full"]


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_the_buffer_of_latent_rollouts_is_what_bootstrapped_steps_continue(script, commands, errors, tmp_path, scale):
    """As likely as in the full row, and from rollouts of any depth."""
    assert ablate(script, tmp_path, f"scale={scale}", "rows=full,latent_buffer") == 0
    full, buffer = (
        settings.training if command == "train-world-model" else settings.scratch.training
        for command, settings in commands
        if command in ("train-world-model", "train-vla")
    )
    assert (full.bootstrap_rows, full.bootstrap) == (0, 0.3)
    assert buffer == replace(full, bootstrap_rows=64)
    assert buffer.bootstrap_rows >= buffer.batch


def test_keyframes_are_drawn_as_often_as_they_were_found_trustworthy(script, commands, errors, tmp_path):
    assert ablate(script, tmp_path, "scale=quick", "rows=loop_full,loop_hallucination") == 0
    full, row = (settings.improvement for command, settings in commands if command == "train-vla")
    assert full.p_keyframe == 0
    assert row == replace(full, p_keyframe=1.0, keyframe_schedule="hallucination")


def test_rows_of_several_calls_make_one_table_and_are_paired_with_their_full_row(script, commands, tmp_path, capsys):
    """The loop's rows one at a time, without unseen episodes, the one that the others differ from not first."""
    ablate = script("ablations").main
    given = ["supervised=p", f"out={tmp_path}", "seed=7"]
    for rows in ("loop_no_masks", "loop_full", "loop_grpo_no_masks,loop_grpo"):
        capsys.readouterr()
        assert ablate([*given, f"rows={rows}"]) == 0
    table = json.loads((tmp_path / "table-full.json").read_text())
    assert [row["row"] for row in table] == ["loop_full", "loop_no_masks", "loop_grpo", "loop_grpo_no_masks"]
    expected = paired([n < 10 for n in range(20)], [n < 4 for n in range(20)])
    found = {row["row"]: row.get("difference") for row in table}
    assert found["loop_full"] is None
    assert found["loop_no_masks"] == {"to": "loop_full", **expected}
    assert found["loop_grpo_no_masks"] == {"to": "loop_grpo", **expected}
    assert found["loop_grpo"]["diff"] == 0
    interval = f"-30.0 [{100 * expected['lo']:+.1f}, {100 * expected['hi']:+.1f}]"
    printed = capsys.readouterr().out.splitlines()
    assert f"| loop_no_masks | +20.0 [+10.0, +30.0] | {interval} to loop_full, 20 states |" in "\n".join(printed)
    assert len(printed) == 2 + len(table)
    runs = {Path(settings.run_dir).name: settings for _, settings in commands}
    assert {run.start for run in runs.values()} == {"bundled"}
    assert {run.seed for run in runs.values()} == {7}
    assert {runs[name].improvement.algorithm for name in ("loop_grpo", "loop_grpo_no_masks")} == {"grpo"}
    with pytest.raises(SystemExit, match=r"table-full.json: loop_full was measured under other settings \(seed\)"):
        ablate(["supervised=p", f"out={tmp_path}", "seed=8", "rows=loop_keyframes"])
    assert len(commands) == 4  # refused before anything runs
    assert len(json.loads((tmp_path / "table-full.json").read_text())) == 4
    assert ablate([*given, "rows=loop_full,no_anchor"]) == 2
    assert "rows ['no_anchor'] measure a world model; give unseen=FOLDER" in capsys.readouterr().err


def test_a_table_keeps_rows_that_this_version_calls_otherwise_or_not_at_all(script, commands, tmp_path, capsys):
    ablate, file = script("ablations").main, tmp_path / "table-full.json"
    given = ["supervised=p", f"out={tmp_path}", "seed=7"]
    assert ablate([*given, "rows=loop_full"]) == 0
    (row,) = json.loads(file.read_text())
    renamed = {
        **row,
        "row": "loop_of_old",
        "difference": {"to": "loop_full", "diff": -0.1, "lo": -0.2, "hi": 0.0, "n": 9},
    }
    file.write_text(json.dumps([renamed, row]))
    capsys.readouterr()
    assert ablate([*given, "rows=loop_no_masks"]) == 0
    table = json.loads(file.read_text())
    assert [row["row"] for row in table] == ["loop_full", "loop_no_masks", "loop_of_old"]
    assert table[-1] == renamed
    said = capsys.readouterr()
    assert "no rows of this version are ['loop_of_old']" in said.err
    assert "| loop_of_old | +20.0 [+10.0, +30.0] | -10.0 [-20.0, +0.0] to loop_full, 9 states |" in said.out


def test_a_table_from_before_settings_were_kept_says_how_it_goes_on(script, commands, tmp_path):
    ablate, file = script("ablations").main, tmp_path / "table-full.json"
    given = ["supervised=p", f"out={tmp_path}", "seed=7"]
    assert ablate([*given, "rows=loop_full"]) == 0
    (row,) = json.loads(file.read_text())
    options = row.pop("options")
    file.write_text(json.dumps([row]))
    with pytest.raises(SystemExit, match="loop_full do not tell under which settings") as refused:
        ablate([*given, "rows=loop_no_masks"])
    advised = re.search(r'write "options": (\{.*?\}) into each', str(refused.value))
    assert json.loads(advised[1]) == options
    file.write_text(json.dumps([{**row, "options": json.loads(advised[1])}]))
    assert ablate([*given, "rows=loop_no_masks"]) == 0
    assert [row["row"] for row in json.loads(file.read_text())] == ["loop_full", "loop_no_masks"]


def test_numbers_of_an_earlier_version_can_be_paired(script, tmp_path):
    """They hold less than a present evaluation's; only what is asked for is read."""
    folder = tmp_path / "stages" / "02-replays"
    folder.mkdir(parents=True)
    for part in range(2):
        np.savez(folder / f"{part:05d}.npz", error=np.full((3, 4), part))
    assert script("measured_rows").measures(tmp_path, "error").error.tolist() == [[0] * 4] * 3 + [[1] * 4] * 3


def test_unknown_rows_and_missing_words_are_refused(script, tmp_path, capsys):
    assert script("ablations").main(["unseen=u"]) == 2
    assert ablate(script, tmp_path, "scale=quick", "rows=no_masks") == 2
    assert "unknown rows ['no_masks']" in capsys.readouterr().err


def test_decibels_lost_are_paired_and_against_the_most_steps(script, commands, tmp_path, monkeypatch, capsys):
    table = script("sampler_table")
    draws = np.random.default_rng(0).uniform(0.5, 1.5, (30, 5))

    def measures(folder, *names):
        return SimpleNamespace(error=0.01 * draws * (10**0.05 if folder.name == "bundled-1-0" else 1.0))

    monkeypatch.setattr(script("measured_rows"), "measures", measures)
    assert table.main(["data=u", f"out={tmp_path}", "steps=1,4", "refinement=0"]) == 0
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["steps"] for row in rows] == [1, 4]
    # The same episodes on both sides: half a decibel, and no doubt about it.
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


def test_what_styles_cost_is_paired_and_judged_against_a_third(script, commands, tmp_path, monkeypatch, capsys):
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
