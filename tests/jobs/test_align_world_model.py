"""The job on a tiny planner: result, report, resume, actions instead of instructions, and what it refuses."""

import json
from functools import partial

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.storage.artefact import artefact_hash, read_manifest
from worldrl.core.storage.learned import Learned
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.diffusion.sde import make_schedule
from worldrl.jobs.environment import report
from worldrl.jobs.motion import align_world_model
from worldrl.jobs.motion.align_world_model import AlignWorldModelSettings
from worldrl.methods.alignment.branch_grpo import check_splits
from worldrl.methods.rl import loop
from worldrl.recipes.world_model.lineage import learned_from
from worldrl.registry import VIDEO_REWARDS
from worldrl.settings import compose
from worldrl.world_models.video.model import VideoWorldModel


class Bright:
    """Mean brightness, and the darkness of the folder's name."""

    def __init__(self, folder, terms, device):
        self.names = tuple(terms) or ("bright", "dark")
        self.folder = folder

    def score(self, videos):
        light = videos.frames[:, 1:].float().mean(dim=(1, 2, 3, 4)) / 255
        return torch.stack([{"bright": light, "dark": -light}[name] for name in self.names], dim=1)


@pytest.fixture
def planner(make_world_model, tmp_path):
    make_world_model(planning=True, spread=0.3).save(tmp_path / "planner")
    return str(tmp_path / "planner")


@pytest.fixture
def settings(planner, push_dataset, tmp_path, monkeypatch):
    """Compose the tiny preset with the tiny planner and the made-up reward."""
    monkeypatch.setattr(VIDEO_REWARDS, "get", lambda name: Bright)

    def make(run="run", **over):
        given = {
            "preset": "tiny",
            "data": f"['{push_dataset}']",
            "start": planner,
            "run_dir": str(tmp_path / run),
            "rewards": "[plug.bright]",
            "alignment.learning_rate": "0.01",
            "alignment.iterations": "3",
            "alignment.group_size": "3",
            **{key.replace("__", "."): str(value) for key, value in over.items()},
        }
        return compose("align-world-model", AlignWorldModelSettings, given)

    return make


def test_a_run_leaves_a_model_a_result_and_a_page(settings, tmp_path, planner):
    metrics = align_world_model.main(settings())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["schema"], result["command"]) == (1, "align-world-model")
    assert result["metrics"] == json.loads(json.dumps(metrics))
    assert (metrics["starts"], metrics["held_out_starts"]) == (8, 8)
    bright = metrics["terms"]["bright"]
    assert bright["gain"]["value"] == pytest.approx(bright["after"]["value"] - bright["before"]["value"])
    assert bright["gain"]["value"] != 0
    assert metrics["terms"].keys() == {"bright", "pixel_motion"}
    assert (metrics["weights"], metrics["mixing"]) == ({"bright": 1.0}, "gdpo")
    kept, moved = metrics["motion_kept"], metrics["terms"]["pixel_motion"]
    assert kept["value"] == pytest.approx(moved["after"]["value"] - 0.9 * moved["before"]["value"])
    assert (kept["n"], kept["verdict"]) == (
        8,
        "kept" if kept["lo"] > 0 else "lost" if kept["hi"] < 0 else "not decided",
    )
    start, aligned = (VideoWorldModel.load(folder).state_dict() for folder in (planner, tmp_path / "run/world_model"))
    changed = {name.split(".")[0] for name in start if not torch.equal(start[name], aligned[name])}
    assert changed == {"dynamics"}
    page = (tmp_path / "run" / "report.html").read_text()
    for words in (
        "In imagination, over 8",
        "Gain in bright",
        f"Motion {kept['verdict']}",
        "bright (reward)",
        "bright (spread)",
        "Start 1: pick up the",
        "before",
        "Wilson",
    ):
        assert words in page
    assert report.main(report.ReportSettings(run_dir=str(tmp_path / "run")))["bytes"] == len(page.encode())


def test_the_aligned_model_remembers_its_data_and_what_its_weights_saw(
    settings, make_world_model, push_dataset, tmp_path
):
    """So that evaluate-world-model can tell which episodes it has not seen."""
    dataset, before = EpisodeDataset.open(push_dataset), Learned(frozenset({"d" * 64}), frozenset({"an earlier one"}))
    make_world_model(planning=True, spread=0.3).save(tmp_path / "knows", learned=before)
    align_world_model.main(settings(start=str(tmp_path / "knows"), alignment__iterations=1))
    learned = Learned.read(tmp_path / "run" / "world_model")
    assert learned == before | learned_from([dataset])
    assert learned.complete
    assert len(learned.episodes) > 1
    parents = [parent["hash"] for parent in read_manifest(tmp_path / "run" / "world_model")["parents"]]
    assert parents == [dataset.fingerprint, artefact_hash(tmp_path / "knows")]


def test_low_rank_additions_are_merged_into_an_ordinary_folder(settings, tmp_path, planner):
    metrics = align_world_model.main(settings(lora__rank=2))
    assert 0 < metrics["trained_share"] < 0.5
    assert metrics["terms"]["bright"]["gain"]["value"] != 0
    start, aligned = (VideoWorldModel.load(folder).state_dict() for folder in (planner, tmp_path / "run/world_model"))
    assert start.keys() == aligned.keys()
    changed = [name for name in start if not torch.equal(start[name], aligned[name])]
    assert changed
    for name in changed:
        assert name.startswith("dynamics.blocks.")
        assert torch.linalg.matrix_rank(aligned[name] - start[name], atol=1e-4) <= 2
    # What was measured last is what the folder holds.
    again = align_world_model.main(settings("again", start=f"{tmp_path}/run/world_model"))
    assert again["terms"]["bright"]["before"] == metrics["terms"]["bright"]["after"]


def test_weights_decide_what_a_mixture_climbs(settings):
    """Two opposite terms: whichever weighs more is climbed; at weight 0 a term is only measured."""
    gains = {}
    for name, weights in (("up", "[1,0]"), ("down", "[0.1,1]"), ("alike", "[1,1]")):
        metrics = align_world_model.main(settings(name, rewards="[plug.bright,plug.dark]", weights=weights))
        gains[name] = metrics["terms"]["bright"]["gain"]["value"]
        assert metrics["terms"]["dark"]["gain"]["value"] == pytest.approx(-gains[name])
    assert gains["up"] > 0 > gains["down"]
    assert gains["alike"] == pytest.approx(0, abs=1e-6)  # the terms cancel: no group has a signal


def test_a_reward_is_opened_once_in_its_own_folder(settings, monkeypatch):
    opened = []

    def make(folder, terms, device):
        opened.append((folder, tuple(terms)))
        return Bright(folder, terms, device)

    monkeypatch.setattr(VIDEO_REWARDS, "get", lambda name: make)
    given = settings("x", rewards="[plug.dark,plug.bright]", weights="[2,3]", folders__plug="place")
    reward, weights = align_world_model.open_rewards(given, torch.device("cpu"))
    assert opened == [("place", ("dark", "bright"))]
    assert dict(zip(reward.names, weights, strict=True)) == {"dark": 2.0, "bright": 3.0}


@pytest.mark.parametrize("told", ["instruction", "actions"])
def test_success_is_measured_by_a_copy_that_stays_as_it_is(
    settings, make_world_model, tmp_path, monkeypatch, told, same_tree
):
    monkeypatch.undo()  # the registry's own rewards
    model = make_world_model(planning=True, spread=0.3)
    model.config.outcome.conditioning = told
    model.save(tmp_path / "judge")
    given = {
        "rewards": "[success]",
        "folders__success": f"{tmp_path}/judge",
        "conditioning": told,
        "start": f"{tmp_path}/judge",
    }
    opened, open_rewards = [], align_world_model.open_rewards
    monkeypatch.setattr(align_world_model, "open_rewards", lambda *a: opened.append(open_rewards(*a)) or opened[-1])
    metrics = align_world_model.main(settings(**given))
    assert metrics["terms"].keys() == {"success", "pixel_motion"}
    assert metrics["terms"]["success"]["gain"]["value"] != 0
    same_tree(dict(opened[0][0].parts[0].model.state_dict()), dict(model.state_dict()))
    with pytest.raises(SettingError, match=r"folders\.success: this reward needs the folder of a world model"):
        align_world_model.main(settings("no", rewards="[success]", conditioning=told))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_stopped_run_resumes_to_the_same_numbers(settings, tmp_path, monkeypatch, rank):
    settings = partial(settings, lora__rank=rank)
    whole = align_world_model.main(settings("whole"))

    class StopError(Exception):
        pass

    iterate = loop.iterate

    def stopping(learner, method, iteration):
        if iteration == 2:
            raise StopError
        return iterate(learner, method, iteration)

    monkeypatch.setattr(loop, "iterate", stopping)
    with pytest.raises(StopError):
        align_world_model.main(settings("cut"))
    monkeypatch.setattr(loop, "iterate", iterate)
    again = align_world_model.main(settings("cut"))
    assert again == whole
    assert align_world_model.main(settings("cut")) == whole  # finds everything finished


def test_a_model_that_follows_actions_is_aligned_too(settings, make_world_model, tmp_path):
    make_world_model(spread=0.3).save(tmp_path / "simulator")
    folder = str(tmp_path / "simulator")
    with pytest.raises(SettingError, match=r"does not plan; train one with .* or give conditioning=actions"):
        align_world_model.main(settings("refused", start=folder))
    metrics = align_world_model.main(
        settings(start=folder, conditioning="actions", method="diffusion_nft", rewards="[plug]")
    )
    assert metrics["terms"].keys() == {"bright", "dark", "pixel_motion"}


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"method": "grpo"}, "method: unknown value 'grpo'"),
        ({"conditioning": "nothing"}, "conditioning: unknown value"),
        ({"data": "[]"}, "data must name"),
        ({"methods__branch_grpo__splits": "[]"}, "branch_grpo.splits"),
        ({"held_out": "0.01"}, "leaves none to measure"),
        ({"lora__rank": "17"}, "lora.rank: 17 is above a side"),
        ({"rewards": "[]"}, "rewards: name at least one"),
        ({"weights": "[1,2]"}, "weights: 1 rewards need as many weights, got 2"),
        ({"weights": "[-1]"}, "weights must be at least 0"),
        ({"folders__plugg": "x"}, "folders: unknown value 'plugg'"),
        ({"rewards": "[plug,other]"}, "two of them have a term 'bright'"),
    ],
)
def test_impossible_settings_are_refused(settings, over, words):
    with pytest.raises(SettingError, match=words):
        align_world_model.main(settings("no", **over))


@pytest.mark.parametrize("preset", ["tiny", "cpu", "gpu"])
def test_every_method_of_every_preset_can_begin(preset):
    """Splits lie on noisy steps, and what Sol-RL keeps was explored."""
    given = {"preset": preset, "run_dir": "x"}
    settings = compose("align-world-model", AlignWorldModelSettings, given)
    methods, shared = settings.methods, settings.alignment
    for denoising in (methods.flow_grpo.denoising, methods.dance_grpo.denoising, methods.branch_grpo.denoising):
        assert make_schedule(denoising).noisy == list(range(denoising.steps - 1))
    splits = check_splits(methods.branch_grpo, make_schedule(methods.branch_grpo.denoising), shared.chunks)
    assert len(splits) == len(methods.branch_grpo.splits)
    assert methods.sol_rl.explored >= shared.group_size
    assert not make_schedule(methods.sol_rl.nft.denoising).noisy


def test_an_unknown_reward_is_named():
    with pytest.raises(SettingError, match="unknown video reward 'bright'"):
        VIDEO_REWARDS.get("bright")
