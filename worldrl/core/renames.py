"""Names that earlier versions used, and what they are called now: settings, their values, commands, keys of results.

Files keep the names they were written with and are read through :func:`current_config` and :func:`current_results`;
``worldrl.aliases`` accepts the same names. Names of random streams, stage folders and their files never changed.
"""

from collections.abc import Mapping
from typing import Any, cast

COMMANDS: Mapping[str, str] = {"prolong": "extend"}  # Commands: old name → new name
SETTINGS: Mapping[str, str] = {
    "align-world-model:practice": "executed_plans",
    "align-world-model:strips": "filmstrips",
    "align-world-model:told": "conditioning",
    "benchmark-offline:judged": "candidates",
    "collect:dream_episodes": "imagined_episodes",
    "collect:lasting": "noise_correlation",
    "evaluate-world-model:strips": "filmstrips",
    "evaluate:episodes_per_task": "episodes",
    "train-offline:watched_episodes": "video_episodes",
    "train-vla:practice": "collection",
    "change.practice": "executed_plans",
    "collection.dream_episodes": "imagined_episodes",
    "evaluation.episodes_per_task": "episodes",
    "execution.far": "distance_penalty",
    "exploration.lasting": "noise_correlation",
    "outcome.jury": "ensemble_size",
    "outcome.least_threshold": "min_threshold",
    "outcome.told": "conditioning",
    "policies.dreams": "imagined_rollouts",
    "policies.opinions": "resampled_rollouts",
    "sizes.far": "distance_penalty",
    "sol_rl.again": "resample",
    "staged.least": "min_reward",
    "training.distill_sampling_steps": "flow_map_sampling_steps",
    "training.distill_steps": "flow_map_steps",
    "training.distill_teacher_steps": "flow_map_rollout_steps",
    "trust.opinions": "resampled_rollouts",
    "trust.sign": "confidence_score",
}
"""Settings: ``command:old`` at the top of a command's settings, ``group.old`` wherever the group stands (by its new name) → new name."""
SCORES: Mapping[str, str] = {
    "mean_opinion": "mean_resampled",
    "least_opinion": "min_resampled",
    "agreement_of_jurors": "member_agreement",
    "agreement_of_latents": "latent_agreement",
    "agreement_of_motion": "motion_agreement",
    "agreement_of_grasp": "grasp_agreement",
}
"""Confidence scores: old name → new name."""
VALUES: Mapping[str, Mapping[str, str]] = {"trust.confidence_score": SCORES}
"""Values of a choice: ``group.setting`` by its new name → old value → new value."""
RESULTS: Mapping[str, str] = {
    **SCORES,
    "came_true": "confirmed",
    "dream": "imagined",
    "dreams": "imagined_rollouts",
    "dreams_per_task": "imagined_rollouts_per_task",
    "judged_steps": "checked_steps",
    "looks": "visual_styles",
    "pictures_note": "images_note",
    "practice": "collection",
    "sentence": "statement",
}
"""Keys of results, wherever they stand: old name → new name."""
RESULTS_OF: Mapping[str, Mapping[str, str]] = {"align-world-model": {"practice": "executed_plans"}}
"""Keys that a command's results call otherwise than :data:`RESULTS` does."""


def current_key(key: str, command: str = "") -> str:
    """Return the present name of a dotted setting of a ``command`` (empty: of a part of a config), maybe the same."""
    above, names = f"{command}:", list[str]()
    for name in key.split("."):
        names.append(SETTINGS.get(above + name, name))
        above = f"{names[-1]}."
    return ".".join(names)


def current_value(key: str, value: Any) -> Any:
    """Return the present value of a setting, given by its present dotted name."""
    choices = VALUES.get(".".join(key.split(".")[-2:]), {})
    return choices.get(value, value) if isinstance(value, str) else value


def current_config(plain: Mapping[str, Any], command: str = "", *, within: str = "") -> dict[str, Any]:
    """Return a nested config of an earlier version with the present names and values.

    ``command`` is empty for an artefact's config; ``within`` is the present name of the group that ``plain`` is.
    """
    above = f"{within.rpartition('.')[2]}." if within else f"{command}:"
    found: dict[str, Any] = {}
    for old, value in plain.items():
        name = SETTINGS.get(f"{above}{old}", old)
        path = f"{within}.{name}" if within else name
        if isinstance(value, Mapping):
            found[name] = current_config(cast("Mapping[str, Any]", value), command, within=path)
        else:
            found[name] = current_value(path, value)
    return found


def current_results(plain: Any, command: str = "") -> Any:
    """Return results of an earlier version with the present keys."""
    names = {**RESULTS, **RESULTS_OF.get(command, {})}
    if isinstance(plain, Mapping):
        items = cast("Mapping[str, Any]", plain).items()
        return {names.get(key, key): current_results(value, command) for key, value in items}
    if isinstance(plain, list):
        return [current_results(value, command) for value in cast("list[Any]", plain)]
    return plain


def first_name(score: str) -> str:
    """Return the name that a confidence score had first: random streams are named by it."""
    return next((old for old, new in SCORES.items() if new == score), score)
