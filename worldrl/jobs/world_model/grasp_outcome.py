"""The rule that tells outcomes by score and grasp together: fitted on tuning episodes by one run, applied to others by the next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldrl.core.errors import SettingError
from worldrl.core.storage.jsonfile import difference
from worldrl.core.storage.run import RunDirectory
from worldrl.evaluation.world_model.grasp_rule import GraspRule, fit_rule
from worldrl.evaluation.world_model.measures import Measures
from worldrl.recipes.sampler import sampled
from worldrl.rollout.real.execution import Script
from worldrl.world_models.loading import AnyVideoModel

FIT = "fit"
RULE_FILE = "grasp_rule.json"
NO_RULE = "grasp_rule=FILE computes it; grasp_rule=fit on other episodes makes the file"
FITTED_HERE = "the rule is fitted on these episodes; give it as grasp_rule=FILE to a run on others"


def check_choice(choice: str | None, grasp: str | None) -> None:
    """Refuse a rule of the grasp where nothing predicts the grasp, in ``evaluate-world-model``.

    Raises SettingError (nothing does).
    """
    if choice is not None and grasp is None:
        raise SettingError(f"grasp_rule={choice}: needs an inverse dynamics model of the grasp; give grasp=FOLDER, too")


def made_for(inputs: dict[str, Any], model: AnyVideoModel) -> dict[str, Any]:
    """Return what a rule is of: its odds mean nothing for another world model, sampler or inverse dynamics."""
    hashes = {name: inputs[name]["hash"] for name in ("world_model", "grasp") if name in inputs}
    return {**hashes, "sampler": sampled(model.config.dynamics)}


def open_rule(choice: str | None, scripts: Sequence[Script], of: dict[str, Any]) -> GraspRule | None:
    """Load the rule of these episodes; None where there is none, or is to be fitted.

    Raises ArtefactError (the file is missing or damaged). Raises SettingError (the rule is of something else, or was
    fitted on one of the episodes).
    """
    if choice is None or choice == FIT:
        return None
    rule = GraspRule.load(Path(choice))
    if changed := difference(rule.made_for, of):
        raise SettingError(
            f"grasp_rule: {choice} was fitted for something else: {changed}; fit one with grasp_rule=fit"
        )
    if known := [script.spec for script in scripts if script.spec.key in rule.tuned]:
        raise SettingError(
            f"grasp_rule: {choice} was fitted on {len(known)} of the evaluated episodes, such as {known[0].describe()}; "
            "give episodes recorded with another seed"
        )
    return rule


def fitted(run: RunDirectory, measures: Measures, scripts: Sequence[Script], of: dict[str, Any]) -> dict[str, Any]:
    """Fit a rule on these episodes, write it to ``run_dir/grasp_rule.json``, and say what it is.

    Raises SettingError (all of them succeeded, or none did).
    """
    tuned = frozenset(script.spec.key for script in scripts)
    rule = fit_rule(measures.actual, measures.score, measures.agreement, made_for=of, tuned=tuned)
    rule.save(run.path / RULE_FILE)
    return {"grasp_rule": {"file": RULE_FILE, "weights": list(rule.weights), "threshold": rule.threshold}}
