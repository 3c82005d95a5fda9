"""Alignment of a video model: the settings of every method, and the loop that all of RL shares."""

from dataclasses import dataclass, field
from pathlib import Path

from worldrl.core.storage.log import MetricLog
from worldrl.core.training.optimizer import adamw
from worldrl.methods.alignment.branch_grpo import BranchGrpoConfig
from worldrl.methods.alignment.dance_grpo import DanceGrpoConfig
from worldrl.methods.alignment.diffusion_nft import DiffusionNftConfig
from worldrl.methods.alignment.flow_grpo import FlowGrpoConfig
from worldrl.methods.alignment.sol_rl import SolRlConfig
from worldrl.methods.alignment.step_aware_preference import StepAwarePreferenceConfig
from worldrl.methods.alignment.task import AlignmentTask
from worldrl.methods.rl.loop import Learner, train
from worldrl.methods.rl.method import Method


@dataclass
class MethodConfigs:
    """Settings of every method; only those of the chosen one have an effect."""

    # Flow-GRPO, and EVA's variant of it.
    flow_grpo: FlowGrpoConfig = field(default_factory=FlowGrpoConfig, metadata={"only_with": ".method=flow_grpo"})
    # DanceGRPO.
    dance_grpo: DanceGrpoConfig = field(default_factory=DanceGrpoConfig, metadata={"only_with": ".method=dance_grpo"})
    # BranchGRPO.
    branch_grpo: BranchGrpoConfig = field(
        default_factory=BranchGrpoConfig, metadata={"only_with": ".method=branch_grpo"}
    )
    # DiffusionNFT.
    diffusion_nft: DiffusionNftConfig = field(
        default_factory=DiffusionNftConfig, metadata={"only_with": ".method=diffusion_nft"}
    )
    sol_rl: SolRlConfig = field(default_factory=SolRlConfig, metadata={"only_with": ".method=sol_rl"})  # Sol-RL.
    # step-aware preference optimisation.
    step_aware_preference: StepAwarePreferenceConfig = field(
        default_factory=StepAwarePreferenceConfig, metadata={"only_with": ".method=step_aware_preference"}
    )


def align(task: AlignmentTask, method: Method, *, folder: Path | None, log: MetricLog | None) -> list[dict[str, float]]:
    """Align the task's model in place; ``method`` was made for this task while its weights were the starting ones.

    Without ``folder`` no checkpoint is kept. Returns each iteration's numbers, without times. Raises NonFiniteError
    where a loss, gradient or reward is not finite; the weights are those before that step.
    """
    config = task.config
    learner = Learner(
        modules={"dynamics": task.dynamics},
        optimizer=adamw(task.dynamics, config.learning_rate, config.weight_decay),
        parameters=task.dynamics.parameters,
        clip_norm=config.clip_norm,
        iterations=config.iterations,
        checkpoint_every=config.checkpoint_every,
        name="alignment",
        note=lambda numbers: ", ".join(f"{name} {numbers[f'reward/{name}']:.3g}" for name in task.reward.names),
        timed=True,
    )
    return train(learner, method, folder=folder, log=log, series="align")
