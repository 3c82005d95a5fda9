import json
import shutil

import pytest
import torch

from worldrl.core.errors import ProtocolError, SettingError, WorldrlError
from worldrl.jobs.benchmark import compare
from worldrl.jobs.benchmark.compare import CompareSettings
from worldrl.jobs.policy import evaluate
from worldrl.jobs.policy.evaluate import EvaluateSettings
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.run import choose_tasks


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder, ones = tmp_path_factory.mktemp("policies"), torch.ones(7)
    config = TokenPolicyConfig(image_size=16, chunk_length=8, width=8, blocks=1, keypoints=2, hidden=16)
    with torch.random.fork_rng():
        for seed in (0, 1):
            torch.manual_seed(seed)
            TokenPolicy(config, PolicyStatistics(-ones, ones, 0 * ones, ones)).save(folder / f"policy-{seed}")
    return folder


@pytest.fixture(scope="module")
def evaluations(policies):
    """Two policies, sampled, on the same four episodes."""
    for seed in (0, 1):
        settings = EvaluateSettings(
            policy=str(policies / f"policy-{seed}"),
            run_dir=str(policies / f"evaluation-{seed}"),
            workers=0,
            kind="goal",
            episodes=1,
            temperature=1.0,
        )
        evaluate.main(settings)
    return policies, settings


def test_result_keeps_the_contract(evaluations):
    folder, _settings = evaluations
    result = json.loads((folder / "evaluation-1" / "result.json").read_text())
    header = json.loads((folder / "evaluation-1" / "evaluation.json").read_text())
    assert (result["schema"], result["command"], result["seed"]) == (1, "evaluate", 0)
    assert result["protocol_hash"] == header["protocol_hash"]
    rate = result["metrics"]["success"]
    assert set(rate) == {"k", "n", "rate", "lo", "hi", "method"}
    assert rate["n"] == 4
    assert result["metrics"]["protocol"]["image_size"] == 16
    assert len((folder / "evaluation-1" / "episodes.jsonl").read_text().splitlines()) == 4
    assert len(list((folder / "evaluation-1" / "videos").glob("*-000-*.mp4"))) == 4


def test_running_it_again_changes_nothing(evaluations):
    folder, settings = evaluations
    path = folder / "evaluation-1" / "episodes.jsonl"
    before = path.read_bytes()
    first = json.loads((folder / "evaluation-1" / "result.json").read_text())["metrics"]
    assert evaluate.main(settings) == first
    assert path.read_bytes() == before


def test_comparison(evaluations, tmp_path):
    folder, _ = evaluations
    settings = CompareSettings(
        a=str(folder / "evaluation-0"), b=str(folder / "evaluation-1" / "result.json"), run_dir=str(tmp_path / "c")
    )
    metrics = compare.main(settings)
    assert (metrics["a"], metrics["b"], metrics["paired"]["n"]) == ("policy-0", "policy-1", 4)
    result = json.loads((tmp_path / "c" / "result.json").read_text())
    assert result["metrics"] == metrics
    assert result["protocol_hash"] == json.loads((folder / "evaluation-0" / "result.json").read_text())["protocol_hash"]


def test_comparison_of_several_trainings(evaluations, tmp_path, capsys):
    """The second pair is the first one turned round, at the end of runs of ``train-vla``."""
    folder, _ = evaluations
    first, second = (folder / f"evaluation-{n}" for n in (0, 1))
    for name, one in (("a2", second), ("b2", first)):
        shutil.copytree(one, tmp_path / name / "stages" / "05-after" / "evaluation")
    given = {"a": f"[{first},{tmp_path / 'a2'}]", "b": f"[{second},{tmp_path / 'b2'}]"}
    metrics = compare.main(CompareSettings(**given, run_dir=str(tmp_path / "c")))
    assert metrics["paired"]["n"] == 8
    assert metrics["before"] == metrics["after"]
    assert metrics["trainings"]["mean"] == 0
    assert "mean over trainings" in capsys.readouterr().err.replace("\n", " ")
    assert json.loads((tmp_path / "c" / "result.json").read_text())["metrics"] == metrics
    (tmp_path / "begun" / "stages").mkdir(parents=True)
    for a, b, told in (
        (f"[{first},{second}]", str(second), "a names 2 evaluations and b 1; give as many"),
        ("[]", str(second), "a: an empty list"),
        (str(tmp_path / "begun"), str(second), "begun: this run of train-vla is not at its last evaluation"),
    ):
        with pytest.raises(WorldrlError, match=told):
            compare.main(CompareSettings(a=a, b=b, run_dir=str(tmp_path / "d")))


def test_unfinished_evaluations_are_not_compared(evaluations, tmp_path):
    folder, _ = evaluations
    for name in ("evaluation.json", "episodes.jsonl"):
        (tmp_path / name).write_bytes((folder / "evaluation-0" / name).read_bytes())
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(ProtocolError, match="1 missing"):
        compare.main(CompareSettings(a=str(folder / "evaluation-0"), b=str(tmp_path), run_dir=str(tmp_path / "c")))
    assert not (tmp_path / "c").exists()


def test_choice_of_tasks():
    assert choose_tasks([], "long") == ["PlaceRedThenBlueInBin", "PlaceCubeInDrawer"]
    assert len(choose_tasks([], None)) == 12
    assert choose_tasks(["OpenDrawer"], None) == ["OpenDrawer"]
    for tasks, kind, text in (
        (["OpenDrawr"], None, "did you mean 'OpenDrawer'"),
        ([], "goals", "did you mean 'goal'"),
        (["OpenDrawer"], "goal", "give one of them"),
        (["OpenDrawer", "OpenDrawer"], None, "named once"),
    ):
        with pytest.raises(SettingError, match=text):
            choose_tasks(tasks, kind)


@pytest.mark.parametrize("changed", [{"workers": -1}, {"videos": -1}, {"initial_states": "random"}, {"timeout_s": 0}])
def test_impossible_settings_are_refused(changed):
    with pytest.raises(SettingError, match=next(iter(changed))):
        EvaluateSettings(policy="p", **changed)


# --- a policy of another robot ---


def of_another_robot(folder, **conventions):
    """Save a policy that was trained on recordings of no named suite."""
    ones = torch.ones(7)
    config = TokenPolicyConfig(image_size=16, chunk_length=8, width=8, blocks=1, keypoints=2, hidden=16)
    with torch.random.fork_rng():
        policy = TokenPolicy(config, PolicyStatistics(-ones, ones, 0 * ones, ones))
    policy.trained_on = {"states": None, "conventions": {"unnamed suite": conventions}}
    policy.save(folder)
    return EvaluateSettings(
        policy=str(folder), run_dir=str(folder / "run"), workers=0, tasks=["PickRedCube"], episodes=1, videos=0
    )


def test_other_conventions_are_named_on_the_terminal_and_in_the_result(tmp_path, capsys):
    settings = of_another_robot(
        tmp_path / "p", embodiment="pose changes of one tool", position_scale=0.01, frame="unknown"
    )
    metrics = evaluate.main(settings)
    said = " ".join(capsys.readouterr().err.split())
    assert "position_scale (0.01 there, 0.02 here)" in said
    assert metrics["conventions"]["differing"]["position_scale"] == [0.01, 0.02]
    assert any("whether frame" in text for text in metrics["warnings"])


class AskedError(Exception):
    """Carries what a suite was asked for."""


@pytest.mark.parametrize("shadows", [True, False])
def test_an_external_suite_draws_the_shadows_that_are_asked_for(policies, tmp_path, monkeypatch, shadows):
    def asked(suite, workers, **more):
        raise AskedError(workers.shadows)

    monkeypatch.setattr("worldrl.recipes.suites.opening.open_suite", asked)
    given = {"policy": str(policies / "policy-0"), "run_dir": str(tmp_path), "suite": "libero_goal"}
    with pytest.raises(AskedError, match=f"^{shadows}$"):
        evaluate.main(EvaluateSettings(**given, shadows=shadows))


def test_a_policy_of_another_embodiment_is_refused_before_anything_runs(tmp_path):
    settings = of_another_robot(tmp_path / "p", embodiment="absolute joint targets")
    with pytest.raises(
        SettingError, match=r"embodiment: the policy was trained on absolute joint targets \(unnamed suite\)"
    ):
        evaluate.main(settings)
    assert not (tmp_path / "p" / "run" / "config.yaml").exists()  # free for the corrected settings
