"""A video model plans from initial states of the embedded suite, and the simulator executes what its videos show.

Shapes: ``N`` plans, ``T`` imagined frames, ``D`` targets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.interfaces import RewardMix, VideoReward
from worldrl.core.rng import stream_seed
from worldrl.core.storage.arrays import save_arrays
from worldrl.core.storage.learned import Learned
from worldrl.core.types import ResetRecord
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.rewards.execution_critic import held_to
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics, read_once
from worldrl.rollout.imagined.decoded_plans import execute_targets
from worldrl.rollout.imagined.staged_rollouts import StagedConfig, StagedPlans, staged_rollouts
from worldrl.rollout.imagined.starts import EmbeddedBackend
from worldrl.rollout.real.specs import EpisodeSpec, domains_of, state_digest
from worldrl.world_models.video.model import VideoWorldModel

AT_ONCE = 8  # Starts that are planned together
PLANS = "plans"  # Folder of all that were executed
TERM_OF = "term:"  # What stands before a term's name in a file of plans
COLLECTION = "practice"  # Purpose of the states and the noise that a critic's plans come from


@dataclass(frozen=True)
class Planning:
    """Who plans, who reads the plans, and by what they are chosen."""

    model: VideoWorldModel  # plans
    idm: InverseDynamics  # reads the whole command (check_targets)
    reward: VideoReward  # of finished videos
    mixing: RewardMix  # makes one number of its terms, where one of several plans is chosen
    seed: int  # of all draws

    def plan(self, records: Sequence[ResetRecord], config: StagedConfig, *purpose: Any) -> StagedPlans:
        """Plan from some records; ``purpose`` names the noise."""
        frame_s, seed = self.model.frame_stride / self.model.embodiment.control_hz, stream_seed(self.seed, *purpose)
        return staged_rollouts(self.model, self.reward, self.mixing, records, config, frame_s=frame_s, seed=seed)


@dataclass(frozen=True)
class DecodedPlans:
    """Plans of one task and what they show."""

    plans: StagedPlans  # as they were imagined
    records: Sequence[ResetRecord]  # where they begin
    # Targets that inverse dynamics reads off the frames, the recorded first one among them, `[N, 1 + T, D]`.
    decoded: Tensor

    @property
    def read(self) -> Tensor:
        """Targets that are read off the imagined frames, ``[N, T, D]``: what is executed."""
        return self.decoded[:, 1:]


@dataclass(frozen=True)
class ExecutedPlans(DecodedPlans):
    """Plans of one task and what became of them."""

    step: NDArray[np.int64]  # control step at which the task was first fulfilled, int64 `[N]`; -1 where it never was


def states_seed(seed: int, purpose: str) -> int:
    """Seed of the initial states of a purpose: those of two purposes are different."""
    return stream_seed(seed, purpose) % 2**31


def decoded_plans(
    planning: Planning,
    task: str,
    config: StagedConfig,
    *,
    count: int,
    purpose: str,
    begin: int = 0,
    domain: str = "clean",
) -> Iterator[DecodedPlans]:
    """Plan from a task's initial states and read what the plans show; :data:`AT_ONCE` states at a time.

    ``purpose`` names states and noise: those of two purposes differ, those of two models are the same. The first
    ``begin`` states are left out, a multiple of :data:`AT_ONCE`.
    """
    model, source = planning.model, states_seed(planning.seed, purpose)
    memory, size = model.memory_frames, model.config.codec.image_size
    records = EmbeddedBackend(domain).starts([task], count, seed=source, memory_frames=memory, image_size=size)
    for first in range(begin, count, AT_ONCE):
        some = records[first : first + AT_ONCE]
        plans = planning.plan(some, config, purpose, "plans", task, first)
        yield DecodedPlans(plans, some, read_once(planning.idm, plans.videos))


def executed_plans(
    planning: Planning,
    task: str,
    config: StagedConfig,
    *,
    count: int,
    purpose: str,
    begin: int = 0,
    domain: str = "clean",
) -> Iterator[ExecutedPlans]:
    """Execute what the plans of :func:`decoded_plans` show, open loop; arguments as there."""
    stride, actions = planning.model.frame_stride, planning.model.embodiment.actions
    found = decoded_plans(planning, task, config, count=count, purpose=purpose, begin=begin, domain=domain)
    for first, some in zip(range(begin, count, AT_ONCE), found, strict=True):
        commands = torch.from_numpy(np.stack([record.command for record in some.records]))
        starts = [(first + row, states_seed(planning.seed, purpose)) for row in range(len(some.records))]
        step = execute_targets(some.read, commands, stride, task, starts, actions, domain)
        yield ExecutedPlans(some.plans, some.records, some.decoded, step)


# --- practice: what a critic learns from ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CollectionSettings:
    """Executed plans of all tasks."""

    read: Tensor  # targets read off the imagined frames, float32 `[N, T, D]`; shorter plans hold their last ones
    task: list[str]  # `N` names
    instruction: list[str]  # `N` instructions; a task has several
    success: NDArray[np.bool_]  # bool `[N]`
    # What the planning's reward gave each plan, name to float32 `[N]`.
    terms: Mapping[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]])

    @classmethod
    def of(cls, plans: ExecutedPlans, names: Sequence[str]) -> "CollectionSettings":
        """Take what is kept of executed plans; ``names`` are those of the reward's terms."""
        terms = {name: plans.plans.terms[:, k].numpy() for k, name in enumerate(names)}
        said = [record.instruction for record in plans.records]
        return cls(plans.read, [record.task for record in plans.records], said, plans.step >= 0, terms)

    def select(self, rows: NDArray[np.int64]) -> "CollectionSettings":
        """Take some plans."""
        named, said = ([each[row] for row in rows] for each in (self.task, self.instruction))
        terms = {name: term[rows] for name, term in self.terms.items()}
        return CollectionSettings(self.read[torch.from_numpy(rows)], named, said, self.success[rows], terms)

    @classmethod
    def join(cls, parts: "Sequence[CollectionSettings]") -> "CollectionSettings":
        """Put parts one after another."""
        longest = max(part.read.shape[1] for part in parts)
        read = torch.cat([held_to(part.read, longest) for part in parts])
        named = [task for part in parts for task in part.task]
        sentences = [sentence for part in parts for sentence in part.instruction]
        terms = {name: np.concatenate([part.terms[name] for part in parts]) for name in parts[0].terms}
        return cls(read, named, sentences, np.concatenate([part.success for part in parts]), terms)

    def save(self, file: Path) -> None:
        """Write the plans to ``file``, whole or not at all."""
        arrays: dict[str, Any] = {
            "read": self.read.numpy(),
            "task": np.array(self.task),
            "instruction": np.array(self.instruction),
            "success": self.success,
            **{f"{TERM_OF}{name}": term for name, term in self.terms.items()},
        }
        save_arrays(file, arrays)

    @classmethod
    def load(cls, file: Path) -> "CollectionSettings":
        """Read :meth:`save`'s file; ArtefactError where an earlier version wrote it, which kept no tasks."""
        with np.load(file, allow_pickle=False) as kept:
            if "task" not in kept.files:
                raise ArtefactError(
                    f"{file}: an earlier version kept these plans without their tasks; give a new run_dir, or delete {file.parent}"
                )
            terms = {name.removeprefix(TERM_OF): kept[name] for name in kept.files if name.startswith(TERM_OF)}
            named, said = kept["task"].tolist(), kept["instruction"].tolist()
            return cls(torch.from_numpy(kept["read"]), named, said, kept["success"], terms)


def collect_plans(
    planning: Planning,
    chunks: dict[str, int],
    count: int,
    *,
    place: Path | None = None,
    domain: str = "clean",
    on_part: Callable[[], None] | None = None,
) -> CollectionSettings:
    """Plan one video from each of ``count`` states of every task and execute them.

    ``chunks`` are the length of each task's plans. What was executed is kept in ``place/plans``, and not executed
    again; ``on_part`` is called after every :data:`AT_ONCE` executed plans.
    """
    parts = []
    for task, length in chunks.items():
        for fresh, part in _tried(planning, task, length, count, place, domain):
            parts.append(part)
            if fresh and on_part is not None:
                on_part()
    return CollectionSettings.join(parts)


def _tried(
    planning: Planning, task: str, length: int, count: int, place: Path | None, domain: str
) -> Iterator[tuple[bool, CollectionSettings]]:
    """Parts of a task's practice in their order, and whether each was executed just now."""
    files = [] if place is None else [place / PLANS / f"{task}-{first}.npz" for first in range(0, count, AT_ONCE)]
    finished = next((k for k, file in enumerate(files) if not file.exists()), len(files))
    yield from ((False, CollectionSettings.load(file)) for file in files[:finished])
    config, begin = StagedConfig(stage_chunks=length, proposals=1), finished * AT_ONCE
    if begin >= count:
        return
    found = executed_plans(planning, task, config, count=count, purpose=COLLECTION, begin=begin, domain=domain)
    for k, plans in enumerate(found, start=finished):
        part = CollectionSettings.of(plans, planning.reward.names)
        if files:
            part.save(files[k])
        yield True, part


def plan_states(tasks: Iterable[str], count: int, seed: int) -> Learned:
    """Return the states that :func:`collect_plans` plans from, as what was learned from."""
    source = states_seed(seed, COLLECTION)
    states = (EpisodeSpec(task, index, source) for task in tasks for index in range(count))
    return Learned(episodes=frozenset(map(state_digest, states)))


def only_domain(datasets: Sequence[EpisodeDataset]) -> str:
    """Return the domain that all episodes lie in; SettingError where there are several."""
    found = domains_of(record.meta for dataset in datasets for record in dataset.records)
    if len(found) > 1:
        raise SettingError(
            f"executed_plans: plans are executed in the data's domain, and this data has {' and '.join(found)}; give one"
        )
    return found[0]
