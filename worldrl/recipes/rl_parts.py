"""Names of settings become RL methods and their parts: lookups of commands in the registries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import SettingError
from worldrl.methods.rl.config import FilteredCloning, GrpoConfig, PartNames, Parts
from worldrl.methods.rl.interfaces import (
    AVERAGE,
    BEGINNING,
    DEMONSTRATIONS,
    IMAGES,
    MATES,
    POLICY,
    PROBABILITY,
    SUCCESS,
    SURPRISE,
    TREE,
    lacking,
)
from worldrl.registry import ADVANTAGES, ALIGNMENTS, BUDGETS, CONTROLS, LOSSES, SELECTORS, START_SAMPLERS
from worldrl.settings import one_of

if TYPE_CHECKING:
    from worldrl.methods.alignment.align import MethodConfigs
    from worldrl.methods.alignment.task import AlignmentTask
    from worldrl.methods.rl.improve import Improvement
    from worldrl.methods.rl.method import Method

IMPROVEMENT, CLONING, ALIGNMENT = "improvement.grpo.parts", "improvement.self_training.parts", "alignment.parts"
"""Settings that name parts: of train-vla's two algorithms, of align-world-model."""
REGISTRIES = {
    "advantage": ADVANTAGES,
    "selection": SELECTORS,
    "starts": START_SAMPLERS,
    "budget": BUDGETS,
    "loss": LOSSES,
    "control": CONTROLS,
}
"""Field of :class:`PartNames` → where its names are looked up."""
NO_TREE = "rollouts of a policy share no beginnings; leave it out"
NO_OUTCOME = "videos have rewards alone; leave it out"


def open_parts(
    names: PartNames, setting: str, lacks: Mapping[str, str] | None = None, own: PartNames | None = None
) -> Parts:
    """Import the named parts of ``setting``; empty names are left to the method.

    ``lacks`` says what the method does not have, and what to do about it; its ``own`` parts always fit. SettingError: an
    unknown name, with the nearest one, or a part that needs what is lacking, with those that do not.
    """
    found = dict[str, Any]()
    for field in fields(PartNames):
        kind, name = field.name, getattr(names, field.name)
        if not name:
            continue
        one_of(f"{setting}.{kind}", name, REGISTRIES[kind].names())
        found[kind] = REGISTRIES[kind].get(name)
        if own is None or name != getattr(own, kind):
            _check(f"{setting}.{kind}", name, kind, lacks or {})
    return Parts(**found)


def _check(key: str, name: str, kind: str, lacks: Mapping[str, str]) -> None:
    """Require that the method has what a part needs."""
    registry = REGISTRIES[kind]
    if missing := lacking(registry.get(name), lacks):
        fit = [other for other in registry.names() if not lacking(registry.get(other), lacks)]
        instead = f", or {key}={'|'.join(fit)}" if fit else ""
        raise SettingError(f"{key}={name} needs {missing[0]}: {lacks[missing[0]]}{instead}")


def improvement_parts(config: Improvement) -> Parts:
    """Import the parts that ``train-vla``'s settings name for a round's algorithm; SettingError where they do not fit it."""
    if config.algorithm == "grpo":
        return open_parts(config.grpo.parts, IMPROVEMENT, _lacks_of_grpo(config.grpo))
    return open_parts(config.self_training.parts, CLONING, _lacks_of_cloning(config.self_training), CLONING_OWN)


CLONING_OWN = PartNames(advantage="leave_one_out", selection="successes")
"""What filtered cloning takes where no other part is named: a rollout alone in its group is compared with 0."""


def _lacks_of_grpo(config: GrpoConfig) -> dict[str, str]:
    alone = {MATES: "improvement.grpo.group_size=1 gives one; give improvement.grpo.group_size=2 or more"}
    return {TREE: NO_TREE} | (alone if config.group_size == 1 else {})


def _lacks_of_cloning(config: FilteredCloning) -> dict[str, str]:
    key = "improvement.self_training.group_size"
    alone = {MATES: f"{key}=1 gives one; give {key}=2 or more"}
    return {TREE: NO_TREE} | (alone if config.group_size == 1 else {})


def lacks_of_alignment(method: str) -> dict[str, str]:
    """Say what a video model's rollouts lack under an alignment method."""
    outcome = (SUCCESS, PROBABILITY, SURPRISE, IMAGES, AVERAGE, BEGINNING, POLICY, DEMONSTRATIONS)
    lacks: dict[str, str] = {need: NO_OUTCOME for need in outcome}
    return lacks if method == "branch_grpo" else {**lacks, TREE: "give method=branch_grpo"}


def make_method(name: str, task: AlignmentTask, configs: MethodConfigs) -> Method:
    """Make the alignment method called ``name``; a plug-in's gets no settings. SettingError with the nearest name where there is none."""
    make = ALIGNMENTS.get(name)
    return make(task, getattr(configs, name, None), open_parts(task.config.parts, ALIGNMENT, lacks_of_alignment(name)))
