"""Import paths of version 0.1: they give the moved module and a DeprecationWarning that names it."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_MOVES = """
core: core.statistics: stats>intervals bootstrap sequential sequential_budget sequential_step
core: core.storage: artefact atomic checkpoint data_only interrupts jsonfile learned lock log provenance run
core: recipes: heartbeat>run
core: core.storage: stopwatch tensorfile tree typed weights
core: core.training: ema fit optimizer ranks
data: data.lerobot: check dataset durable lerobot_format>format lerobot_journal>journal lerobot_metadata>metadata
data: data.lerobot: lerobot_reader>reader lerobot_rows>rows lerobot_stats>stats lerobot_writer>writer
data: data.windows: frame_store keyframes parting>divergence recolour window_batch>batch
evaluation: evaluation.policy: compare evaluate protocol provenance>result race>sequential_comparison result suites>protocol trained_on
evaluation: evaluation.world_model: battery fvd gates i3d lpips measures probe probe_frames throughput video>film
nn: world_models.latent: chunk_basis keypoints
policies: policies.lerobot: lerobot_folder>folder lerobot_network>network lerobot_samplers>samplers one_step
policies: policies.token: token_policy>policy tokens
rewards: rewards.motion: acceptance basis broken_limits calibration columns>readout decoded executability foresight
rewards: rewards.motion: idm_training>training inverse_dynamics limits similarity several>terms
rollout: policies.lerobot: lerobot_policy>policy lerobot_worker>worker
rollout: rollout.agents: actors policy_folder vector_agent
rollout: rollout.imagined: dreams>policy_rollouts imagine>env imagined_rollouts>rollouts latent_world registration
rollout: rollout.imagined: reset_store staged_rollouts starts
rollout: rollout.real: collect pool recording>rows replays>slots restyle rows specs
rollout: rollout.suites: isaac libero libero_files maniskill policy_server robotwin suite_env>env warp
rollout: rollout.vector: registered_env vector_episodes>episodes
rollout: simulators: environments simulator>process simulator_pool>pool
world_models: world_models.video: codec config dynamics flow_transformer losses outcome_head>heads restorer
world_models: world_models.video: success_head>heads
world_models: world_models.video: training training_config unet
algorithms: methods.imitation: behaviour_cloning demonstrations lerobot_tuning
algorithms: methods.rl: grpo improve self_training>filtered_cloning trust>filtering
algorithms.offline: methods.offline.neubay: neubay neubay_training>training
algorithms.offline: methods.offline.online: coplanner online_world snapshot_resets wsrl
"""
"""Old folder, new folder, and names of modules there, ``old>new`` where the name changed too."""

_FOLDERS = {
    "worldrl.algorithms": "worldrl.methods",
    "worldrl.jobs.reproductions": "worldrl.reproductions",
    "worldrl.world_models.offline": "worldrl.world_models.state",
}
"""Old package → new package; its modules kept their names."""


def _pairs() -> Iterator[tuple[str, str]]:
    for line in _MOVES.strip().splitlines():
        old, new, names = line.split(": ")
        for name in names.split():
            before, _, after = name.partition(">")
            yield f"worldrl.{old}.{before}", f"worldrl.{new}.{after or before}"


MOVED = dict(_pairs())
"""Old module → new module."""


def present_name(name: str) -> str | None:
    """Return where a module of version 0.1 is now; None for a name that has not moved."""
    if name in MOVED:
        return MOVED[name]
    for old, new in _FOLDERS.items():
        if name == old or name.startswith(old + "."):
            return new + name[len(old) :]
    return None


class _Alias(Loader):
    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has just put the alias's there


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        present = present_name(fullname)
        if present is None:
            return None
        warnings.warn(f"{fullname} is now {present}", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Alias(present), is_package=fullname in _FOLDERS)


# First in the list: a search of the new folder's files would load a second copy under the old name.
sys.meta_path.insert(0, _Finder())
