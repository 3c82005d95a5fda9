"""The table of commands: name, summary, examples and module. Importing it imports no job."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """One row of the command table; module and settings class follow from the name.

    ``owns_run_dir``: the command writes a run directory, so a default one is named; ``report`` reads another's.
    ``positional``: the setting that a first word without ``=`` gives, as in ``worldrl reproduce NAME``.
    ``groups``: settings that may be written as a flag before one of theirs: ``--plan diff=0.05``.
    ``flags``: settings that may be written as a flag alone: ``--table`` for ``table=true``.
    """

    name: str
    summary: str
    examples: tuple[str, ...]
    owns_run_dir: bool = True
    positional: str = ""
    groups: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """``worldrl.jobs.<folder>.<name with underscores>``."""
        folder = next(folder for folder, names in FOLDERS.items() if self.name in names)
        return f"worldrl.{folder}.{self.name.replace('-', '_')}"

    @property
    def settings_class(self) -> str:
        """Name of the settings dataclass in that module, for example ``TrainVlaSettings``."""
        return "".join(part.capitalize() for part in self.name.split("-")) + "Settings"

    def load(self) -> tuple[Callable[[Any], dict[str, Any]], type[Any]]:
        """Import the job and return its ``main`` and its settings class."""
        job = importlib.import_module(self.module)
        return job.main, getattr(job, self.settings_class)

    def schema(self, given: Mapping[str, str]) -> type[Any]:
        """Return the settings class of a command line; ``settings_for`` makes it where settings depend on others."""
        choose = getattr(importlib.import_module(self.module), "settings_for", None)
        return self.load()[1] if choose is None else choose(given)


FOLDERS: Mapping[str, tuple[str, ...]] = {
    "jobs.benchmark": ("benchmark", "check-protocol", "check-suite", "compare"),
    "jobs.data": ("collect", "restyle", "extend", "make-dataset", "check-rules"),
    "jobs.environment": ("doctor", "gpu-check", "setup", "report", "runs", "curves", "methods", "card"),
    "jobs.motion": ("train-idm", "align-world-model"),
    "jobs.offline": ("train-offline", "benchmark-offline"),
    "jobs.policy": ("train-policy", "evaluate", "rank", "serve-policy"),
    "jobs.vla": ("train-vla",),
    "jobs.world_model": (
        "train-world-model",
        "evaluate-world-model",
        "imagine",
        "play",
        "demo",
        "serve-world-model",
        "judge",
    ),
    "reproductions": ("reproduce",),
}
"""Folder of a command's module, below ``worldrl``."""

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "demo",
            "film imagination beside MuJoCo, and measure a bundled policy with and without planning, in minutes",
            ("", "episodes=100", "preset=tiny"),
        ),
        Command("collect", "record episodes in the simulator as a LeRobotDataset v3", ("", "preset=tiny")),
        Command(
            "restyle",
            "redraw recorded episodes in other visual styles, with the same motion",
            ("data=runs/collect/dataset", "data=runs/collect/dataset by=image"),
        ),
        Command(
            "extend",
            "extend recorded episodes beyond their time limit, to train world models for long rollouts",
            ("data=runs/collect/dataset steps=256",),
        ),
        Command(
            "check-rules",
            "count how often recorded episodes break rules over time, such as a height that the tool must keep",
            (
                "rules=rules.yaml data=[runs/collect/dataset]",
                "rules=rules.yaml data=[runs/after/dataset] against=[runs/before/dataset]",
            ),
        ),
        Command(
            "train-policy",
            "train a language-conditioned policy on demonstrations (behaviour cloning)",
            ("preset=tiny",),
        ),
        Command("train-world-model", "train a video world model and its success head", ("preset=tiny",)),
        Command(
            "train-idm",
            "train an inverse dynamics model, which reads poses or actions from images and rewards generated videos",
            (
                "data=[runs/collect/dataset]",
                "target=[command] world_model=bundled model.window=3",
                "target=[state.0:14] limits=piper",
                "preset=tiny",
            ),
        ),
        Command("imagine", "show imagined rollouts beside the real ones", ("preset=tiny",)),
        Command(
            "play",
            "drive the robot by hand inside a world model, MuJoCo beside it, on a local web page",
            ("", "policy=runs/train-policy/policy port=8080"),
        ),
        Command(
            "evaluate",
            "measure one policy in the embedded physics simulator",
            ("policy=runs/train-policy/policy", "policy=runs/train-policy/policy seed=1 run_dir=runs/before"),
        ),
        Command(
            "rank",
            "rank policies by their imagined success from recorded start frames, without a simulator",
            (
                "policies=[runs/a/policy,runs/b/policy] data=[runs/collect/dataset]",
                "policies=[runs/a/policy,runs/b/policy] world_model=runs/train-world-model/world_model outcomes=trials.csv",
                "preset=tiny policies=[runs/a/policy,runs/b/policy]",
            ),
        ),
        Command(
            "evaluate-world-model",
            "measure one world model on held-out episodes",
            (
                "data=[runs/collect/dataset]",
                "world_model=runs/train-world-model/world_model data=[runs/unseen/dataset] episodes=30",
                "preset=tiny",
            ),
        ),
        Command(
            "judge",
            "measure a video model of any origin from its films beside films of the same events, and write its card",
            (
                "real=films/real generated=films/generated",
                "real=runs/unseen/dataset generated=generated.npy given_frames=4 outcomes=outcomes.csv",
            ),
        ),
        Command(
            "align-world-model",
            "improve a video model by reinforcement learning with rewards of its videos",
            (
                "start=runs/planner/world_model folders.idm=runs/train-idm/idm",
                "start=runs/planner/world_model rewards=[idm.moving_executability,success] weights=[1,0.5] "
                "folders.idm=runs/train-idm/idm folders.success=runs/planner/world_model",
                "method=sol_rl start=runs/planner/world_model folders.idm=runs/train-idm/idm",
            ),
        ),
        Command(
            "benchmark",
            "measure a policy on a suite: the embedded one, or an external one in its own Python environment",
            (
                "suite=libero_spatial policy=expert",
                "suite=libero_goal policy=runs/train-policy/policy episodes=50 workers=4",
                "suite=embedded policy=runs/train-policy/policy",
                "--plan diff=0.05",
            ),
            groups=("plan",),
        ),
        Command(
            "check-protocol",
            "replay demonstrations in a suite and name the convention that differs",
            ("data=runs/collect/dataset", "data=runs/collect-libero/dataset suite=libero_spatial"),
        ),
        Command(
            "check-suite",
            "try an external suite, or an adapter of your own, before training in it",
            ("suite=lab.py:Reach", "suite=lab.py:Reach python=/path/to/python"),
            positional="suite",
        ),
        Command(
            "serve-policy",
            "serve a policy over a websocket, to RoboTwin's evaluation client or in OpenPI's protocol",
            (
                "policy=runs/train-policy/policy",
                "policy=runs/train-policy/policy protocol=openpi port=8000 device=cuda",
            ),
            owns_run_dir=False,
        ),
        Command(
            "serve-world-model",
            "serve a world model over a websocket: reset, then chunks of actions",
            ("", "world_model=runs/train-world-model/world_model data=runs/collect/dataset"),
            owns_run_dir=False,
        ),
        Command(
            "compare",
            "compare two policies, or two methods over several trainings, episode by episode",
            ("a=runs/before b=runs/after", "a=[runs/a-0,runs/a-1] b=[runs/b-0,runs/b-1]"),
        ),
        Command(
            "train-vla",
            "the whole loop: clone demonstrations, imagine, improve, check in physics",
            ("", "preset=tiny", "branch.run=runs/train-vla branch.stage=round-3-1-practice rounds=3"),
        ),
        Command(
            "make-dataset",
            "make offline datasets of six qualities from one SAC training, in Minari format",
            ("env=HalfCheetah-v5", "env=Hopper-v5 kinds=[random,medium] rows=20000", "preset=tiny"),
        ),
        Command(
            "train-offline",
            "train a policy on a fixed dataset, model-free or in a learned world",
            (
                "data=runs/make-dataset/datasets/worldrl/hopper/medium-v0",
                "data=hopper-medium-v2.hdf5 algorithm=iql agent.expectile=0.8",
                "data=worldrl/hopper/medium-v0 algorithm=mopo imagining.penalty=5",
            ),
        ),
        Command(
            "benchmark-offline",
            "run train-offline for several algorithms, datasets and seeds, and compare them in one table",
            (
                "data=[runs/hopper.hdf5] algorithms=[bc,td3_bc,ravl] seeds=3",
                "data=[worldrl/hopper-v5/medium-v0] common=training.steps=20000 own.ravl=agent.critics=5 workers=2",
                "runs=[runs/train-offline-a,runs/train-offline-b]",
            ),
        ),
        Command(
            "reproduce",
            "reproduce a paper's central effect at small scale: table, figure, verdict (reproduce NAME; without NAME: a list)",
            ("", "neubay-bandit", "edge-of-reach-2d scale=full seeds=10", "methods policies=[bundled]"),
            positional="name",
        ),
        Command(
            "setup",
            "build a simulator's own Python environment in the cache, or check yours (setup NAME)",
            (
                "libero",
                "maniskill",
                "robotwin python=/envs/robotwin/bin/python checkout=/data/RoboTwin",
                "isaac python=/envs/isaac/bin/python",
            ),
            positional="name",
        ),
        Command("report", "write one HTML page about a run directory", ("run_dir=runs/train-vla",), owns_run_dir=False),
        Command(
            "card",
            "write the model card of a policy or world model, and upload both to the hub if asked",
            (
                "runs/train-vla/stages/round-2-4-improve/policy results=[runs/train-vla]",
                "runs/train-policy/policy results=[runs/evaluate] push=OWNER/NAME",
            ),
            owns_run_dir=False,
            positional="folder",
        ),
        Command(
            "runs",
            "show all run directories on a local web page: states, success, curves, films, reports (or runs --table)",
            ("", "folder=/data/runs filter=rounds=3", "--table filter=state=running"),
            owns_run_dir=False,
            positional="folder",
            flags=("table",),
        ),
        Command(
            "curves",
            "draw one metric of several runs in one figure: the mean over seeds, with its interval",
            ("evaluation/return", "success folder=/data/runs filter=command=train-vla by=[rounds]"),
            owns_run_dir=False,
            positional="metric",
        ),
        Command("methods", "list RL methods and their parts", ("", "kind=loss json=true"), owns_run_dir=False),
        Command("doctor", "check this machine, and name the command that repairs each fault", ("",)),
        Command(
            "gpu-check",
            "measure in about 20 minutes what only a GPU can show: speed, utilisation, memory, recorded updates",
            ("", "only=[imagine-gpu,grpo]", "only=[imagine-gpu] batches=[1,2,4,8,16,32,64,128]", "preset=tiny"),
        ),
    )
}
