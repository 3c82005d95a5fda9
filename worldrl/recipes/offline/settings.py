"""Settings of ``worldrl train-offline``: algorithm, world and ``tuned=`` decide types and defaults of their groups."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

from worldrl.core.errors import SettingError, nearest
from worldrl.methods.offline.agent import Agent
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.latent import video_latents
from worldrl.methods.offline.neubay.neubay import Neubay
from worldrl.methods.offline.online.snapshot_resets import SnapshotConfig
from worldrl.methods.offline.ravl import Ravl, RavlConfig
from worldrl.methods.offline.training import OfflineTraining
from worldrl.recipes.offline.data import READING
from worldrl.recipes.offline.online_phase import OnlineConfig, PlannerConfig, check_online
from worldrl.recipes.offline.recurrent import neubay_defaults
from worldrl.recipes.offline.worlds import AUTO, GUIDED, LATENT, WORLDS, DiffusionSettings, published_diffusion
from worldrl.recipes.tracking import Tracked
from worldrl.recipes.world_model.start import BUNDLED
from worldrl.registry import ALGORITHMS
from worldrl.settings import PUBLISHED, non_negative, one_of, required, setting
from worldrl.world_models.state.config import EnsembleConfig, EnsembleTraining, Uncertainty, ravl_ensemble

DEFAULT = "ravl"
WORLD_MEANING = "world model: none, ensemble, true, diffusion or latent"
UNCERTAINTY_MEANING = (
    "what imagining.penalty multiplies and the planner counts; with a planner and no penalty, sample_std"
)
TUNED_MEANING = (
    "video-latents: what learns with world=latent; with neubay also the paper's κ and α of a dataset, for example hopper-medium, and "
    "with preset=gpu its encoder rate too"
)


@dataclass
class TrainOfflineSettings(Tracked):
    """Which data, which algorithm, in which world."""

    data: str = required(
        "Minari id or folder, D4RL .hdf5 file, or with world=latent a LeRobotDataset folder",
        made_by="worldrl make-dataset",
    )
    run_dir: str = setting("runs/train-offline", "where everything is written; the agent goes to run_dir/agent")
    seed: int = setting(0, "root of every random stream")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    algorithm: str = setting(DEFAULT, "registered name of the algorithm; its settings are agent.*")
    world: str = setting("ensemble", WORLD_MEANING)
    world_model: str = setting(BUNDLED, "video world model of world=latent: a folder, or bundled")
    keypoints: int = setting(
        0, "with world=latent, learned keypoints that agents see in the latents' place; 0 for none"
    )
    components: int = setting(
        0, "with world=latent, principal components of a chunk that agents choose; 0 for all its numbers"
    )
    stride: int = setting(0, "with world=latent, control steps between trajectories of an episode; 0 takes a chunk's")
    tuned: str | None = setting(None, TUNED_MEANING)
    rows: int = setting(0, "number of first rows to train on; 0 takes all")
    env: str | None = setting(None, "environment to evaluate in; null takes the dataset's own")
    max_episode_steps: int | None = setting(None, "its time limit; null takes the dataset's or the registered one")
    action_low: list[float] = setting(
        [], "lower bounds of the data's actions, one or one each; [] takes its own, for a D4RL file those of env or -1"
    )
    action_high: list[float] = setting([], "upper bounds, likewise")
    clip_actions: bool = setting(
        False, "move actions beyond their bounds to them and count the rows, instead of refusing"
    )
    obs_keys: list[str] = setting(
        [],
        "keys of the environment's parts of an observation in the order of the data's columns, where the data name none",
    )
    termination: str = setting(
        AUTO,
        "when the ensemble's steps end the task: auto (the environment's own rule), never, learned, or a registered rule",
    )
    uncertainty: str = setting("max_sigma", UNCERTAINTY_MEANING)
    worlds: str | None = setting(
        None,
        "folder of ensembles that runs share: same rows, ensemble.* and seed train one together; null, each its own",
    )
    episodes: int = setting(
        10, "episodes of the final evaluation, with world=latent of each task; 0 for no evaluation at all"
    )
    video_episodes: int = setting(2, "episodes of each evaluation during training, likewise; 0 for none")
    agent: RavlConfig = field(default_factory=RavlConfig)
    imagining: Imagining = field(default_factory=lambda: Ravl.imagining)
    training: OfflineTraining = field(default_factory=OfflineTraining)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    ensemble_training: EnsembleTraining = field(default_factory=EnsembleTraining)
    diffusion: DiffusionSettings = field(default_factory=DiffusionSettings, metadata={"only_with": "world=diffusion"})
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    online: OnlineConfig = field(default_factory=OnlineConfig)
    snapshots: SnapshotConfig = field(default_factory=SnapshotConfig, metadata={"only_with": "online.resets=snapshots"})

    def __post_init__(self) -> None:
        one_of("world", self.world, WORLDS)
        check_tuned(self.tuned, self.algorithm, self.world)
        one_of("uncertainty", self.uncertainty, [kind.value for kind in Uncertainty if kind is not Uncertainty.none])
        for name in ("rows", "episodes", "video_episodes", *LATENT):
            non_negative(name, getattr(self, name))
        for name in LATENT:
            if getattr(self, name) and self.world != "latent":
                raise SettingError(
                    f"{name}={getattr(self, name)}: vectors have no latents; give world=latent, or {name}=0"
                )
        for name in READING:
            if getattr(self, name) and self.world == "latent":
                raise SettingError(f"{name}: world=latent reads recorded episodes, not vectors; leave {name} out")
        if self.worlds is not None and self.world != "ensemble":
            raise SettingError(f"worlds={self.worlds}: world={self.world} has no ensemble to share; leave it out")
        if self.imagining.penalty and self.world not in ("ensemble", "true"):
            raise SettingError(
                f"imagining.penalty={self.imagining.penalty:g}: world={self.world} measures no uncertainty to multiply; "
                "give world=ensemble, or imagining.penalty=0"
            )
        agent_class = offline_agent(self.algorithm)
        check_online(self, agent_class)
        asks = "world" in agent_class.needs or (agent_class is Neubay and self.world != "latent")
        if asks and self.world != "ensemble":
            raise SettingError(f"world: {self.algorithm} asks the members of an ensemble; give world=ensemble")
        if agent_class is Neubay and self.device != "cpu":
            raise SettingError(
                f"device={self.device}: neubay's sequences and rollouts are kept on the CPU; give device=cpu"
            )


def offline_agent(name: str) -> type[Agent]:
    """Look up an offline agent; SettingError where it is unknown (with the nearest) or no offline agent."""
    found: Any = ALGORITHMS.get(name)
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise SettingError(f"algorithm {name!r} does not learn from a dataset of vectors; worldrl train-vla may use it")
    return found


def check_tuned(tuned: str | None, algorithm: str, world: str) -> None:
    """Refuse tuned settings of another world or another algorithm; SettingError."""
    if tuned is None or (algorithm == Neubay.name and tuned != video_latents.NAME):
        return
    if tuned != video_latents.NAME:
        near = nearest(tuned, [video_latents.NAME])
        raise SettingError(f"tuned={tuned}: {algorithm} has settings of {video_latents.NAME} alone{near}")
    if world != "latent":
        raise SettingError(f"tuned={tuned}: what learns in latents; give world=latent, not {world}")
    if algorithm not in video_latents.AGENTS:
        raise SettingError(f"tuned={tuned}: {algorithm} was not tuned there; choose {', '.join(video_latents.AGENTS)}")


def settings_for(given: Mapping[str, str]) -> type[TrainOfflineSettings]:
    """Settings class for a command line (text by dotted key): ``agent`` has the type and defaults of the algorithm."""
    agent_class = offline_agent(given.get("algorithm", DEFAULT))
    if agent_class is Neubay:
        return _neubay_settings(given)
    if given.get("tuned") == video_latents.NAME and agent_class.name in video_latents.AGENTS:
        return make_dataclass("TrainOfflineSettings", _latent_fields(agent_class), bases=(TrainOfflineSettings,))
    imagines = agent_class.imagining is not None
    world = given.get("world", "ensemble" if imagines else "none")
    imagining = agent_class.imagining or (GUIDED if world == "diffusion" else Imagining())
    changed: list[Any] = [
        ("agent", agent_class.config_class, field(default_factory=agent_class.config_class)),
        ("imagining", Imagining, field(default_factory=lambda: imagining)),
        ("world", str, setting(world, WORLD_MEANING)),
    ]
    if issubclass(agent_class, Ravl):
        changed.append(("ensemble", EnsembleConfig, field(default_factory=lambda: EnsembleConfig(input_clip=10.0))))
        if given.get("preset") in PUBLISHED:
            changed.append(("ensemble_training", EnsembleTraining, field(default_factory=ravl_ensemble)))
    if given.get("planner.use", "none") != "none" and not imagining.penalty:
        changed.append(("uncertainty", str, setting("sample_std", UNCERTAINTY_MEANING)))  # COPlanner's own
    if world == "diffusion" and given.get("preset") in PUBLISHED:
        changed.append(
            (
                "diffusion",
                DiffusionSettings,
                field(default_factory=published_diffusion, metadata={"only_with": "world=diffusion"}),
            )
        )
    return make_dataclass("TrainOfflineSettings", changed, bases=(TrainOfflineSettings,))


def _latent_fields(agent_class: type[Agent]) -> list[Any]:
    agent = video_latents.AGENTS[agent_class.name]
    return [
        ("agent", agent_class.config_class, field(default_factory=lambda: agent)),
        ("imagining", Imagining, field(default_factory=lambda: video_latents.IMAGINING)),
        ("training", OfflineTraining, field(default_factory=lambda: video_latents.TRAINING)),
        *_latent_view(),
    ]


def _latent_view() -> list[Any]:
    """Fields of the world, and of an agent's observations and actions there."""
    values: dict[str, Any] = {
        "world": "latent",
        "keypoints": video_latents.KEYPOINTS,
        "components": video_latents.COMPONENTS,
        "stride": video_latents.STRIDE,
    }
    named = {item.name: item for item in fields(TrainOfflineSettings)}
    return [(name, type(value), setting(value, named[name].metadata["meaning"])) for name, value in values.items()]


def _neubay_settings(given: Mapping[str, str]) -> type[TrainOfflineSettings]:
    parts = neubay_defaults(given).items()
    changed: list[Any] = [
        *((name, type(part), field(default_factory=lambda part=part: part)) for name, part in parts),
        *(_latent_view() if given.get("tuned") == video_latents.NAME else []),
        ("uncertainty", str, setting("epistemic_mean", "whose quantile cuts rollouts")),
    ]
    return make_dataclass("TrainOfflineSettings", changed, bases=(TrainOfflineSettings,))
