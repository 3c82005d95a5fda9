"""Settings of ``worldrl train-vla``: the whole loop in one typed tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from worldrl.core.errors import SettingError
from worldrl.core.image_fit import Fit
from worldrl.core.observation import IMAGE, NOT_OBSERVED, check_inputs
from worldrl.evaluation.policy.protocol import CLEAN, DOMAINS
from worldrl.evaluation.world_model.gates import GateThresholds
from worldrl.jobs.vla.branch import Branch
from worldrl.methods.imitation.config import BehaviourCloning, Distillation
from worldrl.methods.rl.improve import BOTH, Improvement
from worldrl.policies.token.policy import TokenPolicyConfig
from worldrl.recipes.rl_parts import improvement_parts
from worldrl.recipes.run import ENGINE, WITH_RAY, RayOptions, check_engine
from worldrl.recipes.tracking import Tracked
from worldrl.recipes.world_model.start import BUNDLED, SCRATCH, SHIPPED, require_trained_codec
from worldrl.recipes.world_model.wan_settings import WanSettings
from worldrl.rollout.planning.config import NEWEST, NONE, PLANNER, Planner, PlanningConfig
from worldrl.rollout.suites.names import EMBEDDED, RECORDINGS, SHADOWS, SUITE, SUITE_PYTHON, require_suite_name
from worldrl.settings import fraction, non_negative, one_of, positive, setting
from worldrl.world_models.loading import BACKBONES, VIDEO
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.training_config import WorldModelTraining

KIND = "object"
"""Kind of the embedded suite's tasks where none is named."""


@dataclass
class CollectionSettings:
    """Real episodes that a round's world model learns from.

    Attributes:
        policy_episodes: per task, by the round's policy, sampled.
        expert_episodes: per task, by the scripted expert with noise and misplaced goals that tries each skill once, also after
            a failure: near misses, and successes whose actions do not show the outcome. An external suite's has noise only.
        imagined_episodes: per task, actions of the round's policy in imagined rollouts of the newest world model, executed in the
            simulator. None in round 1 of ``start=scratch``.
        imagined_candidates: imagined rollouts from each start of those, of which the one most likely to succeed is executed.
        planner_episodes: per task, by the round's policy, greedy, with ``planner`` in the newest world model. None in round 1 of
            ``start=scratch``. ``improvement.self_training.collected_share`` clones their successes.
        noise: action noise of that expert, as a fraction of the action range.
        goal_offset: error of its goals, standard deviation (m); of the embedded suite.
        hold_steps: steps recorded after the first success.
        near_goal_share: share of the policy's failures, of each task, that came nearest to the goal and are learned from more
            often (``vla_near_goal``); of the embedded suite's tasks of one arm. 0 treats all failures alike.
        near_goal_weight: how often the world model has such an episode among those that it learns from; at least 2.
    """

    policy_episodes: int = 60
    expert_episodes: int = 40
    imagined_episodes: int = 60
    imagined_candidates: int = 1
    planner_episodes: int = 0
    noise: float = 0.15
    goal_offset: float = 0.015
    hold_steps: int = 8
    near_goal_share: float = 0.0
    near_goal_weight: int = 3

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.near_goal_share <= 1:
            raise SettingError(f"collection.near_goal_share must be in [0, 1], got {self.near_goal_share}")
        if self.near_goal_weight < 2:
            raise SettingError(
                f"collection.near_goal_weight must be at least 2 (1 repeats nothing), got {self.near_goal_weight}"
            )
        for name in ("policy_episodes", "expert_episodes", "imagined_episodes", "planner_episodes"):
            non_negative(f"collection.{name}", getattr(self, name))
        for name in ("noise", "goal_offset", "hold_steps"):
            non_negative(f"collection.{name}", getattr(self, name))
        positive("collection.imagined_candidates", self.imagined_candidates)


@dataclass
class Scratch:
    """What replaces the bundled weights when ``start=scratch``: more episodes and a longer training in round 1.

    Attributes:
        expert_episodes: per task, instead of ``collection.expert_episodes``.
        weights: bundled or a world-model folder, also of another robot: what fits is taken, the rest is untrained; null
            takes nothing.
        training: of codec and dynamics.
    """

    expert_episodes: int = 400
    weights: str | None = None
    training: WorldModelTraining = field(
        default_factory=lambda: WorldModelTraining(
            codec_steps=3000,
            steps=10000,
            outcome_steps=1000,
            learning_rate=5e-4,
            warmup=200,
            ema_decay=0.998,
            bootstrap=0.3,
        ),
        metadata={"only_with": ".backbone=video"},
    )


@dataclass
class Evaluation:
    """The paired measurement of before and after: in the simulator, or imagined from recordings.

    Attributes:
        episodes: initial states of each task; of recordings, held-out start frames at most.
        seed: of the initial states; training never uses it. 1000 is kept for reported numbers. An external suite's are
            stored and are the last of them, which training never uses.
        temperature: null decodes greedily.
        videos: filmed episodes per task.
        verify: imagined rollouts per task that are replayed in the simulator with the same actions.
        accept: initial states of each task, none of the evaluation's, on which a round's policy is measured beside the one
            before, and undone where it loses; 0 keeps each round's policy unmeasured.
    """

    episodes: int = 100
    seed: int = 1000
    temperature: float | None = None
    videos: int = 1
    verify: int = 60
    accept: int = 20

    def __post_init__(self) -> None:
        """Check the ranges."""
        positive("evaluation.episodes", self.episodes)
        non_negative("evaluation.videos", self.videos)
        positive("evaluation.verify", self.verify)
        non_negative("evaluation.accept", self.accept)


@dataclass
class TrainVlaSettings(Tracked):
    """The loop: demonstrations, policy, practice, world model, gates, imagination, evaluation, next round."""

    run_dir: str = setting("runs/train-vla", "where everything is written")
    seed: int = setting(0, "root of every random stream")
    device: str = setting("cpu", "where the networks run: cpu, cuda, cuda:N or auto")
    dtype: str = setting("auto", "number type of imagination: float32, bfloat16, or auto for the faster one")
    threads: int = setting(2, "torch threads of the main process")
    workers: int = setting(2, "simulator processes")
    envs_per_worker: int = setting(8, "environments per process, stepped in lock-step")
    timeout_s: float = setting(300.0, "longest silence of a worker before it is replaced (s); loading a policy counts")
    engine: str = setting("local", ENGINE)
    ray: RayOptions = field(default_factory=RayOptions, metadata={"only_with": WITH_RAY})
    suite: str = setting(EMBEDDED, f"{SUITE}; {RECORDINGS} takes those of data, and no simulator")
    python: str = setting("", SUITE_PYTHON)
    shadows: bool = setting(True, SHADOWS)
    tasks: list[str] = setting([], "names of tasks; empty takes all tasks of kind, or all of another suite")
    kind: str | None = setting(
        KIND, "object, spatial, goal or long; bimanual for two arms; null with empty tasks for all kinds"
    )
    domain: str = setting(
        CLEAN,
        "bimanual tasks: clean, or randomised in visual style, clutter and table height; of all recorded episodes, all initial states, "
        "the check in the simulator and both evaluations",
    )
    backbone: str = setting(VIDEO, "world model: video (worldrl's own transformer) or wan (published Wan weights)")
    start: str = setting(
        BUNDLED,
        f"world model to start from: {SHIPPED}, scratch (of wan: the published weights in wan.folder), or a world-model "
        "folder",
    )
    supervised: str | None = setting(
        None, "folder of a policy to improve, of the sizes in policy.*; null clones the demonstrations"
    )
    branch: Branch = field(default_factory=Branch)
    gates: str = setting("stop", "what a failed gate does: stop or warn")
    rounds: int = setting(2, f"rounds of collection, world model and improvement; 1 with suite={RECORDINGS}")
    improve_from: str = setting(
        "latest",
        "policy that each round's improvement starts from: latest, or supervised (inherits no exploits)",
    )
    demonstrations: int = setting(3, "expert demonstrations per task")
    data: str | None = setting(
        None,
        f"dataset folder of demonstrations of these tasks, instead of the expert's; with suite={RECORDINGS} of everything "
        "that is learned from",
    )
    styles: int = setting(
        0,
        "other visual styles in which the world model sees each of its training episodes (embedded suite): sampled, replayed",
    )
    held_out: float = setting(
        0.2,
        f"share of the collected episodes kept apart for calibration and gates; with suite={RECORDINGS} also the start frames "
        "of imagined success",
    )
    target_precision: float | None = setting(
        None,
        "precision at which the success threshold is calibrated; null: 0.85 in a round of self-training, 0.7 in one of GRPO",
    )
    cameras: list[str] = setting(
        [IMAGE],
        "images that policy and world model observe: image (the main camera's) first, then for example wrist_image",
    )
    state: str = setting(NOT_OBSERVED, "measured: policy and world model also observe the measured state; or none")
    policy: TokenPolicyConfig = field(default_factory=TokenPolicyConfig)
    cloning: BehaviourCloning = field(
        # Of few demonstrations each counts: one more at the table's edge moves the waypoint there by centimetres.
        default_factory=lambda: BehaviourCloning(steps=2000, batch_size=96, held_out_fraction=0),
        metadata={"only_with": "supervised=null"},
    )
    collection: CollectionSettings = field(
        default_factory=CollectionSettings, metadata={"only_with": f"suite!={RECORDINGS}"}
    )
    world_model: VideoWorldModelConfig = field(
        default_factory=VideoWorldModelConfig, metadata={"only_with": "backbone=video"}
    )
    training: WorldModelTraining = field(
        default_factory=lambda: WorldModelTraining(
            steps=150, learning_rate=1e-4, outcome_steps=150, outcome_learning_rate=5e-4
        ),
        metadata={"only_with": "backbone=video"},
    )
    scratch: Scratch = field(default_factory=Scratch, metadata={"only_with": "start=scratch"})
    wan: WanSettings = field(default_factory=WanSettings, metadata={"only_with": "backbone=wan"})
    thresholds: GateThresholds = field(default_factory=GateThresholds)
    confirmed: float = setting(
        0.6,
        "gate: share of imagined successes that the simulator confirms with the same actions; fails when its whole "
        "95 % interval lies below",
    )
    improvement: Improvement = field(default_factory=lambda: Improvement(algorithm=BOTH))
    evaluation: Evaluation = field(default_factory=Evaluation)
    distillation: Distillation = field(default_factory=Distillation, metadata={"only_with": "evaluation.accept!=0"})
    planner: str = setting(
        NONE,
        f"of collection.planner_episodes, and of one more evaluation of the first and of the final policy; {PLANNER}",
    )
    planning: PlanningConfig = field(
        default_factory=lambda: PlanningConfig(world_model=NEWEST), metadata={"only_with": f"planner!={NONE}"}
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        require_suite_name(self.suite, RECORDINGS)
        check_engine(self, plays=self.suite != RECORDINGS or self.improvement.imagines_elsewhere)
        self._check_recordings()
        self._check_planner()
        self._share_inputs()
        one_of("gates", self.gates, ("stop", "warn"))
        one_of("improve_from", self.improve_from, ("latest", "supervised"))
        one_of("backbone", self.backbone, BACKBONES)
        for number in (1, 2):  # later rounds have the second one's algorithm
            improvement_parts(self.improvement.of_round(number))
        if not self.policy.waypoint:
            self.improvement.exploration.drawn(imitates_waypoints=False)
            self.improvement.self_training.teaches_actions(waypoint=False)
        fraction("held_out", self.held_out)
        fraction("confirmed", self.confirmed)
        if self.target_precision is not None:
            fraction("target_precision", self.target_precision)
        for name in ("rounds", "demonstrations", "threads", "workers", "envs_per_worker", "timeout_s"):
            positive(name, getattr(self, name))
        non_negative("styles", self.styles)
        if self.kind not in (None, KIND) and self.suite != EMBEDDED:
            raise SettingError(f"kind: {self.kind!r} is of the embedded suite; with suite={self.suite} give tasks")
        if self.styles and self.suite != EMBEDDED:
            raise SettingError(
                f"styles={self.styles}: visual styles are the embedded suite's, suite={self.suite} has one; give styles=0"
            )
        one_of("domain", self.domain, DOMAINS)
        if self.domain != CLEAN and (self.suite != EMBEDDED or self.styles):
            raise SettingError(
                f"domain={self.domain}: is of the embedded suite's bimanual tasks and draws its own visual styles; give suite={EMBEDDED} "
                "and styles=0"
            )
        codecs = {"world_model.codec": self.world_model.codec, "wan.model.codec": self.wan.model.codec}
        for name, part in {"policy": self.policy, **codecs}.items():
            if part.fit is not Fit.refuse:
                raise SettingError(
                    f"{name}.fit={part.fit}: the loop records its own images; bring those of data to policy.image_size with "
                    "image_size and fit in the dataset's worldrl.json"
                )
        if self.start == SCRATCH and self.backbone == VIDEO and self.scratch.weights is None:
            wanted = "scratch.training.codec_steps above 0 (3000 by default), or start=FOLDER of a trained world model"
            require_trained_codec(self.world_model, self.scratch.training, wanted)

    def _check_recordings(self) -> None:
        """Refuse what needs a simulator, where there are recordings alone."""
        if self.suite != RECORDINGS:
            return
        if self.data is None:
            raise SettingError(
                f"suite={RECORDINGS}: there is nothing to learn from; give data=FOLDER of a LeRobotDataset"
            )
        if self.rounds != 1:
            raise SettingError(
                f"rounds={self.rounds}: suite={RECORDINGS} has no simulator to collect in; give rounds=1"
            )
        if self.improvement.self_training.collected_share:
            raise SettingError(
                f"improvement.self_training.collected_share: suite={RECORDINGS} collects nothing; give 0, the recordings are "
                "demonstrations"
            )
        if self.improvement.keyframe_schedule != "fixed":
            raise SettingError(
                f"improvement.keyframe_schedule={self.improvement.keyframe_schedule}: no simulator executes imagined successes "
                f"with suite={RECORDINGS}; give fixed"
            )

    def _check_planner(self) -> None:
        """Refuse a planner that cannot act, and episodes that nobody would plan."""
        episodes = self.collection.planner_episodes
        if self.planner == NONE:
            if episodes:
                raise SettingError(
                    f"collection.planner_episodes={episodes}: nobody would plan them; give planner=best_of_n, or 0 episodes"
                )
            return
        Planner(self.planner, self.planning)  # refuses an unknown name
        if self.suite == RECORDINGS:
            raise SettingError(
                f"planner={self.planner}: suite={RECORDINGS} has no simulator to act in; give planner=none"
            )
        if self.planning.world_model != NEWEST:
            raise SettingError(
                f"planning.world_model={self.planning.world_model}: train-vla plans in its own world model; leave it out, or "
                "measure with worldrl evaluate"
            )
        if episodes and self.start == SCRATCH and self.rounds == 1:
            raise SettingError(
                f"collection.planner_episodes={episodes}: start={SCRATCH} has no world model before round 2; give rounds=2, or "
                "start=FOLDER"
            )

    def _share_inputs(self) -> None:
        """Give policy and world model the same cameras and state, where they name none of their own."""
        check_inputs(self.cameras, self.state, "")
        parts = {"policy": self.policy, "world_model": self.world_model, "wan.model": self.wan.model}
        for name, part in parts.items():
            own = part.cameras, part.state
            if own not in (([IMAGE], NOT_OBSERVED), (self.cameras, self.state)):
                raise SettingError(
                    f"{name}.cameras=[{', '.join(part.cameras)}] and {name}.state={part.state} differ from "
                    f"cameras=[{', '.join(self.cameras)}] and state={self.state}; give cameras and state only"
                )
            part.cameras, part.state = list(self.cameras), self.state
