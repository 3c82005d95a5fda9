"""Unit under test: ``worldrl rank``, in a tiny world model without a simulator."""

import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from worldrl.cli import main as cli
from worldrl.commands import COMMANDS
from worldrl.core.errors import GateError, RunDirectoryError, SettingError
from worldrl.core.storage.learned import Learned
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.policy import rank
from worldrl.jobs.policy.rank import RankSettings
from worldrl.recipes import imagined_success
from worldrl.recipes.imagined_success import untested
from worldrl.rewards.success import HIGHEST_THRESHOLD, SuccessRule
from worldrl.settings import compose, parse_overrides

RULE = SuccessRule(0.6, 1)


@pytest.fixture(scope="module")
def shop(tmp_path_factory, make_world_model, tiny_policy):
    """A world model whose head is undecided, and three policies."""
    folder = tmp_path_factory.mktemp("rank")
    model = make_world_model()
    model.config.outcome.threshold, model.config.outcome.debounce = 0.957, 1
    model.save(folder / "world_model")
    for number in range(3):
        tiny_policy(seed=number).save(folder / f"p{number}" / "policy")
    return folder


@pytest.fixture
def ask(shop, push_dataset, tmp_path):
    def settings(*order, name="run", **over):
        policies = [str(shop / f"p{number}" / "policy") for number in order or (0, 1, 2)]
        given = {"gates": "warn", "temperature": 1.0, "batch": 5, "data": [str(push_dataset)], "policies": policies}
        return RankSettings(
            **({"run_dir": str(tmp_path / name), "world_model": str(shop / "world_model")} | given | over)
        )

    return settings


def test_it_ranks_from_recorded_frames_and_calls_everything_imagined(ask, tmp_path, capsys):
    metrics = rank.main(ask())
    assert metrics["starts"] == 16
    assert len({one["imagined"]["k"] for one in metrics["policies"]}) > 1
    assert sum(one["probability_best"] for one in metrics["policies"]) == pytest.approx(1)
    assert len(metrics["pairs"]) == 3
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["command"], result["metrics"]["order"]) == ("rank", metrics["order"])
    page, said = (tmp_path / "run" / "report.html").read_text(), capsys.readouterr().err
    assert "Do not trust this ranking: gate psnr failed." in said
    assert "Do not trust this ranking: gate psnr failed." in page
    for text in (page, said):
        assert "success rate" not in text
        assert "Imagined success" in text


def test_permuted_policies_permute_the_result(ask):
    first, other = rank.main(ask(name="a")), rank.main(ask(2, 0, 1, name="b"))
    assert [first["policies"][one] for one in (2, 0, 1)] == other["policies"]
    assert (first["order"], first["pairs"]) == (other["order"], other["pairs"])


def test_processes_side_by_side_imagine_what_one_does(ask):
    torch.set_num_threads(1)  # as each of them
    alone = rank.main(ask(0, 1, name="alone"))
    assert rank.main(ask(0, 1, name="side-by-side", workers=2)) == alone


def test_policies_that_are_imagined_already_start_no_process(ask, monkeypatch):
    alone = rank.main(ask(0, 1))
    monkeypatch.setattr(rank, "run_tasks", None)
    assert rank.main(ask(0, 1, workers=2)) == alone


def test_the_same_policy_in_another_folder_meets_the_same_noise(ask, shop, tmp_path):
    shutil.copytree(shop / "p0", tmp_path / "copy")
    metrics = rank.main(ask(policies=[str(shop / "p0" / "policy"), str(tmp_path / "copy" / "policy")]))
    (pair,) = metrics["pairs"]
    assert (pair["only_a"], pair["only_b"]) == (0, 0)
    assert 0 < pair["both"] < pair["n"]
    assert [one["probability_best"] for one in metrics["policies"]] == [0.5, 0.5]


def test_a_run_that_was_stopped_resumes_to_the_same_result(ask, tmp_path, monkeypatch):
    whole, imagined = rank.main(ask(name="whole")), []
    inner = imagined_success.imagined_outcomes

    def stops(model, folder, *args, advance, **settings):
        def counted(rows):
            advance(rows)
            if len(imagined) == 5:
                raise KeyboardInterrupt
            imagined.append(rows)

        return inner(model, folder, *args, advance=counted, **settings)

    monkeypatch.setattr(imagined_success, "imagined_outcomes", stops)
    with pytest.raises(KeyboardInterrupt):
        rank.main(ask())
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*.npz")}
    assert len(before) == 6  # four batches of the first policy, two of the second
    monkeypatch.undo()
    assert rank.main(ask()) == whole
    assert all(file.stat().st_mtime_ns == time for file, time in before.items())


def test_other_content_in_the_same_folders_is_refused(ask, tmp_path, shop, tiny_policy):
    folder = tmp_path / "mine" / "policy"
    tiny_policy(seed=7).save(folder)
    given = ask(policies=[str(folder), str(shop / "p0" / "policy")], episodes=1)
    rank.main(given)
    tiny_policy(seed=8).save(folder)
    with pytest.raises(RunDirectoryError, match="was begun with other content"):
        rank.main(given)


def test_a_world_model_that_fails_its_gates_ranks_nothing(ask):
    with pytest.raises(GateError, match="not good enough to rank policies in:\n  psnr is"):
        rank.main(ask(gates="stop"))


def test_recordings_without_failures_test_no_success_head(ask, push_dataset, tmp_path):
    wins = [n for n, record in enumerate(EpisodeDataset.open(push_dataset).records) if record.success]
    assert 3 <= len(wins) < 14
    episodes = [EpisodeDataset.open(push_dataset)[n] for n in wins]
    (reason,) = untested(episodes, RULE)
    assert f"of the {len(wins)} episodes" in reason
    assert "only 0 fail" in reason
    assert not untested(
        [*episodes, *[replace(episodes[0], terminated=False, truncated=True, reward=0 * episodes[0].reward)] * 3], RULE
    )
    assert (
        untested(episodes, SuccessRule(HIGHEST_THRESHOLD, 1))[-1]
        == "its success head was calibrated without a recorded success"
    )


def test_episodes_that_it_has_learned_from_test_nothing(ask, push_dataset, monkeypatch):
    known = Learned(datasets=frozenset([EpisodeDataset.open(push_dataset).fingerprint]))
    monkeypatch.setattr(rank.Learned, "read", lambda folder: known)
    with pytest.raises(GateError, match="cannot rank policies: it has learned from every episode"):
        rank.main(ask(gates="stop"))


def test_bad_input(ask, shop, tiny_policy, tmp_path):
    with pytest.raises(SettingError, match="policies: needs two or more different folders"):
        rank.main(ask(0, 0))
    tiny_policy(chunk_length=2).save(tmp_path / "short" / "policy")
    with pytest.raises(SettingError, match=r"policies: the policy in .*short.* has another chunk_length"):
        rank.main(ask(policies=[str(shop / "p0" / "policy"), str(tmp_path / "short" / "policy")]))
    file = tmp_path / "outcomes.csv"
    file.write_text("policy,episode,success\np0,0,yes\n")
    tokens = [f"policies=[{shop}/p0/policy,{shop}/p1/policy]", f"outcomes={file}", f"run_dir={tmp_path}/run"]
    assert cli(["rank", f"world_model={shop}/world_model", *tokens]) == 2


def test_the_guides_commands_compose():
    text = (Path(__file__).parents[2] / "docs" / "guide" / "rank.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [shlex.split(line) for line in "".join(blocks).replace("\\\n", "").splitlines()]
    commands = [line for line in lines if line[:1] == ["worldrl"]]
    assert [line[1] for line in commands] == ["train-world-model", "rank", "rank"]
    for _, name, *tokens in commands:
        compose(name, COMMANDS[name].load()[1], parse_overrides(tokens))


def test_a_real_process_at_its_smallest(shop, push_dataset, tmp_path, run_python):
    (tmp_path / "outcomes.csv").write_text("policy,episode,success\np0,0,1\np1,0,0\n")
    root = Path(__file__).parents[2]
    child = run_python(
        "-m",
        "worldrl",
        "rank",
        "preset=tiny",
        f"policies=[{shop}/p0/policy,{shop}/p1/policy]",
        f"world_model={shop}/world_model",
        f"data=[{push_dataset}]",
        "outcomes=outcomes.csv",
        cwd=tmp_path,
        PYTHONPATH=f"{root}:{root / 'envs'}:{':'.join(sys.path)}",
    )
    assert child.returncode == 0, child.stderr
    (run,) = (tmp_path / "runs").iterdir()
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert metrics["policies"][0]["real"]["k"] == 1
    assert metrics["calibration"]["policies"] == 2
    assert "Imagined success" in child.stdout + child.stderr
    assert (run / "report.html").is_file()
