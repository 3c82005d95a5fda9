"""Settings of the video world model's training."""

from dataclasses import dataclass

from worldrl.core.errors import SettingError
from worldrl.core.training.ranks import DeviceSettings


@dataclass
class WorldModelTraining(DeviceSettings):
    """Settings of ``training.fit_codec``, ``training.fit_dynamics`` and ``outcome_training.fit_outcome``."""

    codec_steps: int = 0  # steps of the codec; 0 trains none, and pixels need none.
    codec_batch: int = 48  # frames per codec step.
    codec_learning_rate: float = 6e-4  # peak, warm-up cosine.
    steps: int = 600  # steps of dynamics, success and gripper head together; 0 trains none.
    batch: int = 32  # windows per step.
    learning_rate: float = 2e-4  # peak, warm-up cosine.
    warmup: int = 50  # steps of warm-up.
    weight_decay: float = 0.01  # AdamW.
    clip_norm: float = 1.0  # largest gradient norm.
    ema_decay: float = 0.995  # of the averaged weights, which are stored; 0 stores the last ones.
    unroll: int = 3  # chunks per window.
    bootstrap: float = 0.5  # probability that a step continues from the model's own imagined frames.
    # latent rollouts that such steps continue, to any depth (``bootstrapping``); 0 imagines ahead within the window
    # instead.
    bootstrap_rows: int = 0
    first_chunk_share: float = 0.1  # share of windows that start an episode.
    static_share: float = 0.05  # share of static clips.
    event_share: float = 0.4  # share of windows around gripper changes and contacts.
    negative_share: float = 0.2  # share of windows whose instruction is replaced by one that they do not fulfil.
    # share of windows conditioned on the instruction instead of their actions, for a model that plans
    # (``dynamics.planning``); static clips and failed episodes keep theirs.
    action_dropout: float = 0.0
    outcome_steps: int = 400  # steps of the outcome head, after the dynamics; 0 trains none.
    outcome_batch: int = 64  # episodes per step of those.
    outcome_learning_rate: float = 2e-3  # peak, warm-up cosine.
    outcome_weight_decay: float = 0.05  # AdamW.
    outcome_dropout: float = 0.1  # share of the findings hidden in each episode.
    restorer_steps: int = 0  # steps of the frame restorer, last of all; 0 trains none.
    restorer_batch: int = 32  # frames per step of those.
    restorer_learning_rate: float = 4e-3  # peak, warm-up cosine.
    # steps that make the dynamics a flow map (``flow_map``), before the outcome head learns; 0 leaves them as they are.
    flow_map_steps: int = 0
    flow_map_rollout_steps: int = 8  # of the longest sampler that the on-policy steps simulate.
    flow_map_sampling_steps: int = 1  # of the sampler that is stored with a flow map; any other number works too.
    on_policy_steps: int = 0  # further steps on the flow map's own samples.
    on_policy_learning_rate: float = 8e-6  # peak of those, warm-up cosine.
    # ``float32``, ``bfloat16`` for autocast, or ``auto``: bfloat16 where the device has units for it.
    dtype: str = "auto"
    compile: bool = False  # compile the dynamics (worth it on a GPU).
    checkpoint_every: int = 200  # steps between checkpoints.

    def __post_init__(self) -> None:
        if self.accumulate > 1:
            raise SettingError(
                f"training.accumulate={self.accumulate}: the dynamics' loss is relative to the motion of the whole batch; "
                "give training.accumulate=1"
            )
        if self.sharded and self.compile:
            raise SettingError("training.sharded=true with training.compile=true was never run; leave one of them out")
        for name in ("bootstrap", "negative_share", "action_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"training.{name} must be in [0, 1], got {getattr(self, name)}")
        for name in ("flow_map_rollout_steps", "flow_map_sampling_steps"):
            if getattr(self, name) < 1:
                raise SettingError(f"training.{name} must be at least 1, got {getattr(self, name)}")
        if self.on_policy_steps and not self.flow_map_steps:
            raise SettingError(
                f"training.on_policy_steps={self.on_policy_steps} follow those of the flow map; give training.flow_map_steps too"
            )
        if not 0 <= self.outcome_dropout < 1:
            raise SettingError(f"training.outcome_dropout must be in [0, 1), got {self.outcome_dropout}")
        if self.bootstrap_rows < 0:
            raise SettingError(f"training.bootstrap_rows must not be negative, got {self.bootstrap_rows}")
        if self.bootstrap > 0 and self.unroll < 2 and not self.bootstrap_rows:
            raise SettingError(
                f"training.bootstrap needs training.unroll of at least 2 or training.bootstrap_rows, got {self.unroll} and 0"
            )

    @property
    def backbone(self) -> str:
        """Of which world models these are settings."""
        return "video"
