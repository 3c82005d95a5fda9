"""Real Ray on this machine: a head and two nodes, of which one is killed. One cluster serves all tests of the file.

Units under test: ``simulators/ray_engine.py``, ``simulators/ray_cluster.py``, ``recipes/ray_tasks.py``,
``methods/rl/imagining_on_ray.py``.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import WorkerEnvironmentError, WorkerError
from worldrl.methods.rl.imagining_on_ray import RayImaginer, RayImaginers
from worldrl.policies.exploration import Exploration
from worldrl.recipes.ray_tasks import RayCrew, order_of
from worldrl.recipes.side_by_side import run_tasks
from worldrl.reproductions.catalogue import Cell, Task
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.agents.policy_actor import PolicyActor
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.episodes import Rules, play_episodes
from worldrl.simulators.arrivals import require_listener
from worldrl.simulators.pool import SimulatorPool
from worldrl.simulators.process import LOCAL, Launch
from worldrl.simulators.ray_cluster import MEND, RayCluster
from worldrl.simulators.ray_engine import RayEngine
from worldrl.workers.link.boot import load_file

script = load_file("improve_script", Path(__file__).parents[1] / "methods" / "improve_script.py")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of files and of later versions
    pytest.mark.xdist_group("ray"),
]
STORE_BYTES = 80 << 20
TARGET = f"{Path(__file__).parents[1] / 'workers' / 'fake_suite.py'}:Fake"
HORIZON = {"reach_right": 40, "reach_up": 40}


class Nodes:
    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add(), self.add()]

    def add(self):
        return self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

    def replace(self, number):
        self.cluster.remove_node(self.nodes[number], allow_graceful=False)
        self.nodes[number] = self.add()


@pytest.fixture(scope="module")
def nodes():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("PYTHONPATH", ":".join(sys.path))
        import ray

        made = Nodes()
        yield made
        ray.shutdown()
        made.cluster.shutdown()


@pytest.fixture(scope="module")
def engine(nodes):
    return RayEngine(nodes.cluster.address)


def play(engine, disturb=lambda number: None):
    """Twelve episodes of two workers; ``disturb`` is called after each result."""
    launch = Launch("fake", sys.executable, TARGET, {"image_size": 0})
    specs = [EpisodeSpec(task, index, 5, init_id=index) for task in HORIZON for index in range(6)]
    found = []
    with SimulatorPool(launch, workers=2, slots=2, restarts=0, engine=engine) as pool:
        for outcome in play_episodes(pool, specs, ExpertActor(), Rules(HORIZON, (), 2, frozenset())):
            found.append(outcome.to_json())
            disturb(len(found))
    return {(row["task"], row["index"]): row for row in found}, len(found)


def test_a_policys_episodes_equal_the_local_ones(engine, specs, options, policy_folder):
    planned = [(spec, PolicyActor(str(policy_folder), exploration=Exploration())) for spec in specs[:2]]
    local, ray = (
        [o.to_json() for o in EmbeddedPlayer(options, workers=2, engine=each).play(planned, record=False)]
        for each in (LOCAL, engine)
    )
    assert local == ray


def test_killed_nodes_lose_and_double_nothing(nodes, engine):
    local = play(LOCAL)
    assert play(engine, lambda number: nodes.replace(number % 2) if number in (3, 8) else None) == local


@pytest.fixture
def crew(nodes, tmp_path):
    return RayCrew(RayCluster(nodes.cluster.address), 0.0, tmp_path)


def tasks(place):
    """Two stages of a reproduction, by folder."""
    return {str(place / name): Task("neubay-bandit", "tiny", {}, Cell(name, 3)) for name in ("neutral", "penalised")}


def computed_by(crew, place, workers=2):
    found = {}
    run_tasks("test", tasks(place), workers, on_result=lambda folder, result: found.update({folder: result}), crew=crew)
    return {Path(folder).name: result for folder, result in found.items()}


def test_tasks_on_nodes_equal_those_of_this_process(crew, tmp_path):
    local = computed_by(None, tmp_path / "local", workers=0)
    assert computed_by(crew, tmp_path / "ray") == local


def test_a_task_of_a_killed_node_is_computed_once_more_elsewhere(nodes, crew, tmp_path):
    start, started = crew.start, []

    def start_and_kill(folder, task):
        start(folder, task)
        started.append(folder)
        if len(started) == 2:
            nodes.replace(0)

    crew.start = start_and_kill
    assert computed_by(crew, tmp_path / "ray") == computed_by(None, tmp_path / "local", workers=0)


AHEAD = [
    ("self_training", {"processes": 3}),
    ("grpo", {"staleness": 2}),
    ("grpo", {"staleness": 2, **script.PARTIAL}),
]


def improved(folder, algorithm, imaginers=None, **settings):
    """Weights and history of an improvement."""
    folder.mkdir()
    torch.set_num_threads(1)  # as on the nodes: threads change sums
    learner, history = script.improved(algorithm, folder, imaginers=imaginers, **settings)
    return learner.state_dict(), history


@pytest.mark.parametrize(("algorithm", "ahead"), AHEAD)
def test_imagination_on_nodes_one_of_which_is_killed_equals_that_of_this_machine(
    nodes, tmp_path, monkeypatch, algorithm, ahead
):
    take, taken = RayImaginer.take, []

    def disturbed(self):
        taken.append(self)
        if len(taken) in (2, 5):
            nodes.replace(len(taken) % 2)
        return take(self)

    weights, history = improved(tmp_path / "local", algorithm, **ahead)
    monkeypatch.setattr(RayImaginer, "take", disturbed)
    found, told = improved(tmp_path / "ray", algorithm, RayImaginers(RayCluster(nodes.cluster.address), 0.0), **ahead)
    assert told == history
    assert len(taken) >= 7
    assert all(torch.equal(found[name], value) for name, value in weights.items())


def test_an_error_on_a_node_is_one_line_of_the_setting(nodes, tmp_path):
    imaginers = RayImaginers(RayCluster(nodes.cluster.address), 0.0)
    imaginer = imaginers(SimpleNamespace(policy=torch.nn.Linear(1, 1)), tmp_path, "improvement.x", threads=1)
    imaginer.ask(None, 0, torch.nn.Linear(1, 1).state_dict())
    with pytest.raises(WorkerError, match=r"^improvement.x: a batch failed: AttributeError: .*imagine.*; the same"):
        imaginer.take()
    imaginer.close()


def test_a_node_that_does_not_see_the_run_is_named_before_anything_starts(nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "worldrl.recipes.ray_tasks.order_of", lambda paths, place: order_of([*paths, "/not/here"], place)
    )
    with pytest.raises(WorkerEnvironmentError, match=r"node \S+ lacks /not/here; put the current folder and run_dir"):
        RayCrew(RayCluster(nodes.cluster.address), 0.0, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_cluster_without_room_says_that_the_command_waits(nodes, tmp_path, caplog):
    RayCrew(RayCluster(nodes.cluster.address), 0.0, tmp_path)
    assert "waiting" not in caplog.text
    RayCrew(RayCluster(nodes.cluster.address), 2.0, tmp_path)
    assert "no node has a core and 2 GPUs yet; waiting for one" in caplog.text


def test_an_error_of_a_task_is_one_line(crew, tmp_path):
    wrong = {str(tmp_path / "x"): Task("neubay-bandit", "no-scale", {}, Cell("neutral", 3))}
    with pytest.raises(WorkerError, match=r"^neutral, seed 3: KeyError: 'no-scale'$"):
        run_tasks("test", wrong, 1, on_result=lambda folder, result: None, crew=crew)


def test_a_node_that_lacks_something_is_named_before_anything_starts(engine, monkeypatch):
    order = engine._order
    monkeypatch.setattr(
        engine, "_order", lambda launch: {**order(launch), "paths": ["/no/such/assets"], "mend": "fetch them"}
    )
    monkeypatch.setattr(engine, "_starter", None)  # no actor may be made
    with pytest.raises(WorkerEnvironmentError, match=r"node \S+ lacks /no/such/assets; fetch them"):
        play(engine)


def test_no_cluster_at_the_address_is_one_line():
    with pytest.raises(
        WorkerEnvironmentError, match=r"^ray\.address=127\.0\.0\.1:1: no Ray cluster answers; start one with [^\n]*$"
    ):
        require_listener("127.0.0.1:1", MEND)
