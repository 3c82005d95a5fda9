"""Settings that are called otherwise elsewhere: in lerobot, in other benchmarks, or in another command of worldrl.

The nearest spelling is the wrong hint for them: ``train-vla`` has ``policy.bins``, and takes a policy by ``supervised``.
"""

from __future__ import annotations

from collections.abc import Mapping

_SMOLVLA = (
    "a lerobot policy such as SmolVLA is the folder that `hf download <user>/<policy> --local-dir FOLDER` gets, and worldrl "
    "fetches none itself (docs/lerobot.md)"
)
_IMPROVED = (
    f"{_SMOLVLA}; imagination shows the main camera, the command and the sentence, so one that looks at a second camera or the "
    "measured state, as published ones do, is measured (benchmark), not improved"
)
_MEASURED = {
    "checkpoint": ("policy", "a policy is its folder"),
    "policy.path": ("policy", _SMOLVLA),
    "env.task": ("tasks", ""),
    "task": ("tasks", ""),
}
OTHERWISE: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "train-vla": {
        "policy": ("supervised", _IMPROVED),
        "policy.path": ("supervised", _IMPROVED),
        "dataset": ("data", ""),
        "task": ("tasks", ""),
    },
    "train-policy": {
        "policy": ("start", f"it is the policy that is fine-tuned; {_SMOLVLA}"),
        "policy.path": ("start", f"it is the policy that is fine-tuned; {_SMOLVLA}"),
        "dataset": ("data", ""),
    },
    "benchmark": {
        **_MEASURED,
        "env": ("suite", ""),
        "env.type": ("suite", ""),
        "n_episodes": ("episodes", "initial states of each task"),
        "eval.n_episodes": ("episodes", "initial states of each task"),
    },
    "evaluate": {
        **_MEASURED,
        "episodes": ("episodes_per_task", ""),
        "n_episodes": ("episodes_per_task", ""),
        "eval.n_episodes": ("episodes_per_task", ""),
    },
}
"""Command → what is typed → the setting here, and what must be known besides."""


def spelled_otherwise(command: str, key: str) -> str | None:
    """A clause for the error about an unknown setting; None where nothing is known of it."""
    if key not in OTHERWISE.get(command, {}):
        return None
    own, more = OTHERWISE[command][key]
    return f"; here it is spelled {own}={': ' + more if more else ''}"
