"""``policy=ws://HOST:PORT`` in the commands that measure a policy, in the simulator and in imagination.

Units under test: ``policies/remote`` behind ``evaluate``, ``benchmark``, ``collect``, ``rank`` and
``evaluate-world-model``. The server is worldrl's own, or one that fails.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from worldrl.cli import main as cli
from worldrl.core.errors import SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.policy import rank
from worldrl.jobs.policy.rank import RankSettings
from worldrl.jobs.policy.serve_policy import ServePolicySettings, open_server
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts
from worldrl.workers.link.boot import load_file

pytest.importorskip("websockets", reason="the extra serve brings it")
pytest.importorskip("msgpack", reason="the extra serve brings it")
fake = load_file("fake_openpi", Path(__file__).parents[1] / "fake_openpi.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_policy):
    found = tmp_path_factory.mktemp("served") / "policy"
    tiny_policy(seed=1).save(found)
    return found


@pytest.fixture(scope="module")
def url(folder):
    with fake.running(open_server(ServePolicySettings(policy=str(folder), protocol="openpi", port=0))) as found:
        yield found


def outcomes(run):
    rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    return sorted(({name: row[name] for name in ("spec", "success", "length") if name in row} for row in rows), key=str)


@pytest.mark.parametrize("command", ["evaluate", "benchmark"])
def test_a_measurement_is_that_of_the_policy_in_its_folder(command, folder, url, tmp_path, capsys):
    given = ["tasks=[PickRedCube,PushCubeToTarget]", "episodes=1", "workers=0"]
    given += ["failures=0"] if command == "benchmark" else ["videos=0"]
    for name, policy in (("folder", folder), ("address", url)):
        assert cli([command, f"policy={policy}", f"run_dir={tmp_path / name}", *given]) == 0, capsys.readouterr().err
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("folder", "address")]
    assert results[0]["protocol_hash"] == results[1]["protocol_hash"]
    assert outcomes(tmp_path / "folder") == outcomes(tmp_path / "address") != []
    assert (
        cli(["compare", f"a={tmp_path / 'folder'}", f"b={tmp_path / 'address'}", f"run_dir={tmp_path / 'compare'}"])
        == 0
    )


def test_a_server_that_dies_in_a_measurement_is_one_line(tmp_path, capsys):
    server = fake.FakePolicy(lambda number, observation: fake.still(number, observation) if number < 4 else "KeyError: 'observation/foo'")  # fmt: skip
    with server.listening() as url:
        given = [f"policy={url}?size=32", "tasks=[PickRedCube]", "episodes=1", "workers=1", "videos=0"]
        assert cli(["evaluate", *given, f"run_dir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "worldrl: worker 0 (PickRedCube episode" in said
    assert "the server refuses: KeyError: 'observation/foo'" in said


def test_a_temperature_and_a_planner_are_refused_before_anything_starts(url, tmp_path, capsys):
    for more, words in (("temperature=0.5", "decides how it draws"), ("planner=best_of_n", "planner: best_of_n draws")):
        assert cli(["evaluate", f"policy={url}", "workers=0", "tasks=[PickRedCube]", "episodes=1", more, f"run_dir={tmp_path / more}"]) == 2  # fmt: skip
        assert words in capsys.readouterr().err


def test_its_episodes_are_collected_real_and_imagined(url, tmp_path, make_world_model, capsys):
    make_world_model().save(tmp_path / "world")
    given = [f"policy={url}", "policy_episodes=1", "imagined_episodes=1", f"world_model={tmp_path / 'world'}"]
    given += ["expert_episodes=0", "tasks=[PickRedCube]", "workers=0", f"run_dir={tmp_path / 'run'}"]
    assert cli(["collect", *given, "image_size=32"]) == 2
    assert "observes images of (16, 16) pixels, image_size is 32" in capsys.readouterr().err
    assert cli(["collect", *given, "image_size=16"]) == 0, capsys.readouterr().err
    assert {record.meta["source"] for record in EpisodeDataset.open(tmp_path / "run" / "dataset").records} == {
        "policy",
        "dream",
    }
    assert len(PolicyRollouts.load(tmp_path / "run" / "imagined_rollouts.npz")) == 1


def test_it_is_ranked_in_imagination_as_the_policy_in_its_folder(
    url, folder, tmp_path, make_world_model, tiny_policy, push_dataset
):
    model = make_world_model()
    model.config.outcome.threshold, model.config.outcome.debounce = 0.957, 1
    model.save(tmp_path / "world")
    tiny_policy(seed=2).save(tmp_path / "other")

    def ranked(name, policy, **over):
        policies = [str(policy), str(tmp_path / "other")]
        given = {
            "gates": "warn",
            "batch": 8,
            "data": [str(push_dataset)],
            "world_model": str(tmp_path / "world"),
            **over,
        }
        return rank.main(RankSettings(run_dir=str(tmp_path / name), policies=policies, **given))

    own, remote = ranked("own", folder), ranked("remote", url)
    assert [one["imagined"] for one in own["policies"]] == [one["imagined"] for one in remote["policies"]]
    for file in sorted((tmp_path / "own").rglob("02-policy-1/**/*.npz")):
        other = tmp_path / "remote" / file.relative_to(tmp_path / "own")
        np.testing.assert_array_equal(PolicyRollouts.load(file).action, PolicyRollouts.load(other).action)
    with pytest.raises(SettingError, match="decides how it draws"):
        ranked("drawn", url, temperature=1.0)


def test_a_policy_of_other_chunks_or_images_than_the_world_models_is_refused(
    tmp_path, make_world_model, push_dataset, folder
):
    make_world_model().save(tmp_path / "world")
    with fake.FakePolicy(fake.still).listening() as url:
        settings = RankSettings(run_dir=str(tmp_path / "run"), policies=[url, str(folder)], data=[str(push_dataset)], world_model=str(tmp_path / "world"))  # fmt: skip
        with pytest.raises(SettingError, match=r"another chunk_length and image_size(?s:.)*\?chunk=4&size=16"):
            rank.main(settings)
        settings.policies[0] += "?chunk=4&size=16"
        with pytest.raises(SettingError, match="wrist_image"):
            rank.main(settings)
