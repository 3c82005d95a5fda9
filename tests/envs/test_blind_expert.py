"""The blind expert tries each skill once and continues whatever became of it: its actions must not tell the outcome."""

from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

import worldrl_envs
from worldrl_envs import predicates
from worldrl_envs.experts import ScriptedExpert
from worldrl_envs.scene import OBJECTS
from worldrl_envs.skills import CARRY_HEIGHT, CLOSED, GRASP_HEIGHT, SKILLS, Goal, _grasp_yaw, grasp
from worldrl_envs.tasks import get_task

ONCE = ("PlaceCubeInBin", "OpenDrawer", "CloseDrawer", "PushCubeToTarget")
LONG = ("PlaceRedThenBlueInBin", "PlaceCubeInDrawer")


@dataclass(frozen=True)
class Run:
    """One episode: actions ``[T, 7]``, commanded positions after them ``[T, 3]``, success ``[T]``."""

    action: NDArray[np.float32]
    command: NDArray[np.float32]
    success: NDArray[np.bool_]

    @property
    def closings(self) -> int:
        """How often the gripper closed."""
        closed = self.action[:, 6] > 0
        return int((np.diff(closed, prepend=False) & closed).sum())

    @property
    def descents(self) -> int:
        """How often the hand came down to the table's things."""
        low = self.command[:, 2] < 0.07
        return int((np.diff(low, prepend=False) & low).sum())


def play(task: str, *, blind: bool, goal_offset: float, seed: int, noise: float = 0.0) -> Run:
    env = gymnasium.make(worldrl_envs.env_id(task), obs="state", terminate_on_success=False, disable_env_checker=True)
    generator = np.random.default_rng(seed)
    expert = ScriptedExpert(task, generator=generator, noise=noise, goal_offset=goal_offset, blind=blind)
    env.reset(seed=seed, options={"index": 0})
    expert.reset(env)
    actions, commands, success = [], [], []
    for _ in range(get_task(task).horizon):
        actions.append(expert.act(env))
        success.append(bool(env.step(actions[-1])[-1]["is_success"]))
        commands.append(env.unwrapped.command[:3].copy())
    env.close()
    return Run(np.stack(actions), np.stack(commands), np.array(success))


# --- picks ----------------------------------------------------------------------------------------------------------


def pick(*, blind: bool, goal_offset: float, seed: int) -> Run:
    return play("PickRedCube", blind=blind, goal_offset=goal_offset, seed=seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_blind_pick_closes_once_and_lifts_even_when_it_misses(seed):
    run = pick(blind=True, goal_offset=0.025, seed=seed)
    assert run.closings == 1
    height = run.command[run.action[:, 6] > 0, 2].max()
    assert height > 0.1, f"lifted to {height:.3f} m, success {run.success.any()}"


def test_some_blind_picks_miss_and_a_seeing_expert_tries_again():
    blind = [pick(blind=True, goal_offset=0.025, seed=seed) for seed in range(6)]
    seeing = [pick(blind=False, goal_offset=0.025, seed=seed) for seed in range(6)]
    assert not all(run.success.any() for run in blind)
    assert max(run.closings for run in seeing) > 1
    assert sum(run.success.any() for run in seeing) > sum(run.success.any() for run in blind)


def test_without_an_offset_a_blind_pick_succeeds():
    assert all(pick(blind=True, goal_offset=0.0, seed=seed).success.any() for seed in range(4))


def pick_as_recorded(sim, command, memory, name):
    """What a pick was when the published recordings of the picking tasks were made."""
    if memory.phase == "lift" or (not memory.blind and predicates.held(sim, name)):
        memory.enter("lift" if memory.blind else "")
        up = np.array([*command[:2], CARRY_HEIGHT])
        return Goal(up, float(command[5]), CLOSED, reached=sim.height(name) > predicates.LIFT_HEIGHT)
    point = np.array([*sim.position(name)[:2], min(GRASP_HEIGHT, OBJECTS[name].rest_height)])
    return grasp(bool(sim.fingers.sum() > 0.07), command, memory, point, _grasp_yaw(sim, name))


@pytest.mark.parametrize("blind", [False, True])
def test_picking_recordings_stay_bit_for_bit_what_they_were(monkeypatch, blind):
    settings = {"blind": blind, "goal_offset": 0.02, "noise": 0.15}
    now = [play("PickGreenCylinder", seed=seed, **settings) for seed in range(3)]
    monkeypatch.setitem(SKILLS, "pick", pick_as_recorded)
    for seed, run in enumerate(now):
        np.testing.assert_array_equal(run.action, play("PickGreenCylinder", seed=seed, **settings).action)


# --- the other skills -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [*ONCE, *LONG])
def test_without_an_offset_every_blind_task_succeeds(task):
    assert all(play(task, blind=True, goal_offset=0.0, seed=seed).success.any() for seed in range(2))


@pytest.fixture(scope="module")
def misplaced():
    """Eight episodes of each task, blind and seeing, with misplaced goals."""
    return {
        task: {blind: [play(task, blind=blind, goal_offset=0.025, seed=seed) for seed in range(8)] for blind in (True, False)}
        for task in ONCE
    }  # fmt: skip


@pytest.mark.parametrize("task", ONCE)
def test_blind_attempts_end_as_near_misses_where_a_seeing_expert_tries_again(misplaced, task):
    blind, seeing = (sum(run.success.any() for run in misplaced[task][blind]) for blind in (True, False))
    assert 0 < blind < 8
    assert seeing > blind


@pytest.mark.parametrize("task", ONCE)
def test_nothing_is_tried_twice(misplaced, task):
    """What takes closes once, what pushes comes down once; an arm that never reached its misplaced goal has not begun."""
    takes = task in ("PlaceCubeInBin", "OpenDrawer")
    tries = {
        blind: [run.closings if takes else run.descents for run in runs] for blind, runs in misplaced[task].items()
    }
    assert max(tries[True]) == 1
    assert sum(tries[True]) >= 6
    assert max(tries[False]) > 1 or task == "CloseDrawer"  # whose error is sideways alone for an expert that sees


@pytest.mark.parametrize("task", ONCE)
def test_a_blind_hand_ends_the_same_whatever_became_of_it(misplaced, task):
    """Risen and at rest, its fingers as after a success: where the thing is tells the outcome, not the hand."""
    runs = misplaced[task][True]
    assert {bool(run.success.any()) for run in runs} == {True, False}
    ended = [run for run in runs if run.command[-1, 2] > CARRY_HEIGHT - 0.01]
    assert {bool(run.success.any()) for run in ended} == {True, False}
    assert len(ended) >= 6
    assert len({float(run.action[-1, 6]) for run in ended}) == 1
    for run in ended:
        assert np.abs(run.action[-1, :6]).max() < 0.1


@pytest.mark.parametrize("task", LONG)
def test_a_plan_continues_after_a_miss(task):
    """To its last skill: the hand closes once for each thing to take, and has let go at the end."""
    taken = sum(skill in ("pick", "open") for skill, *_ in get_task(task).plan)
    runs = [play(task, blind=True, goal_offset=0.015, seed=seed) for seed in range(6)]
    through = [run for run in runs if run.closings == taken and run.action[-1, 6] < 0]
    assert max(run.closings for run in runs) == taken
    assert {bool(run.success.any()) for run in through} == {True, False}
