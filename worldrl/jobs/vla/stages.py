"""The stages of ``worldrl train-vla``. Each takes and returns what was loaded; a finished one only reads its folder.

::

    01-demonstrations ─► 02-policy ─► 03-before          (02 clones, or takes supervised=; styles: 01-looks)
                             │
             round r:  r-1-practice ─► r-2-world-model ─► r-3-gates ─► r-4-improve ─► r-5-accept (6-distil) ─► next
                                             │                              │ ▲
                                             └──► r-4-idm, -grasp (trust) ──┼─┘
                                                      04-verify ◄───────────┴─► 05-after  (planner: 06, 07-planner)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.interfaces import Policy
from worldrl.core.renames import current_results
from worldrl.core.statistics.intervals import Rate, wilson
from worldrl.core.storage.artefact import parent
from worldrl.core.storage.jsonfile import difference
from worldrl.core.storage.run import Stage
from worldrl.data.lerobot.dataset import EpisodeDataset, assumed
from worldrl.jobs.vla.artefacts import Recording, SavedPolicy, SavedWorld
from worldrl.jobs.vla.loop import (
    BY_POLICY,
    DATASET,
    Loop,
    collection_split,
    fresh_rollouts,
    keep_world_model,
    keyframe_rollouts,
    success_by_source,
    trained_world_model,
)
from worldrl.jobs.vla.plan import Plan
from worldrl.methods.rl.imagination import imagine_batch, imagined_env
from worldrl.methods.rl.improve import Improvement, improve, keyframe_probability, pace_of
from worldrl.policies.samples import Samples, make_samples
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.language import training_instructions_or_known
from worldrl.recipes.rl_parts import improvement_parts
from worldrl.recipes.stages import POLICY, calibrate, imagined_plan, learn_policy
from worldrl.recipes.training_data import (
    note_events,
    open_datasets,
    require_cameras,
    require_image_size,
    require_instructions,
)
from worldrl.recipes.world_model.start import WORLD_MODEL
from worldrl.rollout.agents.actors import AnyActor, ExpertActor, PolicyActor
from worldrl.rollout.agents.policy_folder import load_policy, policy_facts, policy_parent
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.policy_rollouts import join_rollouts
from worldrl.rollout.imagined.reset_store import ResetStore, keyframe_records
from worldrl.rollout.real.collect import CollectPlan
from worldrl.rollout.real.specs import domains_of
from worldrl.world_models.loading import AnyVideoModel

# -- before the rounds ---------------------------------------------------------------------------------------------


def demonstrations(loop: Loop) -> Recording:
    """Record the expert's demonstrations, or take the dataset that is given."""
    stage, given = loop.run.stage("01-demonstrations"), loop.plan.data
    if given is not None:
        (dataset,) = open_datasets([given])
        require_instructions([dataset])
        note_events(dataset, "the demonstrations")
        if not stage.finished:
            success = given_demonstrations(loop.plan, dataset)
            facts = {"success": success, "assumed": list(assumed(dataset.records))}
            loop.finish(stage, {"given": given, "content": dataset.fingerprint, **facts})
        require_unchanged(stage, dataset)
        return Recording(Path(given), scratch=loop.run.path)
    if not stage.finished:
        specs = loop.specs("expert", loop.plan.demonstrations, loop.plan.seed_of("demonstrations"))
        plan = CollectPlan(ExpertActor(), specs)
        loop.finish(stage, {"success": loop.collect(stage.folder / DATASET, [plan])})
    recording = Recording(stage.folder / DATASET)
    note_events(recording.dataset, "the demonstrations")
    return recording


def require_unchanged(stage: Stage, dataset: EpisodeDataset) -> None:
    """ArtefactError where the stage began with other content of the folder."""
    if stage.summary["content"] != dataset.fingerprint:
        raise ArtefactError(f"data: {dataset.source} has changed since this run began; give a new run_dir")


def given_demonstrations(plan: Plan, dataset: EpisodeDataset) -> dict[str, Rate]:
    """Check that a dataset fits the loop; return how many of its episodes succeeded, by source.

    Raises SettingError (it is of another robot, of images in another size, in another domain, in a look kept for
    tests, or lacks or adds a task).
    """
    from worldrl.recipes.visual_styles import refuse_test_styles

    folder, size = plan.data, plan.policy.image_size
    refuse_test_styles({str(folder): dataset})
    if dataset.embodiment != plan.suite.embodiment:
        raise SettingError(f"data: {folder} is of another robot than {plan.suite.name}'s; collect it there")
    require_image_size(dataset, size, "policy.image_size")
    require_cameras([dataset], plan.policy.cameras)
    if set(dataset.tasks()) != set(plan.tasks):
        raise SettingError(
            f"data: {folder} is of {sorted(dataset.tasks())}, the loop of {sorted(plan.tasks)}; give tasks=, or, of a dataset "
            "that others made, choose by 'tasks' in its worldrl.json"
        )
    if (found := domains_of(record.meta for record in dataset.records)) != [plan.suite.options.domain]:
        raise SettingError(
            f"data: {folder} was recorded in the domain {' and '.join(found)}, the loop is in domain={plan.suite.options.domain}; give one of both"
        )
    return success_by_source([(str(record.source), record.success) for record in dataset.records])


def supervised_policy(loop: Loop, demos: Recording) -> SavedPolicy:
    """Clone the demonstrations, or take the policy that is given."""
    from worldrl.evaluation.policy.trained_on import trained_on
    from worldrl.recipes.world_model.lineage import bundled_by_name

    stage, given = loop.run.stage("02-policy"), loop.plan.supervised
    if not stage.finished and given is not None:
        given_policy(given, loop.plan.policy).save(
            stage.folder / POLICY, parents=[bundled_by_name(policy_parent(given))]
        )
        loop.finish(stage, {"given": str(given)})
    if not stage.finished:
        loop.plan.suite.close()
        report = learn_policy(
            stage.folder,
            demos.episodes,
            model=loop.plan.policy,
            training=loop.plan.cloning,
            seed=loop.plan.seed_of("policy"),
            device=loop.plan.device,
            log=loop.log,
            trained=trained_on([demos.dataset]),
        )
        loop.finish(stage, report)
    return loop.policy(stage.folder / POLICY)


def given_policy(folder: Path, config: TokenPolicyConfig) -> Policy:
    """Load a policy whose sizes are those of the settings: images and chunks of the loop are made for them.

    Raises SettingError (they are not). Raises ArtefactError (there is no policy in that folder).
    """
    policy = load_policy(folder, "cpu")
    if isinstance(policy, TokenPolicy):
        differing = difference(asdict(config), asdict(replace(policy.config, fit=config.fit)))
    else:
        facts, sizes = policy_facts(folder), ("chunk_length", "image_size")
        differing = difference(*({name: getattr(of, name) for name in sizes} for of in (config, facts)))
    if differing:
        raise SettingError(
            f"supervised: the policy in {folder} has other sizes than policy.*: {differing}; give its own"
        )
    return policy


# -- one round -----------------------------------------------------------------------------------------------------


def practice(loop: Loop, number: int, policy: SavedPolicy, world: SavedWorld | None, actor: SavedPolicy) -> Recording:
    """Record ``actor``, the policy with the planner and executing its imagined rollouts in ``world``, and the varied expert."""
    from worldrl.jobs.vla.planning import planned_policy

    stage = loop.run.stage(f"round-{number}-1-practice")
    if not stage.finished:
        counts = loop.plan.collection
        exploration = loop.plan.improvement.of_round(number).exploration_of(policy.network)
        expert_episodes = counts.expert_episodes if world is not None else loop.plan.first_expert_episodes
        shown = world if counts.imagined_episodes + counts.planner_episodes else None
        # Weights to begin with may have fewer cameras; the world model of this round will have all.
        if shown is not None and not set(policy.network.more) <= set(shown.model.more):
            shown = None
        sources: list[tuple[str, AnyActor, int]] = [
            ("policy", PolicyActor(str(actor.folder), exploration=exploration), counts.policy_episodes),
            (*loop.plan.simulator.exploration_expert(counts), expert_episodes),
        ]
        if shown is not None and counts.planner_episodes:
            sources.append(("planner", planned_policy(loop, policy, shown), counts.planner_episodes))
        plans = [
            CollectPlan(player, loop.specs(source, count, loop.plan.seed_of("practice", number, source)))
            for source, player, count in sources
        ]
        if shown is not None and counts.imagined_episodes:
            plan = imagined_plan(
                stage.folder / "imagined_rollouts.npz",
                shown.model,
                policy.network,
                loop.plan.tasks,
                counts.imagined_episodes,
                seed=loop.plan.seed_of("practice", number, "dream"),
                image_size=loop.plan.policy.image_size,
                exploration=exploration,
                simulator_backend=loop.plan.simulator.simulator_backend,
                candidates=counts.imagined_candidates,
            )
            plans.append(plan)
        loop.finish(stage, {"success": current_results(loop.collect(stage.folder / DATASET, plans))})
    return Recording(stage.folder / DATASET)


def world_model(
    loop: Loop,
    number: int,
    demos: Recording,
    practices: Sequence[Recording],
    policy: SavedPolicy,
    before: SavedWorld | None,
) -> SavedWorld:
    """Refine the world model on everything seen so far, then calibrate its success head."""
    from worldrl.jobs.vla.near_goal import near_failures
    from worldrl.jobs.vla.visual_styles import copies, restyled

    stage = loop.run.stage(f"round-{number}-2-world-model")
    if not stage.finished:
        plan, seed = loop.plan, loop.plan.seed_of("world-model", number)
        training, calibration, _ = collection_split(loop, practices)
        recorded, looks = [*demos.episodes, *training], restyled(loop, demos, practices)
        near = near_failures(plan.collection, training)
        episodes = [*recorded, *near.repeats, *copies(looks, recorded)]
        model, numbers = trained_world_model(loop, number, episodes, demos.dataset.embodiment, before)
        learner, name = policy.network, f"calibrate-{number}"
        policy_rollouts = [
            fresh_rollouts(loop, learner, model, plan.evaluation.verify, number=number, name=name),
            keyframe_rollouts(loop, learner, model, training, plan.evaluation.verify, number=number, name=name),
        ]
        joined_rollouts = join_rollouts([part for part in policy_rollouts if part is not None])
        calibrate(
            model,
            calibration,
            joined_rollouts,
            target_precision=plan.precision_of(number),
            seed=seed,
            simulator_backend=plan.simulator.simulator_backend,
        )
        summary = {"training": numbers, "episodes": len(training), "near_goal": near.counts}
        keep_world_model(loop, stage, model, [demos, *practices, *looks], before, summary)
    return loop.world(stage.folder / WORLD_MODEL)


def improved_policy(
    loop: Loop,
    number: int,
    demos: Recording,
    policy: SavedPolicy,
    world: SavedWorld,
    practices: Sequence[Recording],
) -> SavedPolicy:
    """Improve the policy in imagination."""
    from worldrl.evaluation.policy.trained_on import merged, trained_on
    from worldrl.jobs.vla.filtering import round_filter

    stage = loop.run.stage(f"round-{number}-4-improve")
    if not stage.finished:
        model, learner = world.model, policy.copy()
        config = scheduled(loop, number)
        judge = round_filter(loop, number, model, demos, practices)
        store = reset_store(loop, model, practices, number)
        env = imagined_env(
            model,
            store,
            world.rule,
            rows=config.rows,
            horizon=loop.plan.horizons,
            stop_at_success=config.stop_at_success,
            n_obs_steps=learner.n_obs_steps,
        )
        start, shown = (
            imagined_success(loop, learner, env, number, name="imagined-before"),
            demos.episodes,
        )
        loop.plan.suite.close()
        history = improve(
            learner,
            env,
            config,
            demonstrations=make_samples(shown, learner.chunk_length, learner.more),
            collected=collected_successes(config, learner, practices),
            paraphrases=training_instructions_or_known(shown),
            seed=loop.plan.seed_of("improve", number),
            folder=stage.folder / "checkpoints",
            log=loop.log,
            series=f"improve-{number}",
            judge=judge,
            parts=improvement_parts(config),
            imaginers=loop.plan.imaginers,
        )
        end = imagined_success(loop, learner, env, number, name="imagined-after")
        if isinstance(learner, TokenPolicy):  # what was collected counts as trained on, too
            learner.trained_on = merged(
                learner.trained_on, trained_on([recording.dataset for recording in (demos, *practices)])
            )
        learner.save(stage.folder / POLICY, parents=[policy_parent(policy.folder), parent(world.folder)])
        summary = {"imagined_before": start, "imagined_after": end, "history": history, "starts": len(store)}
        loop.finish(stage, {**summary, "p_keyframe": config.p_keyframe, **pace_of(stage.folder / "checkpoints")})
    return loop.policy(stage.folder / POLICY)


def collected_successes(config: Improvement, policy: Policy, practices: Sequence[Recording]) -> Samples | None:
    """Samples of the real successes of all rounds so far; None where the settings use none, or there are none."""
    cloned = config.self_training
    if config.algorithm != "self_training" or not cloned.collected_share:
        return None
    recorded = [episode for recording in practices for episode in recording.episodes]
    won = [e for e in recorded if e.success and (cloned.collected_expert or e.meta["source"] in BY_POLICY)]
    return make_samples(won, policy.chunk_length, policy.more) if won else None


def scheduled(loop: Loop, number: int) -> Improvement:
    """Return the round's settings, with keyframes as often as the gates found them trustworthy."""
    config, measured = loop.plan.improvement.of_round(number), loop.run.stage(f"round-{number}-3-gates").summary
    keyframe = measured["keyframes"] and measured["keyframes"]["precision"]
    return replace(config, p_keyframe=keyframe_probability(config, measured["policy"]["precision"], keyframe))


def reset_store(loop: Loop, model: AnyVideoModel, practices: Sequence[Recording], number: int) -> ResetStore:
    """Collect start states: the suite's initial states, and keyframes of the practice that is trained on."""
    config = loop.plan.improvement
    episodes, _, _ = collection_split(loop, practices)
    initial = loop.plan.suite.starts(
        episodes,
        config.starts_per_task,
        seed=loop.plan.seed_of("starts", number),
        memory_frames=model.memory_frames,
        image_size=loop.plan.policy.image_size,
        more=model.more,
    )
    keyframes = keyframe_records(
        episodes,
        margin=config.keyframe_margin,
        memory_frames=model.memory_frames,
        frame_stride=model.frame_stride,
        more=model.more,
    )
    return ResetStore(initial, keyframes)


def imagined_success(loop: Loop, policy: Policy, env: WorldModelVecEnv, number: int, *, name: str) -> Rate:
    """Rate of imagined success from initial states alone, sampled as round ``number`` trains."""
    exploration, seed = loop.plan.improvement.of_round(number).exploration_of(policy), loop.plan.seed_of(name, number)
    success = imagine_batch(env, policy, exploration, group_size=1, p_keyframe=0.0, seed=seed).success
    return wilson(int(success.sum()), len(success))
