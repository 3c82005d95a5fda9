"""What makes a task: the record that both suites' tables are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from worldrl_envs.language import PARAPHRASES, Phrases
from worldrl_envs.layouts import LayoutSpec


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Everything that makes a task."""

    name: str  # CamelCase; the environment id is `worldrl/<name>-v0`
    kind: str  # One of `tasks.KINDS`
    instruction: str  # The canonical instruction
    objects: tuple[str, ...] = ()  # Free objects, names in `scene.OBJECTS`
    layout: LayoutSpec  # How start arrangements are drawn
    horizon: int  # Control steps (1/20 s) until the episode is truncated
    # Predicates of the suite's physics, to be met in this order, each at some frame; meeting the last is success.
    stages: tuple[Callable[[Any], bool], ...]
    # The expert's skills in order, each (skill, name, ...); bimanual tasks: see `BimanualTask`.
    plan: tuple[tuple[Any, ...], ...]
    fixtures: tuple[str, ...] = ()  # Bin, cabinet, plate or zone
    entry_point: ClassVar[str] = "worldrl_envs.tabletop:TabletopEnv"

    @property
    def phrases(self) -> Phrases:
        """Other ways to say the instruction, split into training and held out."""
        return PARAPHRASES[self.name]

    @property
    def paraphrases(self) -> tuple[str, ...]:
        """All paraphrases, the training ones first; `options={"paraphrase": i}` indexes them."""
        return self.phrases.train + self.phrases.held_out
