"""Settings of ``wovr``, ``sword`` and ``world-vla-loop``: sizes of their runs, and which arms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from worldrl.core.errors import SettingError, nearest
from worldrl.recipes.world_model.start import BUNDLED
from worldrl.reproductions.mechanisms.arms import (
    DEFAULT,
    LOOKS,
    SWORD,
    WORLD,
    WORLD_VLA_LOOP,
    WOVR,
    Arm,
    LoopArm,
    WorldArm,
)

ALL, NONE = "all", ""


@dataclass(frozen=True)
class MechanismSettings:
    """Settings of the runs; what they do not name has the default of the command or of its preset."""

    ARMS: ClassVar[tuple[Arm, ...]] = ()
    seeds: int = 5
    preset: str = "cpu"  # of train-vla and train-world-model
    arms: str = ALL  # or names joined by `+`; what they are compared with runs, too
    tasks: str = NONE  # names joined by `+`; empty takes the three Pick tasks
    rounds: int = 2
    episodes: int = 170  # initial states of each task before and after
    recorded: int = 100  # episodes of each task and kind that world models learn from
    unseen: int = 20  # episodes of each task and kind that they are measured on
    codec: str = BUNDLED  # of the world models; empty learns one
    world_steps: int = 3000  # of the dynamics
    outcome_steps: int = 1200  # of the outcome head
    world_batch: int = 32
    horizon: int = 128  # steps after which images are compared

    def __post_init__(self) -> None:
        known = self.names
        for name in self.asked:
            if name not in known:
                raise SettingError(f"change.arms: unknown {name!r}{nearest(name, known)}")

    @property
    def names(self) -> dict[str, Arm]:
        """Arms by name."""
        return {arm.name: arm for arm in self.ARMS}

    @property
    def asked(self) -> Sequence[str]:
        """Names of the arms to run, besides what they are compared with."""
        if self.arms == ALL:
            return list(self.names)
        return [name for name in self.arms.split("+") if name not in (DEFAULT, WORLD)]

    @property
    def methods(self) -> tuple[str, ...]:
        """What is a stage of its own; what others are compared with is first."""
        chosen = [self.names[name] for name in self.asked]
        loop = [arm.name for arm in chosen if isinstance(arm, LoopArm)]
        world = [arm.name for arm in chosen if not isinstance(arm, LoopArm)]
        return tuple([DEFAULT, *loop] * bool(loop) + [WORLD, *world] * bool(world))

    @property
    def measures_looks(self) -> bool:
        """Whether world models are also measured in visual styles that no training has."""
        return any(isinstance(arm, WorldArm) and arm.measure == LOOKS for arm in map(self.names.get, self.asked))

    @property
    def chosen_tasks(self) -> str:
        """The tasks as a setting of a command."""
        return f"tasks=[{self.tasks.replace('+', ',')}]" if self.tasks else "kind=object"


@dataclass(frozen=True)
class WovrSettings(MechanismSettings):
    """Settings of ``wovr``."""

    ARMS: ClassVar[tuple[Arm, ...]] = WOVR


@dataclass(frozen=True)
class SwordSettings(MechanismSettings):
    """Settings of ``sword``."""

    ARMS: ClassVar[tuple[Arm, ...]] = SWORD


@dataclass(frozen=True)
class WorldVlaLoopSettings(MechanismSettings):
    """Settings of ``world-vla-loop``."""

    ARMS: ClassVar[tuple[Arm, ...]] = WORLD_VLA_LOOP


def scales(own: MechanismSettings, tiny: str) -> Mapping[str, MechanismSettings]:
    """Give the sizes of each scale; ``tiny`` names the arms that show whether it runs."""
    return {
        "paper": replace(own, recorded=400, unseen=60, world_steps=10000),
        "full": own,
        "quick": replace(own, seeds=3, episodes=100, world_steps=1200, outcome_steps=800),
        "tiny": replace(
            own, seeds=2, preset="tiny", arms=tiny, tasks="PickRedCube+PickGreenCylinder", rounds=1, episodes=2,
            recorded=2, unseen=2, codec=NONE, world_steps=2, outcome_steps=2, world_batch=2, horizon=32,
        ),
    }  # fmt: skip
