"""What went wrong for users of other tools, and must not here: the table of docs/reference/pitfalls.md and its missing tests."""

import ast
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import worldrl.workers.libero.package as libero_package
from worldrl.core.errors import ActionError, ProtocolError
from worldrl.evaluation.policy.compare import compare
from worldrl.evaluation.policy.protocol import EvalProtocol, suite_protocol
from worldrl.evaluation.policy.result import EvalResult
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec
from worldrl.rollout.suites.episodes import Rules, play_episodes
from worldrl.rollout.suites.registry import find_suite
from worldrl.simulators.pool import SimulatorPool, Start
from worldrl.simulators.process import Launch
from worldrl.workers.libero import facts as libero_facts
from worldrl.workers.libero.observation import command_vector, state_vector
from worldrl.workers.link.rotations import axis_angle

ROOT = Path(__file__).parents[2]
TARGET = f"{ROOT / 'tests' / 'workers' / 'fake_suite.py'}:Fake"
SOURCES = {"bddl": "b0", "robosuite": "r0", "libero": "l0"}
DESCRIBED = {
    "tasks": [{"name": "a"}],
    "packages": {"mujoco": "3.3.7"},
    "assets": "0123",
    "sources": SOURCES,
    "stored_states": 50,
    "control_hz": 20.0,
}
LINE = re.compile(r"^\| .+? \| .+? \| `(tests/[\w/]+\.py)::(\w+)`", flags=re.MULTILINE)


def protocol(described=DESCRIBED, **settings):
    values = {"episodes_per_task": 5, "seed": 0, "chunk_length": 1, "shadows": True, **settings}
    return suite_protocol(find_suite("libero_goal"), described, **values)


def result(made: EvalProtocol) -> EvalResult:
    return EvalResult(made, "p", "0", tuple(EpisodeOutcome(spec, True, True, 9, 9) for spec in made.specs()))


def launch(**options):
    return Launch("fake", sys.executable, TARGET, options)


def table_rows() -> list[tuple[str, str, bool]]:
    """File, test and whether it is marked ``libero``, of every row of the table; a row that names none fails."""
    section = (ROOT / "docs" / "reference" / "pitfalls.md").read_text().partition("## Mistakes of others")[2]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    found = [LINE.match(row) for row in rows]
    assert None not in found, [row for row, named in zip(rows, found, strict=True) if named is None]
    return [(named[1], named[2], row.endswith("(`libero`) |")) for row, named in zip(rows, found, strict=True) if named]


def test_every_row_of_the_table_names_a_test_that_is_collected():
    """At the top of a ``test_*.py`` and called ``test_*``, so that pytest takes it; behind the mark that the row says, and no other skip."""
    rows = table_rows()
    assert len(rows) >= 47
    for file, name, marked in rows:
        assert Path(file).name.startswith("test_")
        tree = ast.parse((ROOT / file).read_text())
        (test,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
        assert name.startswith("test_"), f"{file}::{name}"
        globally = [
            ast.unparse(n.value)
            for n in tree.body
            if isinstance(n, ast.Assign) and "pytestmark" in ast.unparse(n.targets[0])
        ]
        marks = " ".join([*globally, *map(ast.unparse, test.decorator_list)])
        assert "skip" not in marks, f"{file}::{name} is skipped"
        assert ("mark.libero" in marks) == marked, f"{file}::{name}"


def test_another_mujoco_is_refused_before_any_episode(monkeypatch):
    """LIBERO lost 86 points on one task by a floating pin."""
    installed = dict(libero_facts.PHYSICS[libero_facts.VERSION])
    monkeypatch.setattr(libero_package, "version", lambda name: {**installed, "mujoco": "3.4.0"}[name])
    with pytest.raises(
        libero_package.LiberoError, match=r"means .*3\.3\.7.*installed are .*3\.4\.0.*worldrl setup libero"
    ):
        libero_package.require_packages(libero_facts.VERSION)
    monkeypatch.setattr(libero_package, "version", installed.__getitem__)
    assert libero_package.require_packages(libero_facts.VERSION) == installed
    lock = (Path(libero_package.__file__).parents[1] / "locks" / "libero.txt").read_text()
    assert all(f"{name}=={version}\n" in lock for name, version in installed.items())


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({**DESCRIBED, "packages": {"mujoco": "3.9.0"}}, "packages"),
        ({**DESCRIBED, "assets": "4567"}, "conventions"),
        ({**DESCRIBED, "sources": {**DESCRIBED["sources"], "bddl": "fork"}}, "conventions"),
        ({**DESCRIBED, "sources": {**DESCRIBED["sources"], "robosuite": "fork"}}, "conventions"),
    ],
)
def test_results_of_other_packages_or_assets_refuse_to_be_compared(changed, field):
    """A private fork of a benchmark, or another renderer's meshes, must be seen by everyone."""
    with pytest.raises(ProtocolError, match=field):
        compare(result(protocol()), result(protocol(changed)))


def test_images_are_turned_and_states_put_together_in_one_place():
    """Turned twice, an image is upside down again: 0 of 5 instead of 5 of 5."""
    workers = ROOT / "worldrl" / "workers" / "libero"
    turning = [p.name for p in workers.glob("*.py") if "::-1" in p.read_text()]
    assert turning == ["observation.py"]
    reading = [p.name for p in workers.glob("*.py") if "robot0_gripper_qpos" in p.read_text()]
    assert reading == ["observation.py"]


TURNS = re.compile(r"\b(flip|fliplr|flipud|rot90|hflip|vflip|rotate)\(|::-1|\b(FLIP|ROTATE)_")
TURNING = {
    "workers/metaworld/adapter.py": 1,  # Meta-World's camera hangs upside down
    "workers/libero/observation.py": 1,  # LIBERO's images: the one place
    "core/image_fit.py": 1,
    "evaluation/policy/ranking.py": 1,  # paths read from their last part
    "data/lerobot/external/images.py": 3,  # datasets of others say how theirs stand; a size given to OpenCV
    "evaluation/conventions/conventions.py": 6,  # what demonstrations are tried under, and the lines that are printed
    "rewards/execution_critic.py": 1,  # two halves of the plans
    "rewards/motion/acceptance.py": 1,  # clips in the order of time, reversed
    "rollout/imagined/reset_store.py": 1,  # steps of time
    "rollout/real/execution.py": 2,  # steps of time
    "rollout/suites/batched_arm.py": 1,  # bodies of a chain
    "jobs/world_model/report.py": 1,  # an order of rows
    "jobs/world_model/judge_report.py": 1,  # an order of films
    "nn/vision.py": 1,  # an offset (down, right) as (x, y)
    "methods/rl/credit.py": 1,  # steps of time
    "reproductions/edge_of_reach/plane.py": 1,  # two coordinates
    "methods/alignment/branch_grpo.py": 1,  # levels of a tree
    "methods/alignment/imagination.py": 1,  # levels of a tree
    "methods/offline/critic_gradient.py": 1,  # levels of noise
    "methods/offline/neubay/lru.py": 1,  # steps of time
}
"""File of worldrl → lines that reverse an axis."""


def test_no_image_is_turned_anywhere_else():
    """A second place that turns images is how they come to be turned twice; a new line belongs here with its reason."""
    found = {}
    for path in sorted((ROOT / "worldrl").rglob("*.py")):
        lines = [line for line in path.read_text().splitlines() if TURNS.search(line.partition("#")[0])]
        if lines:
            found[path.relative_to(ROOT / "worldrl").as_posix()] = lines
    assert {name: len(lines) for name, lines in found.items()} == TURNING, found


def test_the_state_is_the_end_effectors_and_the_fingers():
    """Another source of the same eight numbers cost 56 points."""
    obs = {
        "robot0_eef_pos": np.array([0.1, 0.2, 1.1]),
        "robot0_eef_quat": np.array([0.999, 0.02, 0.03, 0.01]),
        "robot0_gripper_qpos": np.array([0.04, -0.04]),
        "robot0_joint_pos": np.arange(7.0),
        "robot0_gripper_qvel": np.ones(2),
    }
    state = state_vector(obs)
    np.testing.assert_allclose(state, [0.1, 0.2, 1.1, *axis_angle(obs["robot0_eef_quat"]), 0.04, -0.04], atol=1e-6)
    assert command_vector(obs, 1.0)[6] == 1.0
    assert libero_facts.NO_OP[6] == -1.0  # open


def played(specs, *, slots=2, horizon=40, **options):
    with SimulatorPool(launch(**options), slots=slots) as pool:
        return list(
            play_episodes(pool, specs, ExpertActor(), Rules(dict.fromkeys(("reach_right", "reach_up"), horizon)))
        )


def test_initial_states_depend_neither_on_early_success_nor_on_slots_nor_on_the_seed_of_sampling():
    """A counter in the environment gave other states to policies that succeed early."""
    specs = [EpisodeSpec(task, n, 5, init_id=n) for task in ("reach_right", "reach_up") for n in range(3)]
    late, early = played(specs, slots=1, horizon=3), played(specs, slots=3)
    assert {o.steps for o in late} == {3}
    assert all(o.success_once for o in early)
    assert sorted(o.spec.key for o in late) == sorted(o.spec.key for o in early) == sorted(s.key for s in specs)
    init = [spec.init_id for spec in protocol(seed=0).specs()]
    assert init == [spec.init_id for spec in protocol(seed=1).specs()] == list(range(5))


def test_each_stored_state_is_played_once():
    """An index that never moved on played every episode from the first state."""
    specs = protocol().specs()
    assert sorted(spec.init_id for spec in specs) == list(range(5))
    with SimulatorPool(launch(), slots=1) as pool:
        starts = [Start("reach_up", spec.init_id, spec.seed) for spec in specs]
        found = [pool.reset({0: start}, render=False)[0]["state"] for start in starts]
    assert len({state.tobytes() for state in found}) == len(specs)


def test_two_identical_runs_are_identical():
    specs = [EpisodeSpec("reach_up", n, 5, init_id=n) for n in range(3)]
    assert played(specs) == played(specs)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_action_that_is_no_number_never_reaches_a_simulator(bad):
    """Statistics that were missing, and numbers that were never brought to their range, only did badly elsewhere."""
    with SimulatorPool(launch()) as pool:
        before = pool.reset({0: Start("reach_up", 1, 0)}, render=False)[0]["state"]
        action = np.zeros(7, np.float32)
        action[2] = bad
        with pytest.raises(ActionError, match=r"reach_up initial state 1.*not finite"):
            pool.step({0: action})
        after = pool.step({0: np.zeros(7, np.float32)}, render=())[0]["state"]
    np.testing.assert_array_equal(before, after)


def test_a_rate_is_counts_and_says_both_kinds_of_success():
    """43.9 % of 500 is not a whole number; 75 % and 29 % were the same rollouts."""
    made = result(protocol(hold_steps=5))
    outcomes = (replace(made.outcomes[0], success_at_end=False), *made.outcomes[1:])
    metrics = replace(made, outcomes=outcomes).metrics()
    assert (metrics["success"]["k"], metrics["success_at_end"]["k"], metrics["success"]["n"]) == (5, 4, 5)
    assert {"lo", "hi", "method"} < metrics["success"].keys()
