"""Units under test: ``worldrl.reproductions.mechanisms``: which commands the arms run, and what is made of their numbers."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from worldrl.cli import compose_command, find_command
from worldrl.core.errors import SettingError, WorkerError
from worldrl.core.statistics.intervals import paired
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import EvalResult
from worldrl.reproductions.catalogue import Cell, changed, find
from worldrl.reproductions.mechanisms.arms import LoopArm
from worldrl.reproductions.mechanisms.commands import command
from worldrl.rollout.real.specs import EpisodeOutcome
from worldrl_envs.style import beyond_sampling, get_style

RATE = {"k": 3, "n": 4, "rate": 0.75, "lo": 0.3, "hi": 0.95, "method": "wilson"}
EFFECTS = ("wovr", "sword", "world-vla-loop")
PROTOCOL = EvalProtocol(
    suite="worldrl_envs",
    suite_version="2",
    tasks=("PickRedCube",), episodes_per_task=20, seed=3, horizon={"PickRedCube": 40}, chunk_length=8, replan=8, control_hz=20.0,
    packages={},
)  # fmt: skip


def solved(arm: str, seed: int) -> int:
    """Of twenty states the default solves ten; without masks it is four, with keyframes one more a seed."""
    return {"no-masks": 4, "keyframes": 11 + seed}.get(arm, 10)


@pytest.fixture
def commands(monkeypatch):
    """What would have run: command and composed settings; every command leaves a result."""
    asked = []

    def run(tokens, **_):
        name, overrides = tokens[3], tokens[4:]
        settings = compose_command(find_command(name), overrides)
        folder = Path(settings.run_dir)
        arm = "default" if "shared" in folder.parts else folder.parent.name.split("-", 2)[2]
        asked.append((name, arm, settings))
        folder.mkdir(parents=True)
        metrics = {"verify": {"precision": RATE}} if name == "train-vla" else {}
        if name == "train-vla":
            count = solved(arm, settings.seed)
            outcomes = [EpisodeOutcome(spec, n < count, False, 40, None) for n, spec in enumerate(PROTOCOL.specs())]
            EvalResult(PROTOCOL, arm, arm, tuple(outcomes)).save(folder / "stages" / "05-after" / "evaluation")
        if name == "evaluate-world-model":
            psnr = 24.0 if arm == "no-anchor" else 25.0 + int(folder.parent.name.split("-")[1])
            metrics = {f"closed_loop.psnr@{settings.horizons[0]}": {"value": psnr}, "outcome_alignment": RATE}
        (folder / "result.json").write_text(json.dumps({"metrics": metrics}))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def results(name, tmp_path, seeds=(0, 1), **change):
    """Every arm's stages, computed one after the other."""
    effect = find(name).load()
    settings = changed(effect.SETTINGS["full"], change)
    found = {
        method: [
            effect.run(settings, Cell(method, seed), tmp_path / "stages" / f"seed-{seed}-{method}") for seed in seeds
        ]
        for method in settings.methods
    }
    return settings, found, effect.conclude(settings, found)


@pytest.mark.parametrize("name", EFFECTS)
def test_every_arm_is_a_valid_run_that_differs_from_its_base_alone(name, commands, tmp_path):
    settings, _, findings = results(name, tmp_path, seeds=(0,))
    assert len(findings.claims) == len(settings.ARMS)
    for job in ("train-vla", "train-world-model"):
        given = {arm: settings for ran, arm, settings in commands if ran == job}
        own = {"run_dir": "", "data": None, "supervised": None} if job == "train-vla" else {"run_dir": ""}
        shown = {arm: repr({**vars(settings), **own}) for arm, settings in given.items()}
        assert len(set(shown.values())) == len(shown), job
    loops = [settings for ran, arm, settings in commands if ran == "train-vla" and arm != "default"]
    firsts = [Path(settings.run_dir) for ran, arm, settings in commands if ran == "train-vla" and arm == "default"]
    assert len(firsts) == 1  # all begin with its demonstrations and its supervised policy
    for loop in loops:
        assert loop.supervised == str(firsts[0] / "stages" / "02-policy" / "policy")
        assert loop.data == str(firsts[0] / "stages" / "01-demonstrations" / "dataset")


def test_world_models_share_recordings_and_are_measured_on_others(commands, tmp_path):
    results("sword", tmp_path, seeds=(4,))
    collected = [settings for ran, _, settings in commands if ran == "collect"]
    assert len(collected) == 3
    assert sorted(settings.seed for settings in collected) == [4, 4, 1_000_004]
    worlds = {arm: settings for ran, arm, settings in commands if ran == "train-world-model"}
    assert set(worlds) == {"world", "no-own-frames", "latent-buffer", "styles"}
    assert {world.codec for world in worlds.values()} == {"bundled"}
    assert worlds["no-own-frames"].training.bootstrap == 0 < worlds["world"].training.bootstrap
    assert worlds["latent-buffer"].training.bootstrap_rows >= worlds["latent-buffer"].training.batch
    assert len(worlds["styles"].data) == 4 > len(worlds["world"].data) == 2
    (unseen,) = [settings.styles for ran, _, settings in commands if ran == "restyle" and settings.seed > 4]
    assert all(beyond_sampling(get_style(style)) for style in unseen)


def test_claims_are_signed_as_the_paper_expects_and_pairs_are_over_all_episodes(commands, tmp_path):
    _, found, findings = results("wovr", tmp_path, arms="keyframes+no-masks+no-anchor")
    keyframes, masks, anchor = findings.claims
    assert keyframes.values == pytest.approx([0.05, 0.1])
    assert masks.values == pytest.approx([0.3, 0.3])
    assert masks.verdict == "reproduced"
    assert anchor.values == pytest.approx([1.0, 2.0])
    assert found["no-masks"][0]["confirmed"] == [3, 4]
    hits = [n < 10 for n in range(20)] * 2
    expected = paired(hits, [n < 4 for n in range(20)] * 2)
    row = dict(zip(findings.tables[0].headers, findings.tables[0].rows[2], strict=True))
    assert row["Arm"] == "no-masks"
    assert row["Less default, points"] == f"-30.0 [{100 * expected['lo']:.1f}, {100 * expected['hi']:.1f}]"
    assert row["Confirmed"].startswith("75.0 [")
    ran = len(commands)
    results("wovr", tmp_path, arms="keyframes+no-masks+no-anchor")
    assert len(commands) == ran  # nothing runs twice


def test_one_world_has_as_many_cycles_as_all_rounds(commands, tmp_path):
    results("wovr", tmp_path, seeds=(0,), arms="no-coevolution", rounds=3)
    default, one = (settings for ran, _, settings in commands if ran == "train-vla")
    cycles = [run.rounds * run.improvement.self_training.cycles for run in (default, one)]
    assert cycles[0] == cycles[1]
    assert (default.rounds, one.rounds) == (3, 1)


def test_unknown_arms_are_refused_with_the_nearest():
    with pytest.raises(SettingError, match=r"change.arms: unknown 'keyframe'; did you mean 'keyframes'"):
        changed(find("wovr").load().SETTINGS["quick"], {"arms": "keyframe"})
    arms = [arm for name in EFFECTS for arm in find(name).load().SETTINGS["full"].ARMS]
    assert sum(isinstance(arm, LoopArm) for arm in arms) == 7


def test_a_command_that_fails_is_one_line_with_its_own(tmp_path):
    with pytest.raises(WorkerError, match=r"worldrl train-vla in .* ended with status 2: .*rounds"):
        command(tmp_path / "run", "train-vla", "rounds=0")
