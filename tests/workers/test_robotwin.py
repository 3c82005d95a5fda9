"""Units under test: ``workers/robotwin.py``, ``workers/robotwin_starts.py``, ``rollout/robotwin.py``: in a real worker process,
against a double of the checkout (``robotwin_double.py``). None of it ran against the real RoboTwin."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from worldrl.core.errors import SettingError, WorkerError
from worldrl.core.image_fit import Fit, ImageFit
from worldrl.core.observation import ObservationSpec
from worldrl.evaluation.policy.protocol import suite_protocol
from worldrl.recipes.suites import opening
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.episodes import Rules, play_episodes
from worldrl.rollout.suites.registry import find_suite
from worldrl.rollout.suites.robotwin import TARGET, make_vec, robotwin_launch
from worldrl.simulators.pool import SimulatorPool, Start
from worldrl.simulators.process import Launch
from worldrl.workers.link.boot import load_file
from worldrl.workers.robotwin import facts
from worldrl.workers.robotwin.starts import FAILED, SOLVED, UNSOLVED, UNSTABLE, RoboTwinError, VerifiedSeeds

TASK = "close_gripper"
make_checkout = load_file("robotwin_double", Path(__file__).with_name("robotwin_double.py")).make_checkout


def launch(tmp_path, suite="robotwin_clean", *, cameras=(), broken=False):
    options = {
        "suite": suite,
        "checkout": str(make_checkout(tmp_path / "RoboTwin", broken=broken)),
        "seeds": str(tmp_path / "seeds"),
        "cameras": list(cameras),
    }
    return Launch(suite, sys.executable, TARGET, options)


def test_an_episode_starts_where_the_expert_succeeded_and_is_given_an_instruction_of_its_own(tmp_path):
    with SimulatorPool(launch(tmp_path, cameras=("head", "left_wrist", "right_wrist"))) as pool:
        assert pool.suite["tasks"] == [{"name": TASK, "instruction": "close gripper", "horizon": 7}]
        protocol = suite_protocol(
            find_suite("robotwin_clean"),
            pool.suite,
            shadows=True,
            assets_note="",
            episodes_per_task=2,
            seed=0,
            chunk_length=1,
        )
        assert protocol.horizon == {TASK: 7}
        rows = [pool.reset({0: Start(TASK, number, 0)})[0] for number in (0, 1, 2, 1)]
        # Of 100000, 1, 2, 3, ... the double's expert solves those that are 0 or 4 modulo 5.
        for row, seed in zip(rows, (100000, 100004, 100005, 100004), strict=True):
            expected = np.random.default_rng(seed).uniform(-1, 1, 14)
            expected[[6, 13]] = 1.0
            np.testing.assert_allclose(row["state"], expected, rtol=1e-6)
            np.testing.assert_array_equal(row["command"], row["state"])
            assert str(row["instruction"]).split()[0] in ("grip", "hold", "take")
        assert str(rows[1]["instruction"]) == str(rows[3]["instruction"])
        assert [int(rows[0][name].mean()) for name in ("image", "left_wrist_image", "right_wrist_image")] == [
            10,
            20,
            30,
        ]
        assert rows[0]["image"].shape == (*facts.IMAGE, 3)
        closed = np.full(14, 0.25, np.float32)
        closed[6] = 0.0
        row = pool.step({0: closed})[0]
        np.testing.assert_array_equal(row["state"], closed)
        assert row["success"]


def test_whole_episodes_carry_the_scenes_instruction_and_end_at_the_tasks_limit(tmp_path):
    spec = EpisodeSpec(TASK, 0, 0, init_id=0)
    with SimulatorPool(launch(tmp_path, "robotwin_randomised", cameras=("head",))) as pool:
        rules = Rules({TASK: 7}, ("head",), 0, frozenset({0}))
        with pytest.raises(WorkerError, match="plays whole episodes"):
            list(play_episodes(pool, [spec], ExpertActor(), rules))
    env = SuiteRow(tmp_path)
    try:
        obs, _ = env.rows.reset(seed=0, options={"episodes": [{"task": TASK, "init_id": 0}]})
        assert obs["instruction"][0].endswith("please")  # the randomised configuration asks for unseen instructions
        assert env.rows.single_action_space.shape == (14,)
        assert env.rows.observation_space.contains(obs)
        for step in range(7):
            hold = obs["state"]
            obs, _, terminated, truncated, _ = env.rows.step(hold)
            assert (bool(terminated[0]), bool(truncated[0])) == (False, step == 6)
    finally:
        env.rows.close()


class SuiteRow:
    """``worldrl/RoboTwin-v0`` with one row, found as ``worldrl setup robotwin`` leaves it."""

    def __init__(self, tmp_path):
        from worldrl.jobs.environment.setup_adopt import adopt, modules_of
        from worldrl.simulators import environments

        patch = pytest.MonkeyPatch()
        patch.setenv("WORLDRL_CACHE", str(tmp_path / "cache"))
        patch.setattr("worldrl.jobs.environment.setup_adopt.MODULES", {"robotwin": ("yaml", "torch")})
        try:
            assert modules_of(sys.executable, ("yaml", "no_such_module"))["no_such_module"] is None
            folder = environments.environment_folder("robotwin")
            adopt("robotwin", python=sys.executable, checkout=str(tmp_path / "RoboTwin"), folder=folder)
            self.rows = make_vec(num_envs=1, suite="robotwin_randomised", cameras=("head", "left_wrist"), image_size=16)
        finally:
            patch.undo()


def test_images_get_another_size_as_in_the_policys_training(tmp_path, monkeypatch):
    """They were always stretched; RoboTwin's are 240 by 320."""
    for fit, rows in ((Fit.stretch, 16), (Fit.crop, 16), (Fit.letterbox, 12)):
        with SimulatorPool(launch(tmp_path / fit, cameras=("head",)), images=ImageFit(16, fit)) as pool:
            image = pool.reset({0: Start(TASK, 0, 0)})[0]["image"]
            named = find_suite("robotwin_clean").conventions(pool.suite, shadows=True, assets_note="")[1]["picture"]
        assert (image.shape, int((image[:, 8, 0] == 10).sum())) == ((16, 16, 3), rows)
        assert named == "16 by 16 pixels" + ("" if fit is Fit.stretch else f", {fit}")
    seen = ObservationSpec({}, None, None)
    sees = SimpleNamespace(cameras=("head",), picture=(16, 16), observation=seen)
    monkeypatch.setattr(opening.RobotSide, "served", lambda _: SimpleNamespace(fit=Fit.crop))
    for facts_of, suite, wanted in (
        (sees, "robotwin_clean", Fit.crop),
        (SimpleNamespace(cameras=(), picture=None), "robotwin_clean", Fit.stretch),
        (sees, "maniskill", Fit.stretch),
    ):
        monkeypatch.setattr(opening, "policy_facts", lambda _, found=facts_of: found)
        assert opening.fit_for(find_suite(suite), Path("p")) is wanted


def test_a_broken_installation_is_not_taken_for_bad_luck_with_seeds(tmp_path):
    with (
        SimulatorPool(launch(tmp_path, broken=True)) as pool,
        pytest.raises(WorkerError, match=r"failed on 5 seeds in a row.*FileNotFoundError.*001_bottle|001_bottle"),
    ):
        pool.reset({0: Start(TASK, 0, 0)})


def test_seeds_are_verified_once_and_kept(tmp_path):
    asked = []

    def verify(candidate):
        asked.append(candidate)
        kind = (SOLVED, UNSTABLE, FAILED, UNSOLVED)[candidate % 4]
        return {"verdict": kind, "info": {"n": candidate}, "why": "x"}

    found = [VerifiedSeeds(tmp_path, verify).find(number, 1) for number in (0, 2, 1)]
    assert found == [(200000, {"n": 200000}), (200008, {"n": 200008}), (200004, {"n": 200004})]
    assert {seed: asked.count(seed) for seed in (200000, 200001, 200003, 200004)} == dict.fromkeys(
        (200000, 200001, 200003, 200004), 1
    )
    assert asked.count(200002) > 1  # an exception is tried again: the installation may have been mended
    with pytest.raises(RoboTwinError, match="solved 0, wanted is number 0"):
        VerifiedSeeds(tmp_path / "none", lambda _: {"verdict": UNSOLVED}).find(0, 0)


def test_bad_input(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SettingError, match="did you mean 'robotwin_clean'"):
        robotwin_launch("robotwin_clen")
    with pytest.raises(SettingError, match="unknown camera 'scene'"):
        robotwin_launch("robotwin_clean", cameras=("scene",))
    (tmp_path / "empty").mkdir()
    options = {"suite": "robotwin_clean", "checkout": str(tmp_path / "empty"), "seeds": str(tmp_path)}
    with (
        pytest.raises(WorkerError, match=r"no checkout of RoboTwin 2\.0: it lacks envs/_base_task\.py"),
        SimulatorPool(Launch("robotwin_clean", sys.executable, TARGET, options)),
    ):
        pass
