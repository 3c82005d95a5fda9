"""Runs of worldrl commands that the arms consist of; each resumes in its folder."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from worldrl.core.errors import WorkerError
from worldrl.core.renames import current_results
from worldrl.core.storage.jsonfile import read_json
from worldrl.evaluation.policy.result import EvalResult
from worldrl.methods.rl.config import FilteredCloning
from worldrl.reproductions.mechanisms.arms import LOOKS, OUTCOMES, PSNR, LoopArm, WorldArm
from worldrl.reproductions.mechanisms.settings import MechanismSettings
from worldrl.reproductions.stage_sharing import shared

RESULT, LOG = "result.json", "run.log"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""As every process of a reproduction has; another number that is given stays."""
UNSEEN = 1_000_000  # Added to a seed for the episodes that a world model is measured on


def command(folder: Path, name: str, *settings: str) -> dict[str, Any]:
    """Run a worldrl command in a run directory, or resume it; return its metrics. WorkerError: it failed.

    Of a setting given twice the last counts.
    """
    settings = tuple({text.partition("=")[0]: text for text in settings}.values())
    if not (folder / RESULT).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        log = folder.parent / f"{folder.name}-{LOG}"
        with log.open("ab") as out:
            asked = [sys.executable, "-m", "worldrl", name, *settings, f"run_dir={folder}"]
            status = subprocess.run(asked, check=False, stdout=out, stderr=out, env=ONE_THREAD | os.environ).returncode
        if status:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise WorkerError(f"worldrl {name} in {folder} ended with status {status}: {''.join(last)}; see {log}")
    return current_results(read_json(folder / RESULT)["metrics"], name)


# -- the loop ------------------------------------------------------------------------------------------------------


def default_run(settings: MechanismSettings, seed: int, stage: Path) -> Path:
    """Return the run of train-vla that all arms of a seed begin with, made where it is missing."""
    place = shared(stage, f"default-seed-{seed}", lambda at: _loop(settings, seed, at / "run"))
    return place / "run"


def loop_run(settings: MechanismSettings, seed: int, arm: LoopArm, stage: Path) -> Path:
    """Run train-vla otherwise, with the demonstrations and the supervised policy of the default run."""
    first = default_run(settings, seed, stage) / "stages"
    given = f"data={first / '01-demonstrations' / 'dataset'}", f"supervised={first / '02-policy' / 'policy'}"
    cycles = FilteredCloning().cycles * settings.rounds
    rounds = ("rounds=1", f"improvement.self_training.cycles={cycles}") if arm.one_world else ()
    _loop(settings, seed, stage / "run", *given, *rounds, *arm.settings)
    return stage / "run"


def _loop(settings: MechanismSettings, seed: int, folder: Path, *more: str) -> None:
    command(
        folder, "train-vla", f"preset={settings.preset}", f"seed={seed}", settings.chosen_tasks, "threads=1", "workers=1",
        "gates=warn", f"rounds={settings.rounds}", f"evaluation.episodes={settings.episodes}",
        "improvement.algorithm=self_training", *more,
    )  # fmt: skip


def success(folder: Path) -> dict[str, Any]:
    """Collect what a run of train-vla brought: outcomes in the order of its episodes, and confirmed successes."""
    metrics = current_results(read_json(folder / RESULT)["metrics"], "train-vla")
    hits = [
        bool(outcome.success_once)
        for outcome in EvalResult.load(folder / "stages" / "05-after" / "evaluation").outcomes
    ]
    confirmed = metrics["verify"]["precision"] or {"k": 0, "n": 0}
    return {"success": sum(hits) / len(hits), "hits": hits, "confirmed": [confirmed["k"], confirmed["n"]]}


# -- world models --------------------------------------------------------------------------------------------------


def world_run(settings: MechanismSettings, seed: int, arm: WorldArm, stage: Path) -> dict[str, Any]:
    """Learn dynamics from nothing, and measure them on unseen episodes."""
    data = [recording(settings, seed, stage, kind) for kind in ("policy", "blind")]
    data += [_restyled(settings, seed, stage, kind) for kind in ("policy", "blind") if arm.styled]
    codec = (f"codec={settings.codec}", "training.codec_steps=0") if settings.codec else ()
    command(
        stage / "world", "train-world-model", f"preset={settings.preset}", "start=scratch", *codec, "gates=warn",
        f"data=[{','.join(map(str, data))}]", f"seed={seed}", f"training.steps={settings.world_steps}",
        f"training.outcome_steps={settings.outcome_steps}", f"training.batch={settings.world_batch}",
        "training.learning_rate=6e-4", "training.warmup=100", "training.bootstrap=0.3", *arm.settings,
    )  # fmt: skip
    unseen = recording(settings, seed + UNSEEN, stage, "unseen")
    found = _measured(settings, stage, "measured", unseen)
    if not settings.measures_looks:
        return found
    from worldrl_envs.style import TEST_STYLES

    styled = _restyled(settings, seed + UNSEEN, stage, "unseen", f"styles=[{','.join(TEST_STYLES)}]")
    return {**found, LOOKS: _measured(settings, stage, "measured-looks", styled)[OUTCOMES]}


def _measured(settings: MechanismSettings, stage: Path, name: str, unseen: Path) -> dict[str, Any]:
    found = command(
        stage / name, "evaluate-world-model", f"world_model={stage / 'world' / 'world_model'}", f"data=[{unseen}]",
        f"horizons=[{settings.horizon}]", "threads=1", "probe.steps=0", "speed_rows=[16]", "speed_chunks=1",
    )  # fmt: skip
    return {PSNR: found[f"closed_loop.psnr@{settings.horizon}"]["value"], OUTCOMES: found["outcome_alignment"]["rate"]}


def recording(settings: MechanismSettings, seed: int, stage: Path, kind: str) -> Path:
    """Return episodes of a seed: by its supervised ``policy`` and at random, by the ``blind`` expert, or ``unseen``."""
    count = settings.unseen if kind == "unseen" else settings.recorded
    blind = f"blind_episodes={count if kind != 'policy' else 0}"
    given = ["expert_episodes=0", blind]
    if kind != "blind":
        policy = default_run(settings, seed - UNSEEN * (kind == "unseen"), stage) / "stages" / "02-policy" / "policy"
        given += [
            f"policy_episodes={count}",
            f"policy={policy}",
            "temperature=1",
            f"wander_episodes={max(1, count // 7)}",
        ]
    place = shared(stage, f"{kind}-seed-{seed}", lambda at: _collected(settings, seed, at / "run", *given))
    return place / "run" / "dataset"


def _collected(settings: MechanismSettings, seed: int, folder: Path, *given: str) -> None:
    command(folder, "collect", settings.chosen_tasks, f"seed={seed}", "workers=1", *given)


def _restyled(settings: MechanismSettings, seed: int, stage: Path, kind: str, *styles: str) -> Path:
    data = recording(settings, seed, stage, kind)
    name = f"{kind}-restyled-seed-{seed}"
    place = shared(stage, name, lambda at: _copied(at / "run", data, seed, *styles))
    return place / "run" / "dataset"


def _copied(folder: Path, data: Path, seed: int, *styles: str) -> None:
    command(folder, "restyle", f"data={data}", f"seed={seed}", "workers=1", *styles)
