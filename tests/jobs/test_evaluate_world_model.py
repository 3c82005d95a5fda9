"""Unit under test: ``worldrl evaluate-world-model``, on episodes that the real simulator recorded and repeats."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from torch import nn

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import ArtefactError, RunDirectoryError, SettingError
from worldrl.core.rng import initial_weights
from worldrl.core.statistics.intervals import auroc, wilson
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.tensorfile import save_tensors
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.report.store import load_report_data
from worldrl.evaluation.world_model import fvd
from worldrl.evaluation.world_model.battery import Drift
from worldrl.evaluation.world_model.grasp_rule import GraspRule
from worldrl.evaluation.world_model.lpips import expected_shapes
from worldrl.evaluation.world_model.probe import ProbeSettings
from worldrl.jobs.data import collect, restyle
from worldrl.jobs.data.collect import CollectSettings
from worldrl.jobs.data.restyle import RestyleSettings
from worldrl.jobs.environment.report import ReportSettings
from worldrl.jobs.environment.report import main as rebuild
from worldrl.jobs.policy.serve_policy import ServePolicySettings, open_server
from worldrl.jobs.world_model import evaluate_world_model, report
from worldrl.jobs.world_model.evaluate_world_model import EvaluateWorldModelSettings, seen_facts
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.world_model import policy_rollouts as policy_dreams
from worldrl.recipes.world_model.lineage import learned_from
from worldrl.recipes.world_model.policy_rollouts import PolicyRolloutConfig
from worldrl.recipes.world_model.start import weights_folder
from worldrl.recipes.world_model.tables import QUANTITY, Findings, trust_table
from worldrl.recipes.world_model.unseen_episodes import continue_all, draw_scripts
from worldrl.rewards.config import GraspConfig, IdmConfig
from worldrl.rewards.grasp import GraspDynamics
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.readout import Column
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.trust.confidence import CONFIDENCE_SCORES
from worldrl.simulators.process import Launch
from worldrl.workers.link.boot import load_file
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel

FAKE = Path(__file__).parents[1] / "policies" / "fake_network.py"
fake = load_file("fake_network", FAKE)
PROBE = ProbeSettings(
    horizon=24, scattered=3, steps=4, batch=4, width=8, blocks=1, keypoints=2, hidden=8, checkpoint_every=2
)
REAL = (0.1, 0.2, 0.5, 0.7, 0.9)
TIMED = ("imagined_frames_per_s", "peak_rss_mb", "peak_device_mb")


@pytest.fixture(scope="module")
def unseen(tmp_path_factory):
    """Four episodes of each of two tasks, 32 pixels, successes and failures."""
    folder = tmp_path_factory.mktemp("unseen")
    fsync, os.fsync = os.fsync, lambda _descriptor: None
    try:
        settings = {"expert_episodes": 2, "wander_episodes": 2, "image_size": 32, "workers": 0, "hold_steps": 2}
        tasks = ["PickRedCube", "CloseDrawer"]
        collect.main(CollectSettings(run_dir=str(folder), tasks=tasks, envs_per_worker=2, **settings))
    finally:
        os.fsync = fsync
    return folder / "dataset"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, make_world_model):
    folder = tmp_path_factory.mktemp("model") / "world_model"
    make_world_model(size=32).save(folder, parents=[{"path": "elsewhere", "hash": "0" * 64}])
    return folder


@pytest.fixture(scope="module")
def settings_in(unseen, model_folder):
    """Make settings of a small run in a folder."""

    def make(run_dir, **over):
        return EvaluateWorldModelSettings(
            **{
                "run_dir": str(run_dir),
                "dtype": "float32",
                "threads": 1,
                "world_model": str(model_folder),
                "data": [str(unseen)],
                "episodes": 2,
                "horizons": [8, 32, 80],
                "batch": 3,
                "probe": PROBE,
                "speed_rows": [1, 2],
                "speed_chunks": 1,
                "filmstrips": 1,
                **over,
            }
        )

    return make


@pytest.fixture
def make_settings(settings_in, tmp_path):
    def make(**over):
        return settings_in(**{"run_dir": tmp_path / "run", **over})

    return make


@pytest.fixture(scope="module")
def whole(settings_in, tmp_path_factory):
    """A run that nothing stopped: its folder and its metrics."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, evaluate_world_model.main(settings_in(run))


def untimed(metrics):
    return {name: value for name, value in metrics.items() if name not in TIMED}


def test_a_run_leaves_numbers_with_intervals(whole, unseen):
    run, metrics = whole
    result = json.loads((run / "result.json").read_text())
    assert (result["schema"], result["command"]) == (1, "evaluate-world-model")
    for name in ("closed_loop.psnr", "closed_loop.ssim", "probe_error_cm", "probe_error_cm_real"):
        for horizon in (8, 32, 80):
            found = result["metrics"][f"{name}@{horizon}"]
            assert found.keys() == {"n", "value", "lo", "hi", "method"}
            assert found["lo"] <= found["value"] <= found["hi"]
            assert found["n"] == 4
    assert result["metrics"].keys() >= {"probe_error_cm@real", "action_swap_ratio", "static_psnr", *TIMED}
    for name in ("outcome_alignment", "false_success_rate", "precision", "recall"):
        rate = metrics[name]
        assert rate is None or rate["method"] == "wilson"
    assert metrics["outcome_alignment"]["n"] == 4
    assert metrics["repeated"]["rate"] == 1  # the simulator does what was recorded
    assert metrics["not_computed"].keys() == {"lpips", "fvd"}
    assert metrics["imagined_frames_per_s"].keys() == {"1", "2"}
    assert len(metrics["drift"]["psnr"]["step"]) == len(metrics["drift"]["probe_error_cm"]["lo"]) == 40
    assert metrics["data"]["hash"] == EpisodeDataset.open(unseen).fingerprint


def test_the_page_shows_drift_tables_and_filmstrips_and_can_be_rebuilt(whole, tmp_path):
    run, _ = whole
    page = (run / "report.html").read_text()
    shown = (
        "Outcome predicted correctly",
        "Horizon continuation",
        "False success",
        "Not computed: fvd",
        "PSNR over control steps",
    )
    assert [text for text in shown if text not in page] == []
    assert "Success per task" not in page
    assert "Imagined beside real" not in page  # of no policy
    data = load_report_data(run)
    assert len(data.filmstrips) >= 2
    assert all(strip.rows.keys() == {"real", "imagined"} for strip in data.filmstrips)
    assert [curve.title.split(" over")[0] for curve in data.curves] == [
        "PSNR",
        "SSIM",
        "Position error",
        "Across the line of sight",
    ]
    rebuilt = rebuild(ReportSettings(run_dir=str(run), output=str(tmp_path / "again.html")))
    assert (tmp_path / "again.html").read_text() == page
    assert rebuilt["verdict"] == "measured"


def test_the_closing_tables_show_the_chosen_columns(monkeypatch):
    number, rate = {"n": 2, "value": 0.5, "lo": 0.4, "hi": 0.6}, wilson(1, 2)
    numbers = dict.fromkeys(("action_swap_ratio", "static_psnr", "f1"), number)
    rates = dict.fromkeys(("repeated", "outcome_alignment", "precision", "recall", "false_success_rate"), rate)
    counts = {"confusion": dict.fromkeys(("tp", "fp", "fn", "tn"), 1), "tasks": {}, "recorded": {}}
    rest = {"imagined_frames_per_s": {}, "not_computed": {}, "seen": {"known": True}}
    drift = dict.fromkeys(QUANTITY, Drift(*np.zeros((4, 1)), n=2))
    printed = []
    monkeypatch.setattr(report, "print_table", lambda t, _, kept: printed.append([t.headers[k] for k in kept]))
    monkeypatch.setattr(report, "sentence", lambda findings: "")
    report.show(Findings({**numbers, **rates, **counts, **rest}, None, drift, (), 1, 0), Path("run"))
    assert printed == [
        [
            *("After", "PSNR (dB)", "SSIM", "PSNR of the worst further view (dB)", "Measured position error (cm)"),
            *("Position error (cm)", "Objects, between two views (cm)"),
        ],
        ["Test", "Measured"],
        ["Task", "Predicted correctly", "Precision", "Recall", "False successes"],
    ]


def test_a_killed_run_resumes_to_the_same_numbers(whole, settings_in, tmp_path):
    run, metrics = whole
    shutil.copytree(run, tmp_path / "killed")
    stages = tmp_path / "killed" / "stages"
    for file in ("01-probe/stage.json", "02-replays/00003.npz", "02-replays/stage.json", "../result.json"):
        (stages / file).unlink()
    shutil.rmtree(stages / "01-probe" / "checkpoints" / "step-00000004")
    kept = (stages / "02-replays" / "00000.npz").stat().st_mtime_ns
    assert untimed(evaluate_world_model.main(settings_in(tmp_path / "killed"))) == untimed(metrics)
    assert (stages / "02-replays" / "00000.npz").stat().st_mtime_ns == kept


def test_without_a_probe_and_with_lpips(make_settings, tmp_path):
    generator = torch.Generator().manual_seed(0)
    weights = {name: 0.05 * torch.randn(shape, generator=generator).abs() for name, shape in expected_shapes().items()}
    save_tensors(tmp_path / "alex.safetensors", weights)
    settings = make_settings(
        probe=ProbeSettings(steps=0),
        lpips=str(tmp_path / "alex.safetensors"),
        episodes=1,
        horizons=[8],
        continuation="hold",
    )
    metrics = evaluate_world_model.main(settings)
    assert metrics["closed_loop.lpips@8"]["value"] > 0
    assert metrics["not_computed"].keys() == {"probe_error_cm", "fvd"}
    assert not [name for name in metrics if name.startswith("probe_error_cm")]
    assert metrics["continuation"]["kind"] == "hold"
    assert "LPIPS over control steps" in (tmp_path / "run" / "report.html").read_text()


def test_a_model_of_two_views_gets_a_probe_of_each_and_their_distance(make_settings, make_world_model, tmp_path):
    tasks = {"tasks": ["PickRedCube"], "expert_episodes": 3, "image_size": 32, "workers": 0, "wrist": True, "seed": 7}
    collect.main(CollectSettings(run_dir=str(tmp_path / "two"), **tasks))
    one = make_world_model(size=32)
    config = VideoWorldModelConfig.from_json(
        {**one.config.to_json(), "cameras": ["image", "wrist_image"], "state": "measured"}
    )
    with initial_weights(0, "views"):
        VideoWorldModel(config, one.embodiment).save(tmp_path / "model")
    two = {"world_model": str(tmp_path / "model"), "data": [str(tmp_path / "two" / "dataset")], "speed_rows": [1]}
    metrics = evaluate_world_model.main(make_settings(**two))
    state, view = ("closed_loop.state_cm@8", "closed_loop.state_deg@8"), "closed_loop.view_psnr@8"
    for name in ("views_apart_cm@8", "views_apart_cm_real@8", *state, view):
        assert metrics[name]["n"] == 2
        assert 0 < metrics[name]["lo"] <= metrics[name]["value"] <= metrics[name]["hi"]
    assert metrics[view] != metrics["closed_loop.psnr@8"]
    assert "PSNR of the worst further view over control steps" in (tmp_path / "run" / "report.html").read_text()
    stages = tmp_path / "run" / "stages"
    assert {"01-probe", "01-probe-wrist_image"} < {stage.name for stage in stages.iterdir()}
    given = make_settings(run_dir=str(tmp_path / "given"), probe_from=str(stages / "01-probe" / "probe"), **two)
    reason = evaluate_world_model.main(given)["not_computed"]["views_apart_cm"]
    assert reason.startswith("probe_from brings a probe of the main view")


class Colours(nn.Module):
    """Stands in for I3D, which would take seconds per clip."""

    def forward(self, clips):
        return torch.cat([clips.mean(dim=(2, 3, 4)), clips.square().mean(dim=(2, 3, 4))], dim=1)


def test_clips_are_compared_where_i3d_is_given(make_settings, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(fvd, "load_i3d", lambda file: asked.append(file) or Colours())
    settings = make_settings(probe=ProbeSettings(steps=0), fvd="i3d.safetensors", horizons=[8, 80], speed_rows=[1])
    with pytest.raises(SettingError, match=r"needs 401 clips of 16 frames.* 4 episodes of 40 predicted frames hold 8"):
        evaluate_world_model.main(settings)
    assert not asked
    monkeypatch.setattr(fvd, "LEAST_VIDEOS", 8)
    found = evaluate_world_model.main(settings)
    assert asked == [Path("i3d.safetensors")]
    assert found["not_computed"].keys() == {"lpips", "probe_error_cm"}
    assert found["fvd"].keys() == {"n", "value", "lo", "hi", "method", "videos", "clip_frames"}
    assert (found["fvd"]["n"], found["fvd"]["videos"], found["fvd"]["clip_frames"]) == (4, 8, 16)
    assert found["fvd"]["lo"] < found["fvd"]["value"] < found["fvd"]["hi"]
    page = (tmp_path / "run" / "report.html").read_text()
    for text in ("8 real and as many imagined clips of 16 frames", "with fewer than 2048 clips it comes out too large"):
        assert text in page


def test_a_file_that_is_not_i3d_is_refused_before_anything_is_trained(make_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(fvd, "LEAST_VIDEOS", 8)
    save_tensors(tmp_path / "alex.safetensors", {"x": torch.zeros(1)})
    with pytest.raises(ArtefactError, match="not the state dict of I3D"):
        evaluate_world_model.main(make_settings(fvd=str(tmp_path / "alex.safetensors")))
    assert not (tmp_path / "run" / "stages").exists()


def test_a_wan_world_model_is_measured_like_any_other(make_settings, make_wan, tmp_path, monkeypatch):
    pytest.importorskip("diffusers")
    make_wan(size=32).save(tmp_path / "wan")
    monkeypatch.setattr(evaluate_world_model, "peak_device_mb", lambda device: 123.4)
    settings = make_settings(
        world_model=str(tmp_path / "wan"),
        probe=ProbeSettings(steps=0),
        episodes=1,
        horizons=[8],
        continuation="hold",
        speed_rows=[2],
    )
    settings.sampler.steps = 1
    metrics = evaluate_world_model.main(settings)
    assert metrics["closed_loop.psnr@8"]["n"] == metrics["outcome_alignment"]["n"] == 2
    assert metrics["action_swap_ratio"]["value"] > 0
    assert len(metrics["drift"]["psnr"]["step"]) > 8  # one frame per control step
    assert metrics["sampler"] == {"steps": 1, "refinement_steps": 0}
    speed = metrics["imagined_frames_per_s"]["2"]
    assert speed.keys() == {"latent", "decoded"}
    assert metrics["peak_device_mb"] == 123.4
    assert "Peak memory of the GPU" in (tmp_path / "run" / "report.html").read_text()
    again = make_settings(run_dir=str(tmp_path / "again"), world_model=str(tmp_path / "wan"), horizons=[8])
    again.sampler.refinement_steps = 1
    with pytest.raises(SettingError, match=r"sampler\.refinement_steps is the flow transformer's"):
        evaluate_world_model.main(again)


def test_data_that_the_model_was_trained_on_is_refused(make_settings, make_world_model, unseen, tmp_path):
    seen = {"path": str(unseen), "hash": EpisodeDataset.open(unseen).fingerprint}
    make_world_model(size=32).save(tmp_path / "trained", parents=[seen])
    with pytest.raises(SettingError, match="was trained on"):
        evaluate_world_model.main(make_settings(world_model=str(tmp_path / "trained")))
    assert not (tmp_path / "run").exists()


def test_what_it_learned_from_in_another_look_is_refused(make_settings, make_world_model, unseen, tmp_path):
    restyle.main(RestyleSettings(str(unseen), str(tmp_path / "looks"), styles=["dim"], workers=0))
    seen = learned_from([EpisodeDataset.open(tmp_path / "looks" / "dataset").subset([5])])
    make_world_model(size=32).save(tmp_path / "trained", learned=seen)
    with pytest.raises(SettingError, match=r"was trained on 1 of the 8 episodes of .* such as its episode 5"):
        evaluate_world_model.main(make_settings(world_model=str(tmp_path / "trained")))
    assert not (tmp_path / "run").exists()


def test_weights_that_do_not_say_what_they_saw_are_called_unknown(whole, make_settings, make_world_model, tmp_path):
    run, metrics = whole  # of a model that names a direct parent and no more
    assert metrics["seen"] == {"known": False, "datasets": 1, "episodes": 0}
    page = (run / "report.html").read_text()
    assert "are unseen is unknown" in page
    assert "unseen\xa0episode" not in page
    assert not seen_facts(Learned.read(weights_folder("bundled")))["known"]
    make_world_model(size=32).save(tmp_path / "model", learned=Learned(episodes=frozenset({"another"})))
    settings = make_settings(
        world_model=str(tmp_path / "model"), episodes=1, horizons=[8], probe=ProbeSettings(steps=0)
    )
    assert evaluate_world_model.main(settings)["seen"] == {"known": True, "datasets": 0, "episodes": 1}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "None of these episodes, in any visual style, is among the 1" in page


def test_another_model_in_the_same_folder_does_not_continue_the_run(make_settings, make_world_model, tmp_path):
    make_world_model(size=32).save(tmp_path / "model")
    settings = make_settings(
        world_model=str(tmp_path / "model"), episodes=1, horizons=[8], probe=ProbeSettings(steps=0)
    )
    evaluate_world_model.main(settings)
    make_world_model(size=32, seed=1).save(tmp_path / "model")
    with pytest.raises(RunDirectoryError, match=r"begun with other content: world_model\.hash"):
        evaluate_world_model.main(settings)


def test_a_probe_of_another_run_reads_alike_but_never_what_it_learned_from(whole, make_settings):
    run, metrics = whole
    probe = str(run / "stages" / "01-probe" / "probe")
    again = evaluate_world_model.main(make_settings(probe_from=probe))
    for name in ("probe_error_cm@32", "probe_error_cm@real", "closed_loop.psnr@32"):
        assert again[name] == metrics[name]
    assert again["probe"]["path"] == probe
    with pytest.raises(SettingError, match=r"was trained on \d of the evaluated episodes, such as"):
        evaluate_world_model.main(make_settings(run_dir=str(run.parent / "all"), probe_from=probe, episodes=4))
    with pytest.raises(ArtefactError):
        evaluate_world_model.main(make_settings(run_dir=str(run.parent / "none"), probe_from=str(run)))


def test_what_does_not_fit_is_refused(make_settings, make_world_model, push_dataset, tmp_path):
    with pytest.raises(SettingError, match="multiples of the model's 2 control steps"):
        evaluate_world_model.main(make_settings(horizons=[7]))
    make_world_model(size=16).save(tmp_path / "small")
    with pytest.raises(
        SettingError, match=r"32 by 32 pixels, the size of world_model=.* is 16; record them again with image_size=16"
    ):
        evaluate_world_model.main(make_settings(run_dir=str(tmp_path / "b"), world_model=str(tmp_path / "small")))
    with pytest.raises(SettingError, match="leaves none to train the probe"):
        evaluate_world_model.main(make_settings(run_dir=str(tmp_path / "c"), episodes=20))
    with pytest.raises(ArtefactError, match="nothing says where it began"):
        evaluate_world_model.main(
            make_settings(run_dir=str(tmp_path / "d"), data=[str(push_dataset)], world_model=str(tmp_path / "small"))
        )


@pytest.fixture(scope="module")
def grasp_folder(tmp_path_factory):
    with initial_weights(0, "grasp"):
        grasp = GraspDynamics(GraspConfig(width=8, blocks=1, keypoints=2, text_width=8, hidden=8), TOOL_ACTIONS)
    folder = tmp_path_factory.mktemp("grasp") / "grasp"
    grasp.save(folder)
    return folder


def test_a_rule_of_score_and_grasp_is_fitted_on_some_episodes_and_measured_on_others(
    make_settings, make_world_model, unseen, grasp_folder, tmp_path, monkeypatch
):
    def believing(*args):
        """All is imagined to succeed; what really did is drawn."""
        found = measured(*args)
        return replace(found, predicted=np.ones(len(found), bool), actual=np.arange(len(found)) % 2 > 0)

    measured = evaluate_world_model.measured
    monkeypatch.setattr(evaluate_world_model, "measured", believing)
    small = {"probe": ProbeSettings(steps=0), "horizons": [8], "speed_rows": [1], "grasp": str(grasp_folder)}
    tuning = evaluate_world_model.main(make_settings(run_dir=str(tmp_path / "tune"), grasp_rule="fit", **small))
    file = tmp_path / "tune" / "grasp_rule.json"
    assert tuning["grasp_rule"] == {
        "file": "grasp_rule.json",
        "weights": list(GraspRule.load(file).weights),
        "threshold": GraspRule.load(file).threshold,
    }
    assert not [name for name in tuning if name.endswith("with_grasp")]
    assert "fitted on these episodes" in tuning["not_computed"]["outcome_alignment.with_grasp"]
    with pytest.raises(SettingError, match=r"was fitted on 4 of the evaluated episodes, such as .*another seed"):
        evaluate_world_model.main(make_settings(run_dir=str(tmp_path / "same"), grasp_rule=str(file), **small))

    others = {"expert_episodes": 1, "image_size": 32, "workers": 0, "hold_steps": 2, "seed": 5}
    collect.main(CollectSettings(run_dir=str(tmp_path / "others"), tasks=["PickRedCube", "CloseDrawer"], **others))
    small |= {"data": [str(tmp_path / "others" / "dataset")], "grasp_rule": str(file)}
    found = evaluate_world_model.main(make_settings(run_dir=str(tmp_path / "judged"), **small))
    assert found["outcome_alignment.with_grasp"]["n"] == found["outcome_alignment"]["n"] == 2
    assert found["grasp_rule"]["path"] == str(file)
    assert "outcome_alignment.with_grasp" not in found["not_computed"]
    page = (tmp_path / "judged" / "report.html").read_text()
    assert [text for text in ("all, predicted by score and grasp", ">F1<") if text not in page] == []

    make_world_model(size=32, seed=1).save(tmp_path / "other_model")
    small["world_model"] = str(tmp_path / "other_model")
    with pytest.raises(SettingError, match=r"was fitted for something else: world_model"):
        evaluate_world_model.main(make_settings(run_dir=str(tmp_path / "another"), **small))


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"world_model": "scratch"}, "world_model=scratch"),
        ({"horizons": []}, "horizons"),
        ({"horizons": [8, 8]}, "horizons"),
        ({"speed_rows": [0]}, "speed_rows"),
        ({"continuation": "loop"}, "continuation"),
        ({"episodes": 0}, "episodes"),
        ({"data": []}, "data"),
        ({"dtype": "int8"}, "dtype"),
        ({"filmstrips": -1}, "filmstrips"),
        ({"idm": "somewhere"}, r"give policies\.folders"),
        ({"grasp": "somewhere"}, r"give policies\.folders=\[...\] or grasp_rule"),
        ({"grasp_rule": "fit"}, r"grasp_rule=fit: .*give grasp=FOLDER"),
    ],
)
def test_impossible_settings_are_refused(make_settings, over, message):
    with pytest.raises(SettingError, match=message):
        make_settings(**over)


def test_episodes_are_drawn_by_the_seed_and_kept_apart(unseen):
    data = EpisodeDataset.open(unseen)

    def drawn(seed, count=2):
        return [[script.spec.key for script in part] for part in draw_scripts(data, count, 10, seed=seed)]

    chosen, others = drawn(0)
    assert [len(chosen), len(others)] == [4, 4]
    assert not set(chosen) & set(others)
    assert drawn(0) == [chosen, others]
    assert any(drawn(seed) != [chosen, others] for seed in range(1, 5))
    twice = data.concatenate(data)  # the same initial states again are no other episodes
    for seed in range(5):
        chosen, others = ([s.spec.key for s in part] for part in draw_scripts(twice, 2, 10, seed=seed))
        assert not set(chosen) & set(others)


def test_continuations_depend_on_the_episode_and_the_seed_alone(unseen, robot):
    scripts, _ = draw_scripts(EpisodeDataset.open(unseen), 4, 0, seed=0)
    settings = {"continuation": "retrace", "embodiment": robot, "seed": 0}
    actions = continue_all(scripts, 120, **settings)
    assert all(action.shape == (120, 7) and np.abs(action).max() <= 1 for action in actions)
    for action, script in zip(actions, scripts, strict=True):
        np.testing.assert_array_equal(action[: len(script)], script.action)
    reordered = continue_all(scripts, 120, **settings)
    for a, b in zip(actions, reordered, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_tiny_preset_runs_as_typed(tmp_path):
    """From nothing, as a user would: collect, then measure the bundled model."""
    for command in ("collect", "evaluate-world-model"):
        line = [sys.executable, "-m", "worldrl", command, "preset=tiny"]
        run = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
    assert (tmp_path / "runs" / "evaluate-world-model-tiny" / "report.html").is_file()


def test_a_sign_that_is_the_same_for_all_imagined_rollouts_is_worth_nothing_measurable():
    believed, true = np.ones(4, bool), np.array([True, False, True, False])
    signs = {"score": np.array([0.9, 0.6, 0.8, 0.7]), "member_agreement": np.zeros(4)}
    found = policy_dreams.trust([policy_dreams.Judged({}, believed, true, signs, ("a", "a", "b", "b"))], seed=0)
    assert set(found["auroc"]) == {"score"}
    assert found["auroc"]["score"]["value"] == 1
    assert found["over_score"] == {}
    assert "the same for all" in found["not_measured"]["member_agreement"]


def test_a_sign_that_tells_policies_apart_and_nothing_within_them_is_worth_nothing_within():
    """One policy's imagined rollouts are confirmed more often and have the higher scores; in the other the score is the wrong way round."""
    signs = [{"score": np.array([0.9, 0.8, 0.7, 0.0])}, {"score": np.array([0.3, 0.2, 0.1, 0.0])}]
    true = [np.array([True, True, False, False]), np.array([False, False, True, False])]
    believed = np.array([True, True, True, False])
    judged = [policy_dreams.Judged({}, believed, t, s, ("a",) * 4) for t, s in zip(true, signs, strict=True)]
    found = policy_dreams.trust(judged, seed=0)
    assert found["auroc"]["score"]["value"] == pytest.approx(6 / 9)
    assert found["within"]["score"] == {"value": pytest.approx(2 / 4), "pairs": 4, "strata": 2, "of": 2}


def test_all_signs_at_hand_stand_in_one_table_the_best_one_first_and_against_the_score():
    """Score and grasp know of different imagined rollouts, so that their ranks together know more than each."""
    draws = np.random.default_rng(0)
    true = draws.random(300) < 0.7
    blind = draws.random(300) < 0.5
    signs = {name: draws.normal(size=300) for name in CONFIDENCE_SCORES}
    signs["score"] += 3 * true * blind
    signs["grasp_agreement"] += 3 * true * ~blind
    del signs["motion_agreement"]
    found = policy_dreams.trust([policy_dreams.Judged({}, np.ones(300, bool), true, signs, ("a",) * 300)], seed=0)
    both = found["auroc"]["score_and_grasp"]["value"]
    assert both > max(found["auroc"][name]["value"] for name in signs)
    ranks = rankdata(signs["score"]) + rankdata(signs["grasp_agreement"])
    assert both == pytest.approx(auroc(ranks[true], ranks[~true]))
    over = found["over_score"]["score_and_grasp"]
    assert over["value"] == pytest.approx(both - found["auroc"]["score"]["value"])
    assert 0 < over["lo"] < over["value"] < over["hi"]
    assert found["over_score"]["mean_resampled"]["hi"] < 0
    assert found["not_measured"] == {"motion_agreement": "give idm=FOLDER"}
    table = trust_table(found)
    assert len(table.rows) == len(CONFIDENCE_SCORES) + 1
    assert table.rows[0][0].startswith("sum of the ranks")
    assert [row[1] for row in table.rows][-1] == "not measured"
    values = [float(row[1].split()[0]) for row in table.rows[:-1]]
    assert values == sorted(values, reverse=True)


def test_a_correlation_needs_five_policies_that_differ():
    def policies(imagined):
        return [
            {"imagined": {"rate": rate}, "real": {"rate": real}} for rate, real in zip(imagined, REAL, strict=False)
        ]

    assert policy_dreams.correlation(policies([0.0, 0.3, 0.5, 0.8])) is None
    found = policy_dreams.correlation(policies([0.0, 0.3, 0.5, 0.8, 0.9]))
    assert found["n"] == 5
    assert 0.9 < found["r"] < 1
    assert policy_dreams.correlation(policies([0.5] * 5)) is None


def test_policies_imagine_beside_reality_and_a_second_start_repeats_nothing(
    settings_in, grasp_folder, tmp_path, monkeypatch
):
    folders = []
    for number in range(2):
        with initial_weights(number, "policy"):
            config = TokenPolicyConfig(
                image_size=32, chunk_length=4, width=8, blocks=1, keypoints=4, text_width=8, hidden=16
            )
            policy = TokenPolicy(config, PolicyStatistics(-torch.ones(7), torch.ones(7), torch.zeros(7), torch.ones(7)))
        folders.append(tmp_path / f"policy-{number}")
        policy.save(folders[-1])
    with initial_weights(0, "idm"):
        InverseDynamics(IdmConfig(width=8, blocks=1, keypoints=2, hidden=8), (Column("command", 0, "x"),)).save(
            tmp_path / "idm"
        )
    over = {
        "policies": PolicyRolloutConfig([str(f) for f in folders], imagined_rollouts=2, workers=0, envs_per_worker=2),
        "idm": str(tmp_path / "idm"),
        "grasp": str(grasp_folder),
    }
    settings = settings_in(tmp_path / "run", probe=ProbeSettings(steps=0), **over)
    metrics = evaluate_world_model.main(settings)
    assert [one["path"] for one in metrics["policies"]] == [str(f) for f in folders]
    for one in metrics["policies"]:
        assert one["imagined"]["n"] == one["real"]["n"] == 4  # two imagined rollouts of two tasks
        assert one["same_actions"]["outcome_alignment"]["n"] == 4
    assert metrics["imagined_real_pearson"] is None  # of two policies
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Confirmed successes" in page
    assert page.count('aria-label="Imagined against real success. ') == 1
    assert load_report_data(tmp_path / "run").imagined_real[1].real == metrics["policies"][1]["real"]
    if metrics["trust"]["imagined_successes"]:
        assert "motion_agreement" in metrics["trust"]["auroc"]
        assert "score_and_grasp" in {*metrics["trust"]["auroc"], *metrics["trust"]["not_measured"]}
    assert metrics["idm"]["path"] == str(tmp_path / "idm")
    assert metrics["grasp"]["hash"] == artefact_hash(grasp_folder)
    assert (tmp_path / "run" / "stages" / "03-policy-1" / "surprise.npz").is_file()
    monkeypatch.setattr(policy_dreams, "imagine_policy", None)
    monkeypatch.setattr(policy_dreams, "resample_rollouts", None)
    monkeypatch.setattr(policy_dreams, "rollout_motion_error", None)
    monkeypatch.setattr(policy_dreams, "collect_dataset", None)
    assert untimed(evaluate_world_model.main(settings)) == untimed(metrics)


def test_policies_behind_an_address_imagine_as_well(make_settings, tiny_policy, tmp_path):
    pytest.importorskip("websockets", reason="the extra serve brings it")
    servers = load_file("fake_openpi", Path(__file__).parents[1] / "fake_openpi.py")
    tiny_policy(image_size=32).save(tmp_path / "policy")
    given = ServePolicySettings(policy=str(tmp_path / "policy"), protocol="openpi", port=0)
    with servers.running(open_server(given)) as url:
        policy_rollouts = PolicyRolloutConfig([url], imagined_rollouts=1, workers=0, envs_per_worker=2)
        small = {"probe": ProbeSettings(steps=0), "horizons": [8], "speed_rows": [1], "episodes": 1}
        metrics = evaluate_world_model.main(make_settings(policies=policy_rollouts, **small))
    (found,) = metrics["policies"]
    assert found["real"]["n"] == found["imagined"]["n"] == 2
    assert found["hash"] == metrics["policy"]["hash"][0]


def test_policies_of_lerobot_imagine_as_well(make_settings, tmp_path, monkeypatch):
    """Its network in a worker of its own, in the imagined rollouts and in the simulator."""
    folder = fake.publish(tmp_path / "smolvla", size=32)
    worker = Launch("fake policy", sys.executable, f"{FAKE}:Fake", {"folder": str(folder)})
    monkeypatch.setattr("worldrl.policies.lerobot.policy.lerobot_launch", lambda folder, device: worker)
    policy_rollouts = PolicyRolloutConfig([str(folder)], imagined_rollouts=1, workers=0, envs_per_worker=2)
    small = {"probe": ProbeSettings(steps=0), "horizons": [8], "speed_rows": [1], "episodes": 1}
    metrics = evaluate_world_model.main(make_settings(policies=policy_rollouts, **small))
    (found,) = metrics["policies"]
    assert found["real"]["n"] == found["imagined"]["n"] == 2
    assert found["hash"] == metrics["policy"]["hash"][0] == policy_facts(folder).hash


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"type": "diffusion", "n_obs_steps": 2},
            r"observes 2 consecutive .* train one with world_model\.dynamics\.frame_stride=1",
        ),
        ({"size": 16}, r"does not fit the world model\n.*\n  image 16x16 +\| image 32x32"),
        ({"n_action_steps": 3}, "has another chunk_length than the world model"),
    ],
)
def test_a_policy_that_cannot_imagine_here_is_refused_before_anything_is_measured(
    make_settings, tmp_path, changes, words
):
    folder = fake.publish(tmp_path / "policy", **{"size": 32, **changes})
    with pytest.raises(SettingError, match=f"policies.folders: the policy in .*policy {words}"):
        evaluate_world_model.main(make_settings(policies=PolicyRolloutConfig([str(folder)])))
    assert not (tmp_path / "run" / "stages").exists()


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"horizons": [8, 10**9]}, r"horizons=\[8, 1000000000\]: the actions of"),
        ({"speed_rows": [10**9]}, r"speed_rows=\[1000000000\]"),
        ({"probe": replace(PROBE, horizon=10**9)}, "probe.horizon=1000000000"),
        (
            {"policies": PolicyRolloutConfig(folders=["p"], imagined_rollouts=10**9)},
            r"imagined_rollouts=10+ of 2 tasks",
        ),
    ],
)
def test_what_no_memory_holds_is_refused_before_the_first_episode(given, asked, settings_in, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate_world_model, "check_policies", lambda *_: None)
    monkeypatch.setattr(evaluate_world_model, "inputs_of", lambda *_: {})
    with pytest.raises(SettingError, match=rf"{asked}.*, which takes at least [\d,]+\.\d GB of memory"):
        evaluate_world_model.main(settings_in(tmp_path / "run", **given))
    assert not list((tmp_path / "run").rglob("*.npz"))
