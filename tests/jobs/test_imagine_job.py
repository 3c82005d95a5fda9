import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from worldrl.core.errors import MissingExtraError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.world_model.rollout_error import Replay, whole_chunks
from worldrl.jobs.world_model import imagine
from worldrl.jobs.world_model.imagine import ImagineSettings, choose_episodes
from worldrl.recipes.world_model.replayed_films import Replayed
from worldrl.registry import VIDEO_REWARDS
from worldrl.settings import compose


def test_imagined_rollouts_are_filmed_and_measured(push_dataset, world_model, tmp_path):
    world_model.save(tmp_path / "model")
    settings = ImagineSettings(
        run_dir=str(tmp_path / "run"), world_model=str(tmp_path / "model"), data=str(push_dataset), episodes=3, steps=9
    )
    metrics = imagine.main(settings)
    assert len(list((tmp_path / "run" / "videos").glob("*.mp4"))) == 3
    assert len(list((tmp_path / "run" / "filmstrips").glob("??.png"))) == 3
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["schema"], result["command"]) == (1, "imagine")
    assert result["metrics"]["episodes"] == 3
    assert metrics["action_swap_ratio"] > 0
    assert metrics.keys() >= {"closed_loop.psnr@8", "precision", "recall", "outcome_alignment"}
    assert imagine.main(settings) == metrics


def test_without_a_dataset_it_records_episodes_itself(tmp_path):
    """A new user types the bare command; the bundled weights imagine what it records."""
    settings = ImagineSettings(run_dir=str(tmp_path / "run"), episodes=3, steps=16, tasks=["PickRedCube"])
    metrics = imagine.main(settings)
    dataset = EpisodeDataset.open(tmp_path / "run" / "stages" / "01-episodes" / "dataset")
    assert [record.source for record in dataset.records] == ["expert", "expert", "blind_expert"]
    assert metrics["episodes"] == 3
    assert metrics["closed_loop.psnr@8"] > 24  # the bundled model knows this task: 30.8 dB in the default run
    assert imagine.main(settings) == metrics


def test_a_dataset_of_another_robot_or_tasks_beside_data_are_refused(tmp_path, world_model, push_dataset):
    with pytest.raises(SettingError, match="tasks: has no effect with data"):
        ImagineSettings(data=str(push_dataset), tasks=["PickRedCube"])
    with pytest.raises(SettingError, match="have another robot"):
        imagine.main(ImagineSettings(run_dir=str(tmp_path / "run"), tasks=["BimanualHandoverBlock"]))


def test_successes_and_failures_take_turns(push_dataset):
    dataset = EpisodeDataset.open(push_dataset)
    outcomes = [episode.success for episode in choose_episodes(dataset, len(dataset), seed=0)]
    fewer = min(sum(outcomes), len(outcomes) - sum(outcomes))
    assert fewer > 1
    assert outcomes[: 2 * fewer] == [True, False] * fewer
    assert len(outcomes) == len(dataset)
    first, again, other = ([e.meta["index"] for e in choose_episodes(dataset, 6, seed=seed)] for seed in (0, 0, 1))
    assert first == again != other


def test_a_success_after_the_imagined_steps_does_not_count_as_missed(push_dataset, world_model, tmp_path):
    world_model.save(tmp_path / "model")
    dataset = EpisodeDataset.open(push_dataset)
    settings = ImagineSettings(
        run_dir=str(tmp_path / "run"), world_model=str(tmp_path / "model"), data=str(push_dataset), episodes=16, steps=4
    )
    metrics = imagine.main(settings)
    early = sum(1 for e in dataset if e.first_success is not None and e.first_success <= 4)
    assert early < sum(record.success for record in dataset.records)
    assert (metrics["recall"] or {"n": 0})["n"] == early
    data = json.loads((tmp_path / "run" / "report.json").read_text())["data"]
    assert sum("real success" in film["title"] for film in data["videos"]) == early


class Bright:
    """Mean brightness of what was imagined."""

    names = ("bright",)

    def __init__(self, folder, terms, device):
        self.folder = folder

    def score(self, videos):
        return videos.frames[:, 1:].float().mean(dim=(1, 2, 3, 4))[:, None]


@pytest.fixture
def planning(push_dataset, make_world_model, tmp_path, monkeypatch):
    """Settings of a run that plans, with a made-up reward."""
    make_world_model(planning=True, spread=0.3).save(tmp_path / "planner")
    monkeypatch.setattr(VIDEO_REWARDS, "get", lambda name: Bright)

    def make(run="run", **over):
        given = {
            "run_dir": str(tmp_path / run),
            "world_model": str(tmp_path / "planner"),
            "data": str(push_dataset),
            "episodes": "2",
            "plan": "true",
            "rewards": "[plug]",
            "staged.stages": "2",
            "staged.stage_chunks": "1",
            "staged.proposals": "3",
        }
        return compose("imagine", ImagineSettings, given | {k.replace("__", "."): str(v) for k, v in over.items()})

    return make


def test_a_user_plans_in_stages(planning, tmp_path, capsys):
    """Plans are of two stages, proposed again while they are not good enough, and filmed beside the recording."""

    def said():
        return " ".join(capsys.readouterr().err.split())

    plain = imagine.main(planning())
    assert plain["chunks"] == 2 * 2 * 3
    assert [plan["attempts"] for plan in plain["plans"]] == [[1, 1], [1, 1]]
    assert all(plan["accepted"] is None for plan in plain["plans"])
    assert "2 plans, not filtered (staged.min_reward names no term), 12 chunks" in said()
    bright = [plan["terms"]["bright"] for plan in plain["plans"]]
    hard = imagine.main(planning("hard", staged__attempts=3, **{"staged.min_reward.bright": 256}))
    assert "0 of 4 stages accepted" in said()
    assert hard["chunks"] == 3 * plain["chunks"]
    for plan, before in zip(hard["plans"], bright, strict=True):
        assert plan["attempts"] == [3, 3]
        assert plan["accepted"] == [False, False]
        assert plan["terms"]["bright"] != before  # the best of nine, twice
    assert len(list((tmp_path / "run" / "videos").glob("*-plan.mp4"))) == 2
    assert len(list((tmp_path / "run" / "filmstrips").glob("*-plan.png"))) == 2
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["plans"] == json.loads(json.dumps(plain["plans"]))
    assert imagine.main(planning("again"))["plans"] == plain["plans"]


def test_what_cannot_plan_is_reported(planning, world_model, tmp_path):
    world_model.save(tmp_path / "follows")
    with pytest.raises(SettingError, match="plan: this world model needs actions"):
        imagine.main(planning(world_model=tmp_path / "follows"))
    with pytest.raises(SettingError, match="the reward has no term 'dark'"):
        imagine.main(planning(**{"staged.min_reward.dark": 1}))
    for wrong, words in (
        ({"steps": 8}, "steps: a plan"),
        ({"mixing": "sum"}, "mixing"),
        ({"folders.x": "y"}, "folders"),
    ):
        with pytest.raises(SettingError, match=words):
            planning(**wrong)


def test_small_pieces():
    assert [whole_chunks(n, 8) for n in (1, 8, 9)] == [8, 8, 16]
    for over in ({"episodes": 0}, {"steps": -1}, {"dtype": "int8"}, {"world_model": "scratch"}):
        with pytest.raises(SettingError, match=next(iter(over))):
            ImagineSettings(**over)


class FakeRerun(ModuleType):
    """Keeps what is logged, with the calls of rerun that are used; the recording is its own memory."""

    def __init__(self) -> None:
        super().__init__("rerun")
        self.logged: dict[str, list] = {}
        self.step = None
        self.RecordingStream = lambda name: self
        self.memory_recording = lambda: self
        self.drain_as_bytes = lambda: b"recording"
        self.Image = self.Scalars = self.TextDocument = lambda value: value

    def set_time(self, timeline, sequence):
        assert timeline == "step"
        self.step = sequence

    def log(self, place, value, static=False):
        self.logged.setdefault(place, []).append((None if static else self.step, value))


def test_films_show_every_view_of_a_model():
    real, imagined = np.zeros((1, 24, 16, 16, 3), np.uint8), np.full((1, 24, 16, 16, 3), 9, np.uint8)
    known = {"valid": np.ones((1, 24), bool), "probability": np.zeros((1, 24), np.float32), "frame_stride": 2}
    replay = Replay(real, imagined, further={"wrist_image": (real + 1, imagined + 1)}, **known)
    episode = SimpleNamespace(task="Push", first_success=None)
    films = Replayed([episode], np.zeros((1, 48, 7), np.float32), replay, np.array([False]), fps=10)
    (strip,) = films.filmstrips()
    assert strip.rows["real"].shape == (12, 32, 16, 3)
    assert [int(strip.rows["imagined"][0, y, 0, 0]) for y in (0, 31)] == [9, 10]
    assert "wrist_image" in strip.caption
    alone = Replayed([episode], films.actions, Replay(real, imagined, **known), films.imagined, fps=10)
    assert alone.filmstrips()[0].rows["real"].shape == (12, 16, 16, 3)
    assert "main camera" not in alone.videos()[0].caption


def test_rerun_gets_real_and_imagined_rollouts_on_one_timeline(push_dataset, world_model, tmp_path, monkeypatch):
    fake = FakeRerun()
    monkeypatch.setitem(sys.modules, "rerun", fake)
    world_model.save(tmp_path / "model")
    file = tmp_path / "new" / "both.rrd"
    model = {"world_model": str(tmp_path / "model"), "data": str(push_dataset)}
    imagine.main(ImagineSettings(run_dir=str(tmp_path / "run"), episodes=2, steps=9, rerun=str(file), **model))
    assert file.read_bytes() == b"recording"
    stride, control = world_model.frame_stride, whole_chunks(9, world_model.chunk_length)
    frames = list(range(stride, control + 1, stride))
    for number, episode in enumerate(choose_episodes(EpisodeDataset.open(push_dataset), 2, seed=0)):
        place = f"episode-{number:02}"
        found = {name: [step for step, _ in fake.logged[f"{place}/{name}"]] for name in ("real", "imagined", "action")}
        real = [step for step in frames if step <= len(episode)]
        assert found == {"real": real, "imagined": frames, "action": list(range(control))}
        assert all((image == episode.main_view[step]).all() for step, image in fake.logged[f"{place}/real"])
        assert [step for step, _ in fake.logged[f"{place}/success_probability"]] == frames
        assert [tuple(row) for _, row in fake.logged[f"{place}/state"]] == [tuple(row) for row in episode.state]
        assert episode.instruction in fake.logged[place][0][1]


def test_rerun_is_refused_where_it_has_no_effect_and_before_anything_is_imagined(tmp_path, monkeypatch):
    with pytest.raises(SettingError, match="a plan has no real one"):
        ImagineSettings(plan=True, rerun="x.rrd")
    with pytest.raises(SettingError, match=r"ends with \.rrd"):
        ImagineSettings(rerun="x.mp4")
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[rerun\]'"):
        imagine.main(ImagineSettings(run_dir=str(tmp_path / "run"), rerun=str(tmp_path / "x.rrd")))
    assert not (tmp_path / "run").exists()
