"""Stages of ``worldrl train-vla`` by themselves."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import initial_weights
from worldrl.core.statistics.intervals import wilson
from worldrl.core.storage.artefact import artefact_hash, read_manifest
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.log import MetricLog
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.data import collect, restyle
from worldrl.jobs.data.collect import CollectSettings
from worldrl.jobs.data.restyle import RestyleSettings
from worldrl.jobs.vla import filtering, near_goal, train_vla
from worldrl.jobs.vla import loop as vla_loop
from worldrl.jobs.vla import stages as vla_stages
from worldrl.jobs.vla import training_suite as training_suite
from worldrl.jobs.vla.artefacts import Recording
from worldrl.jobs.vla.checks import confirmed_line
from worldrl.jobs.vla.loop import Loop, collection_split
from worldrl.jobs.vla.near_goal import NearGoal
from worldrl.jobs.vla.plan import check_policy_fits, planned, resolve
from worldrl.jobs.vla.settings import CollectionSettings, Scratch, TrainVlaSettings
from worldrl.jobs.vla.stages import supervised_policy
from worldrl.methods.imitation.config import Distillation
from worldrl.methods.rl.advantages import mean_only
from worldrl.methods.rl.config import FilteredCloning, GrpoConfig, PartNames, Parts
from worldrl.methods.rl.improve import Improvement
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.run import open_run
from worldrl.recipes.world_model.lineage import learned_from
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined import starts
from worldrl.rollout.real.specs import motion_key
from worldrl.workers.link.boot import load_file
from worldrl.world_models.video.config import DynamicsConfig, VideoWorldModelConfig
from worldrl.world_models.video.training_config import WorldModelTraining

fake = load_file("fake_network", Path(__file__).parents[1] / "policies" / "fake_network.py")
SIZES = {"image_size": 16, "width": 8, "blocks": 1, "keypoints": 4, "text_width": 8, "hidden": 16}


@pytest.fixture
def policy_folder(tmp_path):
    with initial_weights(0, "policy"):
        policy = TokenPolicy(
            TokenPolicyConfig(**SIZES), PolicyStatistics(-torch.ones(7), torch.ones(7), torch.zeros(7), torch.ones(7))
        )
    policy.save(tmp_path / "policy")
    return tmp_path / "policy"


CPU = torch.device("cpu")
IDLE = SimpleNamespace(close=lambda: None)
"""A suite without workers."""


def take(run_dir: Path, folder: Path, **sizes):
    settings = TrainVlaSettings(
        run_dir=str(run_dir),
        supervised=str(folder),
        policy=TokenPolicyConfig(**{**SIZES, **sizes}),
        tasks=["PickRedCube"],
    )
    with open_run("train-vla", settings) as run, MetricLog(run.path) as log:
        return supervised_policy(Loop(planned(settings, CPU), run, log), Recording(Path("unused"))).folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"type": "diffusion", "n_obs_steps": 2},
            r"observes 2 consecutive .* train one with world_model\.dynamics\.frame_stride=1$",
        ),
        ({"wrist": True}, r"does not fit the world model of cameras=\[image\]"),
    ],
)
def test_a_policy_that_imagination_cannot_serve_is_refused_before_anything_is_recorded(tmp_path, changes, words):
    sees, moves = {"type": "VISUAL", "shape": [3, 16, 16]}, {"type": "STATE", "shape": [7]}
    if changes.pop("wrist", False):
        seen = {"observation.images.scene": sees, "observation.images.wrist": sees, "observation.state": moves}
        changes["input_features"] = seen
    folder = fake.publish(tmp_path / "policy", **changes)
    with pytest.raises(SettingError, match=f"the policy in .*policy {words}"):
        check_policy_fits(TrainVlaSettings(supervised=str(folder)))


def test_a_policy_of_two_observations_is_not_refused_where_every_control_step_is_imagined(tmp_path):
    folder = fake.publish(tmp_path / "policy", type="diffusion", n_obs_steps=2)
    settings = TrainVlaSettings(
        supervised=str(folder),
        start="scratch",
        world_model=VideoWorldModelConfig(dynamics=DynamicsConfig(frame_stride=1)),
        improvement=Improvement(algorithm="grpo"),
    )
    check_policy_fits(settings)


def test_a_lerobot_policy_of_two_cameras_is_not_refused_where_the_loop_observes_both(tmp_path):
    sees, moves = {"type": "VISUAL", "shape": [3, 16, 16]}, {"type": "STATE", "shape": [7]}
    seen = {"observation.images.scene": sees, "observation.images.wrist": sees, "observation.state": moves}
    folder = fake.publish(tmp_path / "policy", input_features=seen)
    settings = TrainVlaSettings(
        supervised=str(folder),
        cameras=["image", "wrist_image"],
        improvement=Improvement(algorithm="grpo"),
        policy=TokenPolicyConfig(image_size=16),
    )
    with pytest.raises(SettingError, match=r"policy\.image_size is 16, the world model's image_size is 64"):
        check_policy_fits(settings)  # what is refused is the size of the bundled weights, no longer the camera


@pytest.mark.parametrize(("given", "expected"), [(None, [0.85, 0.7, 0.7]), (0.6, [0.6, 0.6, 0.6])])
def test_each_round_calibrates_for_its_algorithm_unless_one_precision_is_given(given, expected):
    with closing((plan := resolve(TrainVlaSettings(rounds=3, target_precision=given))).suite):
        assert [plan.precision_of(number) for number in (1, 2, 3)] == expected


def test_an_algorithm_that_a_policy_cannot_learn_by_is_refused_before_anything_is_recorded(tmp_path):
    settings = TrainVlaSettings(supervised=str(fake.publish(tmp_path / "policy")))
    with pytest.raises(SettingError, match=r"self-training imitates tokens.*give improvement\.algorithm=grpo"):
        check_policy_fits(settings)


def test_workers_of_the_embedded_suite_may_be_silent_as_long_as_the_settings_say(tmp_path, monkeypatch):
    """A worker that loads a policy of half a billion weights says nothing meanwhile."""
    patience = []
    monkeypatch.setattr(
        training_suite, "collect_dataset", lambda _, __, player, **___: patience.append(player.timeout_s) or []
    )
    monkeypatch.setattr(training_suite, "evaluate_policy", lambda player, *_, **__: patience.append(player.timeout_s))
    suite = planned(TrainVlaSettings(timeout_s=7.0, tasks=["PickRedCube"]), CPU).suite
    suite.record(tmp_path, [])
    suite.evaluate(tmp_path, out=tmp_path, record_videos=0, on_recording=lambda episode: None)
    assert patience == [7.0, 7.0]


def test_one_domain_is_recorded_imagined_and_measured(tmp_path, monkeypatch):
    """Demonstrations and practice, the imagined rollouts' initial states, their check in the simulator, and both evaluations."""
    settings, seen = TrainVlaSettings(kind="bimanual", domain="randomised", start="scratch"), []
    suite = planned(settings, CPU).suite
    monkeypatch.setattr(
        training_suite, "collect_dataset", lambda _, __, player, **___: seen.append(player.options.domain) or []
    )
    real = starts.EmbeddedSlots
    monkeypatch.setattr(starts, "EmbeddedSlots", lambda options: seen.append(options.domain) or real(options))
    suite.record(tmp_path, [])
    suite.simulator_backend.starts(suite.tasks[:1], 0, seed=0, memory_frames=1, image_size=16)
    suite.simulator_backend.replay(suite.tasks[0], [], [])
    assert [*seen, suite.protocol.domain] == ["randomised"] * 4
    for over, words in (
        ({"domain": "dark"}, "domain"),
        ({"domain": "randomised", "styles": 1}, "domain=randomised: .* styles=0"),
        ({"domain": "randomised", "suite": "libero_object"}, "domain=randomised: .* suite=embedded"),
    ):
        with pytest.raises(SettingError, match=words):
            TrainVlaSettings(**over)
    with pytest.raises(SettingError, match="domain: randomised is of bimanual tasks"):
        resolve(TrainVlaSettings(domain="randomised"))


def test_demonstrations_of_another_domain_are_refused(tmp_path):
    """The policy would learn from one table and be measured at another."""
    records = [SimpleNamespace(meta=meta, source="expert", success=True) for meta in ({}, {"domain": "randomised"})]

    def given(settings, *rows):
        plan = planned(settings, CPU)
        data = SimpleNamespace(
            embodiment=plan.suite.embodiment,
            image_size=(64, 64),
            cameras=("head",),
            records=[records[k] for k in rows],
            tasks=lambda: plan.tasks,
        )
        return vla_stages.given_demonstrations(plan, data)

    clean, drawn = (
        TrainVlaSettings(tasks=["BimanualLiftPot"], start="scratch", domain=d, data="shown")
        for d in ("clean", "randomised")
    )
    assert given(clean, 0) == given(drawn, 1)
    for settings, rows, told in (
        (clean, (1,), "randomised"),
        (drawn, (0,), "clean"),
        (drawn, (0, 1), "clean and randomised"),
    ):
        with pytest.raises(
            SettingError,
            match=f"data: shown was recorded in the domain {told}, the loop is in domain={settings.domain}",
        ):
            given(settings, *rows)


def test_a_given_policy_is_taken_as_it_is(policy_folder, tmp_path):
    taken = take(tmp_path / "run", policy_folder)
    given, found = (TokenPolicy.load(folder, "cpu").state_dict() for folder in (policy_folder, taken))
    assert all(torch.equal(found[name], value) for name, value in given.items())
    assert [parent["hash"] for parent in read_manifest(taken)["parents"]] == [artefact_hash(policy_folder)]
    assert take(tmp_path / "run", policy_folder) == taken  # finished: a second start takes nothing


@pytest.mark.parametrize(
    ("improve_from", "begun"),
    [("latest", ["supervised", "improved-1", "improved-1"]), ("supervised", ["supervised"] * 3)],
)
def test_each_round_improves_the_policy_that_is_asked_for_and_collects(monkeypatch, improve_from, begun):
    learners, actors, compared = [], [], []

    def practice(loop, number, policy, world, actor):
        actors.append((policy, actor))
        return f"practice-{number}"

    def improved(loop, number, demos, learner, world, practices):
        learners.append(learner)
        return f"improved-{number}"

    def accepted(loop, number, before, after):
        compared.append((before, after))
        return number != 2

    monkeypatch.setattr(train_vla.stages, "practice", practice)
    monkeypatch.setattr(train_vla.stages, "world_model", lambda loop, number, *_: f"world-{number}")
    monkeypatch.setattr(train_vla.stages, "improved_policy", improved)
    monkeypatch.setattr(train_vla.checks, "gates", lambda *_: None)
    monkeypatch.setattr(train_vla.checks, "accepted", accepted)
    plan = planned(
        TrainVlaSettings(rounds=3, improve_from=improve_from, start="scratch", distillation=Distillation(steps=0)), CPU
    )
    last = train_vla.run_rounds(SimpleNamespace(plan=plan), "demos", "supervised")
    assert last == ("improved-3", "world-3")
    assert learners == begun
    # The second round is undone: its policy acts in the third one's practice, and is not improved.
    assert actors == [("supervised", "supervised"), ("improved-1", "improved-1"), ("improved-1", "improved-2")]
    assert compared == [("supervised", "improved-1"), ("improved-1", "improved-2"), ("improved-1", "improved-3")]


def test_a_rounds_world_model_remembers_demonstrations_practice_and_its_weights(
    push_dataset, make_world_model, monkeypatch, tmp_path
):
    """Trainings, imagined rollouts and calibration are left out: what is in question is what the saved folder says of them."""
    before = Learned(frozenset({"a"}), frozenset({"of a"}))
    make_world_model().save(tmp_path / "before", learned=before)
    restyle.main(RestyleSettings(str(push_dataset), str(tmp_path / "practice"), by="image"))
    practice = tmp_path / "practice" / "dataset"
    model = make_world_model()
    for name, value in {
        "trained_world_model": (model, {}), "collection_split": ([], [], []),
        "fresh_rollouts": None, "keyframe_rollouts": None, "join_rollouts": None, "calibrate": SuccessRule(0.5, 1),
    }.items():  # fmt: skip
        monkeypatch.setattr(vla_stages, name, lambda *_, value=value, **__: value)
    settings = TrainVlaSettings(run_dir=str(tmp_path / "run"), dtype="float32")
    with open_run("train-vla", settings) as run, MetricLog(run.path) as log:
        loop = Loop(planned(settings, CPU), run, log)
        recorded = Recording(push_dataset), [Recording(practice)]
        begun = loop.world(tmp_path / "before")
        folder = vla_stages.world_model(loop, 1, *recorded, SimpleNamespace(network=None), begun).folder
    assert Learned.read(folder) == before | learned_from(
        [EpisodeDataset.open(push_dataset), EpisodeDataset.open(practice)]
    )
    parents = [Path(one["path"]) for one in read_manifest(folder)["parents"]]
    assert parents == [push_dataset, practice, tmp_path / "before"]


@pytest.mark.parametrize(("keyframe", "expected"), [((9, 10), 0.8), ((5, 10), 0.5), (None, 1 / 3)])
def test_keyframes_are_scheduled_by_what_the_gates_measured(keyframe, expected):
    """Half of the imagined rollouts from initial states were wrong: h₀ = 0.5."""
    midway = None if keyframe is None else {"precision": wilson(*keyframe)}
    summary = {"policy": {"precision": wilson(5, 10)}, "keyframes": midway}
    improvement = Improvement(p_keyframe=0.8, keyframe_schedule="hallucination")
    loop = SimpleNamespace(
        plan=planned(TrainVlaSettings(improvement=improvement), CPU),
        run=SimpleNamespace(stage=lambda name: SimpleNamespace(summary={"round-2-3-gates": summary}[name])),
    )
    found = vla_stages.scheduled(loop, 2)
    assert found.p_keyframe == pytest.approx(expected)
    assert replace(found, p_keyframe=0.8) == improvement


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two recordings of the embedded suite, as demonstrations and practice leave them."""
    folder = tmp_path_factory.mktemp("recorded")
    settings = {"tasks": ["PickRedCube"], "image_size": 16, "workers": 0, "hold_steps": 2}
    for name, seed, count in (("demos", 1, 2), ("practice", 2, 4)):
        collect.main(CollectSettings(run_dir=str(folder / name), seed=seed, expert_episodes=count, **settings))
    return folder / "demos" / "dataset", folder / "practice" / "dataset"


def learn(monkeypatch, run_dir, recorded, model, **over):
    """Run a round's world-model stage on a recording; return the episodes that it would learn from, and its folder."""
    seen = []
    stubs = {
        "fresh_rollouts": None, "keyframe_rollouts": None,
        "join_rollouts": None, "calibrate": SuccessRule(0.5, 1),
    }  # fmt: skip
    for name, value in stubs.items():
        monkeypatch.setattr(vla_stages, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(
        vla_stages, "trained_world_model", lambda _loop, _number, episodes, *_: seen.extend(episodes) or (model, {})
    )
    settings = TrainVlaSettings(run_dir=str(run_dir), dtype="float32", start="scratch", held_out=0.5, workers=1, **over)
    with open_run("train-vla", settings) as run, MetricLog(run.path) as log:
        loop = Loop(planned(settings, CPU), run, log)
        demos, practice = map(Recording, recorded)
        folder = vla_stages.world_model(loop, 1, demos, [practice], SimpleNamespace(network=None), None).folder
        _, calibration, gates = collection_split(loop, [practice])
    return seen, folder, [*calibration, *gates]


def test_the_world_model_sees_each_training_episode_in_as_many_other_looks(
    monkeypatch, recorded, make_world_model, tmp_path
):
    plain, _, _ = learn(monkeypatch, tmp_path / "plain", recorded, make_world_model())
    assert not list((tmp_path / "plain" / "stages").glob("*looks"))
    seen, folder, held_out = learn(monkeypatch, tmp_path / "run", recorded, make_world_model(), styles=2)
    assert len(plain) == 4  # two demonstrations, and half of four practice episodes
    assert len(seen) == 3 * len(plain)
    for number, episode in enumerate(plain):
        shown = [other for other in seen if motion_key(other) == motion_key(episode)]
        assert [other.meta["style"].startswith("sampled-") for other in shown] == [False, True, True]
        assert len({other.frames.tobytes() for other in shown}) == 3, number
        assert len({other.action.tobytes() for other in shown}) == 1
    assert not {motion_key(episode) for episode in held_out} & {motion_key(episode) for episode in seen}
    looks = sorted((tmp_path / "run" / "stages").glob("*looks/dataset-*"))
    assert [path.parent.name for path in looks] == ["01-looks"] * 2 + ["round-1-1-looks"] * 2
    learned = learned_from([EpisodeDataset.open(path) for path in (*recorded, *looks)])
    assert Learned.read(folder) == learned
    assert len(learned.episodes) == 6  # a look is no other episode


def test_the_world_model_learns_from_near_failures_more_often_and_says_which(
    monkeypatch, recorded, make_world_model, tmp_path
):
    asked = []

    def near(collection, episodes):
        asked.append((collection.near_goal_share, episodes))
        return NearGoal([episodes[0]] * 2, {"PickRedCube": {"near": 1}})

    monkeypatch.setattr(near_goal, "near_failures", near)
    seen, folder, held_out = learn(
        monkeypatch, tmp_path / "run", recorded, make_world_model(), collection=CollectionSettings(near_goal_share=0.5)
    )
    ((share, collected),) = asked
    assert share == 0.5
    assert not {motion_key(episode) for episode in collected} & {motion_key(episode) for episode in held_out}
    often = [sum(other is episode for other in seen) for episode in collected]
    assert often == [3, *[1] * (len(collected) - 1)]
    assert read_json(folder.parent / "stage.json")["summary"]["near_goal"] == {"PickRedCube": {"near": 1}}


def test_looks_are_the_embedded_suites(tmp_path):
    with pytest.raises(SettingError, match="styles=1: visual styles are the embedded suite's"):
        TrainVlaSettings(suite="libero_object", styles=1)
    with pytest.raises(SettingError, match="styles"):
        TrainVlaSettings(styles=-1)


def test_a_policy_of_other_sizes_is_refused(policy_folder, tmp_path):
    with pytest.raises(SettingError, match="hidden: 32 -> 16"):
        take(tmp_path / "run", policy_folder, hidden=32)
    with pytest.raises(ArtefactError):
        take(tmp_path / "other", tmp_path / "nothing")


def test_what_became_of_imagined_successes_is_said_in_words():
    assert confirmed_line(wilson(3, 4)) == "imagined success confirmed by the simulator: 3 of 4 (30–95 %)"
    assert confirmed_line(None).endswith(": not measurable, nothing was imagined to succeed")


@pytest.mark.parametrize(
    ("expert", "cloned"),
    [(False, ["policy", "planner", "dream"]), (True, ["policy", "blind_expert", "planner", "dream"])],
)
def test_the_experts_collected_successes_are_cloned_only_where_asked(monkeypatch, expert, cloned):
    monkeypatch.setattr(
        vla_stages, "make_samples", lambda episodes, *_: [episode.meta["source"] for episode in episodes]
    )
    told = [("policy", True), ("policy", False), ("blind_expert", True), ("planner", True), ("planner", False)]
    told += [("dream", True), ("dream", False)]
    practice = SimpleNamespace(
        episodes=[SimpleNamespace(meta={"source": source}, success=success) for source, success in told]
    )
    config = Improvement(
        self_training=FilteredCloning(imagined_share=0.5, collected_share=0.3, collected_expert=expert)
    )
    policy = SimpleNamespace(chunk_length=8, more=())
    assert vla_stages.collected_successes(config, policy, [practice]) == cloned
    assert vla_stages.collected_successes(Improvement(), policy, [practice]) is None


def test_improvement_is_made_of_the_parts_that_settings_name(monkeypatch, tmp_path):
    config, given = Improvement("grpo", grpo=GrpoConfig(parts=PartNames(advantage="mean_only"))), {}
    replaced = {
        "scheduled": lambda *a: config,
        "reset_store": lambda *a: [],
        "imagined_env": lambda *a, **k: None,
        "imagined_success": lambda *a, **k: {},
        "make_samples": lambda *a: None,
        "training_instructions_or_known": lambda *a: {},
        "policy_parent": lambda *a: {},
        "parent": lambda *a: {},
        "improve": lambda *a, **named: given.update(named) or [],
    }
    monkeypatch.setattr(filtering, "round_filter", lambda *a: None)
    for name, value in replaced.items():
        monkeypatch.setattr(vla_stages, name, value)
    stage = SimpleNamespace(finished=False, folder=tmp_path)
    loop = SimpleNamespace(
        plan=SimpleNamespace(horizons={}, seed_of=lambda *a: 0, imaginers=None, suite=IDLE),
        run=SimpleNamespace(stage=lambda name: stage),
        log=None,
        policy=lambda folder: None,
        finish=lambda *a: None,
    )
    learner = SimpleNamespace(save=lambda *a, **k: None, chunk_length=4, more=(), n_obs_steps=1)
    world = SimpleNamespace(folder=tmp_path, model=SimpleNamespace(more=()), rule=None)
    policy = SimpleNamespace(folder=tmp_path, copy=lambda: learner)
    vla_stages.improved_policy(loop, 1, SimpleNamespace(episodes=[]), policy, world, [])
    assert given["parts"] == Parts(advantage=mean_only)


def test_the_first_world_model_begins_with_the_weights_of_another_robot(world_model, robot, tmp_path, monkeypatch):
    world_model.save(tmp_path / "other", learned=Learned(frozenset({"seen"}), frozenset(), True))
    monkeypatch.setattr(vla_loop, "learn_world_model", lambda *_, **__: {})
    slower = replace(robot, control_hz=10.0)
    facts = {"device": CPU, "dtype": torch.float32, "seed_of": lambda *_: 3, "first_training": None}
    plan = SimpleNamespace(weights=str(tmp_path / "other"), world_model=VideoWorldModelConfig(), suite=IDLE, **facts)
    stage = SimpleNamespace(folder=tmp_path, finish=lambda summary: None)
    run = SimpleNamespace(stage=lambda name: stage, wall_s=0.0)
    loop = Loop(plan, run, None)
    model, _ = vla_loop.trained_world_model(loop, 1, [], slower, None)
    assert model.embodiment == slower
    assert all(torch.equal(value, world_model.state_dict()[name]) for name, value in model.state_dict().items())
    vla_loop.keep_world_model(loop, stage, model, [], None, {})
    assert "seen" in Learned.read(tmp_path / "world_model").datasets


@pytest.mark.parametrize(
    ("scratch", "policy", "message"),
    [
        ({}, {}, "scratch.training.restorer_steps=0: would leave a part of weights=bundled"),
        ({"restorer_steps": 1}, {"chunk_length": 4}, "policy.chunk_length is 4, the world model's chunk_length is 8"),
    ],
)
def test_weights_of_another_robot_must_fit(scratch, policy, message):
    given = Scratch(weights="bundled", training=WorldModelTraining(codec_steps=1, steps=1, outcome_steps=1, **scratch))
    with pytest.raises(SettingError, match=f"^{message}"):
        resolve(TrainVlaSettings(start="scratch", scratch=given, policy=TokenPolicyConfig(**policy)))
