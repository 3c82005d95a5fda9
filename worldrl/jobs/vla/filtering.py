"""What weighs the rollouts that ``worldrl train-vla`` imagines (``improvement.trust``), and the stage that learns inverse dynamics for it."""

from __future__ import annotations

from collections.abc import Sequence

from worldrl.core.errors import SettingError
from worldrl.jobs.vla.artefacts import Recording, datasets_by_folder
from worldrl.jobs.vla.loop import Loop, collection_split
from worldrl.methods.rl.filtering import RolloutFilter
from worldrl.methods.rl.grasp_uncertainty import GraspCheck, real_grasp_bound
from worldrl.methods.rl.motion_uncertainty import MotionCheck, real_bound
from worldrl.methods.rl.trust import GRASP, MEMBERS, MOTION, OFF, READ
from worldrl.recipes.motion.idm_stages import IDM, grasp_errors, learn_grasp, learn_idm, through_codec
from worldrl.recipes.world_model.lineage import lineage
from worldrl.rewards.grasp import GRASP_FOLDER, Closings, GraspDynamics
from worldrl.rewards.motion.calibration import calibration, read_episodes
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.readout import choose_columns, recorded_names
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.real.embedded import main_camera
from worldrl.world_models.loading import AnyVideoModel
from worldrl.world_models.video.model import VideoWorldModel

STAGES = {MOTION: "idm", GRASP: "grasp"}
"""What a round's stage is called in which the inverse dynamics behind a sign is learned."""


def reader_stage(number: int, sign: str) -> str:
    """Name the stage of a round."""
    return f"round-{number}-4-{STAGES[sign]}"


def round_filter(
    loop: Loop, number: int, model: AnyVideoModel, demos: Recording, practices: Sequence[Recording]
) -> RolloutFilter | None:
    """Return what weighs the round's imagined rollouts; None where all count alike.

    Raises SettingError (the agreement of members was asked for, and the world model has fewer than two).
    """
    config = loop.plan.improvement.trust
    if config.confidence_score == OFF:
        return None
    if config.confidence_score == MEMBERS and model.config.outcome.ensemble_size < 2:
        raise SettingError(
            f"improvement.trust.confidence_score={MEMBERS}: the outcome ensemble of this world model has 1 member, and agreement needs at least 2; start from one trained "
            "with outcome.ensemble_size=3, or give another confidence_score"
        )
    if config.confidence_score not in READ:
        return RolloutFilter(config)
    if config.confidence_score == MOTION:
        return RolloutFilter(config, motion_check(loop, number, model, practices))
    return RolloutFilter(config, grasp_check(loop, number, model, demos, practices))


def motion_check(loop: Loop, number: int, model: AnyVideoModel, practices: Sequence[Recording]) -> MotionCheck:
    """Learn to read motion on the round's practice, or find it learned.

    It learns the commanded pose from real frames as they are and as the world model's codec gives them back; the calibration
    episodes scale its deviations and set the bound that real motion stays below.
    """
    config, chunk = loop.plan.improvement.trust.idm, loop.plan.policy.chunk_length
    stage = loop.run.stage(reader_stage(number, MOTION))
    camera = main_camera(model.embodiment)  # what the world model imagines
    if not stage.finished:
        training, calibrating, held_out = collection_split(loop, practices)
        restore = through_codec(model) if isinstance(model, VideoWorldModel) else None
        seed = loop.plan.seed_of("idm", number)
        idm = learn_idm(
            stage.folder,
            training,
            calibrating,
            choose_columns(["command"], recorded_names(model.embodiment)),
            config=config.model,
            training=config.training,
            frame_stride=chunk,
            camera=camera,
            restore=restore,
            seed=seed,
            device=loop.plan.device,
            log=loop.log,
            series=f"idm-{number}",
        )
        bound = real_bound(
            idm, calibrating, chunk_length=chunk, share=config.real_share, restore=restore, camera=camera
        )
        errors = calibration(read_episodes(idm, held_out, camera=camera, restore=restore), seed=seed)
        idm.save(stage.folder / IDM, parents=lineage(datasets_by_folder(practices), [])[0])
        loop.finish(stage, {"bound": bound, "errors": errors})
    return MotionCheck(InverseDynamics.load(stage.folder / IDM, loop.plan.device), stage.summary["bound"])


def grasp_check(
    loop: Loop, number: int, model: AnyVideoModel, demos: Recording, practices: Sequence[Recording]
) -> GraspCheck:
    """Learn where the hand must close, or find it learned.

    It learns from the round's practice and the demonstrations: with unsuccessful hands alone, what it knows least is how exact a hand can
    be (``docs/guide/inverse-dynamics.md``). The calibration episodes of the practice measure its error and bound.
    """
    config = loop.plan.improvement.trust.grasp
    stage, camera = loop.run.stage(reader_stage(number, GRASP)), main_camera(model.embodiment)
    if not stage.finished:
        training, calibrating, held_out = collection_split(loop, practices)
        kept = Closings.of(calibrating, camera=camera, first_only=True)
        seed = loop.plan.seed_of("grasp", number)
        grasp = learn_grasp(
            stage.folder,
            Closings.of([*demos.episodes, *training], camera=camera),
            kept,
            config.model,
            seed=seed,
            device=loop.plan.device,
            log=loop.log,
            series=f"grasp-{number}",
        )
        bound = real_grasp_bound(grasp, kept, config.real_share)
        parents, learned = lineage(datasets_by_folder([demos, *practices]), [])
        grasp.save(stage.folder / GRASP_FOLDER, parents=parents, learned=learned)
        loop.finish(stage, {"bound": bound, "errors": grasp_errors(grasp, held_out, camera=camera, seed=seed)})
    grasp = GraspDynamics.load(stage.folder / GRASP_FOLDER, loop.plan.device)
    rule = SuccessRule.of(model.config.outcome)
    return GraspCheck(grasp, model.embodiment, stage.summary["bound"], rule)
