"""A world model behind a websocket imagines as the one in its folder; what clients and servers may send.

Units under test: ``rollout/serving/world_model.py``, ``rollout/serving/remote_world.py``, ``jobs/serve_world_model.py``.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.core.errors import ActionError, RemoteError, SettingError
from worldrl.core.rng import stream
from worldrl.core.types import first_frames
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.world_model.serve_world_model import ServeWorldModelSettings, open_server
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.workers.link.boot import load_file
from worldrl.world_models.loading import open_world_model

pytest.importorskip("websockets", reason="the extra serve brings it")
pytest.importorskip("msgpack", reason="the extra serve brings it")
fake = load_file("fake_openpi", Path(__file__).parents[1] / "fake_openpi.py")

from worldrl.rollout.serving.remote_world import RemoteWorld  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_world_model):
    found, model = tmp_path_factory.mktemp("served") / "world_model", make_world_model()
    model.config.outcome.threshold, model.config.outcome.debounce = 0.8, 1
    model.save(found)
    return found


@pytest.fixture(scope="module")
def url(folder, push_dataset):
    settings = ServeWorldModelSettings(world_model=str(folder), data=str(push_dataset), port=0, rows=3)
    with fake.running(open_server(settings)) as found:
        yield found


@pytest.fixture
def world(url):
    with RemoteWorld(url, num_envs=2, horizon=8) as found:
        yield found


def chunks(world, count=2):
    draw = np.random.default_rng(0)
    size = (count, world.num_envs, world.served.chunk_length, world.actions.size)
    return draw.uniform(-1, 1, size).astype(np.float32)


def locally(folder, records, actions, seed):
    """Frames and probabilities of the model in its folder."""
    model = open_world_model(folder).eval()
    state, found = model.start(records), []
    for number, action in enumerate(actions):
        generators = [stream(seed, "served", row, number) for row in range(len(records))]
        with torch.inference_mode():
            state, imagined = model.imagine(state, torch.from_numpy(action), generators=generators)
            found.append((model.decode(imagined.latent, first_frames(records)).numpy(), imagined.success_prob.numpy()))
    return [np.concatenate(part, axis=1) for part in zip(*found, strict=True)]


def test_recorded_starts_are_imagined_as_locally(world, folder, push_dataset):
    model, data, actions = open_world_model(folder), EpisodeDataset.open(push_dataset), chunks(world)
    obs, info = world.reset(seed=5, options={"index": [3, 0]})
    np.testing.assert_array_equal(obs["image"][0], data[3].frames[0, 0])
    assert info["instruction"] == [data[3].instruction, data[0].instruction]
    layout = {"memory_frames": model.memory_frames, "frame_stride": model.frame_stride, "source": "test"}
    frames, probability = locally(folder, [record_at(data[row], 0, **layout) for row in (3, 0)], actions, seed=5)
    steps = [world.step(action) for action in actions]
    np.testing.assert_array_equal(np.concatenate([step[-1]["frames"]["image"] for step in steps], axis=1), frames)
    np.testing.assert_array_equal(np.concatenate([step[-1]["success_prob"] for step in steps], axis=1), probability)
    np.testing.assert_array_equal(steps[-1][0]["image"], frames[:, -1])
    assert world.reset(seed=6, options={"index": [3, 0]})[0]["image"].shape == obs["image"].shape
    assert not np.array_equal(world.step(actions[0])[-1]["success_prob"], probability[:, : probability.shape[1] // 2])


def test_starts_that_the_client_sends_are_imagined_as_recorded_ones(world, push_dataset):
    data, action = EpisodeDataset.open(push_dataset), chunks(world, 1)[0]
    given = {"image": np.stack([data[row].frames[0, 0] for row in (0, 1)]), "command": np.stack([data[row].command[0] for row in (0, 1)])}  # fmt: skip
    world.reset(options={**given, "instruction": [data[row].instruction for row in (0, 1)]})
    sent = world.step(action)
    world.reset(options={"index": [0, 1]})
    recorded = world.step(action)
    np.testing.assert_array_equal(sent[0]["image"], recorded[0]["image"])
    np.testing.assert_allclose(sent[0]["command"], recorded[0]["command"])


def test_rewards_come_once_and_rows_end_at_their_horizon(world, folder, push_dataset):
    """The model's head is undecided around its threshold, so some rows succeed."""
    rewards = np.zeros(2)
    for seed in range(6):
        world.reset(seed=seed)
        over = np.zeros(2, bool)
        for number, action in enumerate(chunks(world, 3)):
            _, reward, terminated, truncated, info = world.step(action)
            hit = (info["success_prob"] >= 0.8).any(axis=1)
            np.testing.assert_array_equal(terminated, hit & ~over)
            np.testing.assert_array_equal(reward, terminated.astype(float))
            np.testing.assert_array_equal(truncated, ~over & ~hit & (4 * (number + 1) >= world.horizon))
            over |= terminated | truncated
            rewards += reward
        assert over.all()
    assert 0 < rewards.sum() < 12


GIVEN = {"image": np.zeros((2, 16, 16, 3), np.uint8), "command": np.zeros((2, 7)), "instruction": ["go", "go"]}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({}, "holds reset or step, this one nothing"),
        ({"step": np.zeros((2, 4, 7), np.float32)}, "step before reset"),
        ({"reset": {"index": [99]}}, "must be from 0 to"),
        ({"reset": {"index": [0.5]}}, "must be a list of whole numbers"),
        ({"reset": {"index": 3}}, "must be a list of whole numbers"),
        ({"reset": {"index": [0] * 4}}, "from 1 to 3 rows begin at once .*, got 4"),
        ({"reset": {"index": []}}, "got 0"),
        ({"reset": {}}, "from 1 to 3 rows"),
        ({"reset": {"index": [0]}, "seed": -1}, "seed: must be from 0"),
        ({"reset": {"index": [0]}, "seed": "x"}, "seed: must be a whole number"),
        ({"reset": {**GIVEN, "image": np.zeros((2, 8, 8, 3), np.uint8)}}, r"reset.image: must be uint8 \[2, 16, 16, 3\]; it is uint8 \[2, 8, 8, 3\]"),
        ({"reset": {**GIVEN, "command": np.full((2, 7), np.nan)}}, r"reset.command: must be float32 \[2, 7\], finite"),
        ({"reset": {**GIVEN, "command": np.full((2, 7), 1e300)}}, "finite"),
        ({"reset": {**GIVEN, "instruction": ["go", 3]}}, "reset.instruction: must be 2 texts"),
        ({"reset": {**GIVEN, "instruction": ["go", "x" * 2000]}}, "of at most 1024 characters"),
        ({"reset": {**GIVEN, "task": ["a"]}}, "reset.task: must be 2 texts"),
    ],
)  # fmt: skip
def test_requests_that_are_none_are_answered_in_a_text(url, request_, words):
    with fake.Client(url) as client:
        with pytest.raises(RuntimeError, match=words):
            client.infer(request_)
        assert client.infer({"reset": GIVEN})["image"].shape == (2, 16, 16, 3)


def test_a_wrong_chunk_changes_nothing(url):
    zeros, answers = np.zeros((1, 4, 7), np.float32), []
    with fake.Client(url) as client:
        for wrong in (None, zeros[0], zeros + 2, zeros * np.nan, "stop"):
            client.infer({"reset": {"index": [0]}})
            if wrong is not None:
                with pytest.raises(RuntimeError, match="action"):
                    client.infer({"step": wrong})
            answers.append(client.infer({"step": zeros})["success_prob"])
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


def test_the_client_checks_before_it_sends(world, url):
    with pytest.raises(Exception, match=r"call reset\(\)"):
        world.step(chunks(world)[0])
    world.reset()
    with pytest.raises(ActionError, match="must be a float array"):
        world.step(np.zeros((2, 7), np.float32))
    with pytest.raises(RemoteError, match=r"refuses: .*must be from 0 to"):
        world.reset(options={"index": [0, 99]})
    with pytest.raises(SettingError, match="of policies"):
        RemoteWorld(f"{url}?chunk=3", num_envs=1, horizon=8)


def test_a_policy_is_no_world_model_and_the_other_way_round(url):
    with pytest.raises(RemoteError, match="serves a world-model, not a policy"):
        policy_facts(Path(url))
    with fake.FakePolicy(fake.still).listening() as other, pytest.raises(RemoteError, match="serves no world model"):
        RemoteWorld(other, num_envs=1, horizon=8)


def test_answers_of_another_shape_are_named(url):
    with fake.Client(url) as client:
        said = client.metadata
        start = client.infer({"reset": {"index": [0]}})
        good = client.infer({"step": np.zeros((1, 4, 7), np.float32)})
    for name, value in (("image", good["image"][:, :1]), ("success_prob", good["success_prob"] * np.nan), ("command", None)):  # fmt: skip
        answers = [start, {**good, name: value}]
        with fake.FakePolicy(lambda number, _, answers=answers: answers[number - 1], said).listening() as other:
            world = RemoteWorld(other, num_envs=1, horizon=8)
            world.reset()
            with pytest.raises(RemoteError, match=f"{name} (must be|holds numbers)"):
                world.step(np.zeros((1, 4, 7), np.float32))
            world.close()


def test_a_lost_connection_begins_again_with_reset(folder):
    settings = ServeWorldModelSettings(world_model=str(folder), port=0)
    with fake.running(open_server(settings)) as other:
        world = RemoteWorld(other, num_envs=2, horizon=8)
        with pytest.raises(RemoteError, match="no recorded starts; start it with data=FOLDER"):
            world.reset()
        world.reset(options=GIVEN)
        world._link._connection.close_socket()
        with pytest.raises(RemoteError, match="step before reset; a connection that was lost"):
            world.step(np.zeros((2, 4, 7), np.float32))
        world.reset(options=GIVEN)
        assert world.step(np.zeros((2, 4, 7), np.float32))[0]["image"].shape == (2, 16, 16, 3)
        world.close()


def test_a_server_that_others_reach_wants_a_token(folder):
    with pytest.raises(SettingError, match="exposed=true"):
        ServeWorldModelSettings(host="0.0.0.0")
    with pytest.raises(SettingError, match="token_file=FILE"):
        ServeWorldModelSettings(exposed=True)
    with pytest.raises(SettingError, match="learned nothing"):
        ServeWorldModelSettings(world_model="scratch")
