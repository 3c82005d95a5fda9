"""Settings of ``methods``: which start policies, and how many groups are imagined of each."""

from dataclasses import dataclass
from pathlib import Path

from worldrl.core.errors import SettingError
from worldrl.paths import weights_dir
from worldrl.recipes.run import choose_tasks
from worldrl.recipes.world_model.start import BUNDLED

LEAST_BATCHES, LEAST_MATES = 2, 2


@dataclass(frozen=True)
class YardstickSettings:
    """Settings of the recorded groups."""

    seeds: int = 1
    policies: str = BUNDLED  # start policies, one a line: folders of train-policy, or bundled
    world_model: str = BUNDLED  # imagines the groups; a folder, or bundled
    task: str = "PickRedCube"  # name in the embedded suite
    groups: int = 64  # imagined of each policy
    group_size: int = 8  # rollouts of a group; a budget shares out half of them
    batch_groups: int = 8  # groups of a small batch, whose gradient is compared
    starts: int = 16  # initial states; each is the start of groups / starts groups

    def __post_init__(self) -> None:
        choose_tasks([self.task], None)
        if self.groups % self.batch_groups or self.groups < LEAST_BATCHES * self.batch_groups:
            raise SettingError(
                f"change.groups: must be {LEAST_BATCHES} or more times change.batch_groups={self.batch_groups}, "
                f"got {self.groups}"
            )
        if self.group_size % 2 or self.group_size < 2 * LEAST_MATES:
            raise SettingError(f"change.group_size: must be even and at least 4, got {self.group_size}")
        for folder in self.folders.values():
            if not (folder / "config.json").is_file():
                raise SettingError(
                    f"policies: {folder} holds no policy; give folders of worldrl train-policy, or {BUNDLED}"
                )

    @property
    def batches(self) -> int:
        """Disjoint small batches of each policy."""
        return self.groups // self.batch_groups

    @property
    def folders(self) -> dict[str, Path]:
        """Names of the start policies, and their folders."""
        named = self.policies.split("\n")
        return {
            name if name == BUNDLED else f"policy-{number}": weights_dir() / "policy" if name == BUNDLED else Path(name)
            for number, name in enumerate(named, 1)
        }

    @property
    def methods(self) -> tuple[str, ...]:
        """What is a stage of its own: a start policy."""
        return tuple(self.folders)
