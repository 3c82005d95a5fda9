"""The arithmetic of ``eva``: what an arm costs, how many videos best-of-N may draw for it, and which claims follow."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.storage import stopwatch
from worldrl.core.storage.jsonfile import read_json
from worldrl.recipes.motion.idm_stages import through_codec
from worldrl.recipes.motion.planned_execution import CollectionSettings
from worldrl.registry import ALIGNMENTS
from worldrl.reproductions.catalogue import Cell, changed
from worldrl.reproductions.eva import arms as eva_arms
from worldrl.reproductions.eva import critic as eva_critic
from worldrl.reproductions.eva import limits as eva_limits
from worldrl.reproductions.eva import parts as eva_parts
from worldrl.reproductions.eva.arms import alignment_config, alignment_method, equal_compute, mixture, shown, staging
from worldrl.reproductions.eva.climb import climb_label, climb_summary, climbed, costs, look_points
from worldrl.reproductions.eva.film_strips import save_strip, stored_strips
from worldrl.reproductions.eva.parts import Parts, planner_config, planner_training
from worldrl.reproductions.eva.reproduction import SETTINGS
from worldrl.reproductions.eva.settings import (
    ALIGNED,
    GIVEN,
    OTHERS,
    TRAINED,
    chunks_to,
    group_size,
    task_names_of,
    term_weights,
)
from worldrl.rewards.mixing import mix

QUICK = SETTINGS["quick"]


def test_cost_counts_imagined_rows_once_and_trained_rows_three_times():
    history = [
        {"cost/evaluations": 10.0, "cost/trained_steps": 4.0},
        {"cost/explore_evaluations": 6.0, "reward/x": 1.0},
    ]
    assert costs(history) == {"imagined_rows": 16.0, "trained_rows": 4.0, "cost": 28.0}


def test_best_of_n_draws_what_the_alignment_would_have_cost():
    # 2 iterations of 3 starts, 8 videos of 3 chunks: 144 chunks of 4 steps, 3 of which are trained on.
    settings = replace(QUICK, iterations=2, prompts=3, chunks=3, denoising=4, tests=5, chunk=16, horizon=160)
    training = 144 * (4 + 3 * 3)
    assert equal_compute(settings) == 1 + round(training / (5 * 4 * 10))
    assert staging(settings, "none", 10).proposals == 1
    assert staging(settings, "best-of-n", 10).proposals == equal_compute(settings)


@pytest.mark.parametrize(("chunks", "stages"), [(1, 1), (2, 2), (3, 3), (8, 2), (9, 3)])
def test_a_staged_plan_is_as_long_as_any_other(chunks, stages):
    """A critic knows plans of one length, and refuses longer ones."""
    staged = staging(QUICK, "staged", chunks)
    assert (staged.stages, staged.stages * staged.stage_chunks, staged.proposals) == (stages, chunks, QUICK.proposals)


def test_every_method_has_the_same_leaves_steps_and_ranges():
    """What differs between two arms is the method: BranchGRPO prunes, Sol-RL explores cheaply, its pool is made in full."""
    parts = {arm: alignment_method(QUICK, arm) for arm in ALIGNED}
    assert [name for name, _ in parts.values()][:4] == ["flow_grpo", "branch_grpo", "sol_rl", "sol_rl"]
    configs = parts["flow-grpo"][1]
    assert configs.branch_grpo.splits == [0, 4, 8]
    assert configs.branch_grpo.prune_width == "extremes"
    assert configs.flow_grpo.ratio == configs.branch_grpo.ratio
    cheap, in_full = (parts[arm][1].sol_rl for arm in ("sol-rl", "full-pool"))
    assert (cheap.explored, cheap.nft) == (in_full.explored, in_full.nft)
    assert (cheap.resample, in_full.resample, cheap.explore_steps, in_full.explore_steps) == (
        True,
        False,
        1,
        QUICK.denoising,
    )
    steps = {configs.flow_grpo.denoising.steps, configs.branch_grpo.denoising.steps, cheap.nft.denoising.steps}
    assert steps == {QUICK.denoising}


@pytest.mark.parametrize("arm", OTHERS)
def test_an_arm_that_is_named_differs_from_its_baseline_in_its_own_part(arm):
    name, configs = alignment_method(QUICK, arm)
    config, plain = alignment_config(QUICK, arm), alignment_config(QUICK, "flow-grpo")
    assert ALIGNMENTS.get(name)
    assert arm not in QUICK.methods
    assert (
        config.parts.advantage,
        config.group_size,
        configs.diffusion_nft.coupled,
        configs.branch_grpo.prune_width,
    ) == {
        "fork-relative": ("fork_relative", 8, False, "none"),
        "coupled-nft": ("", 8, True, "extremes"),
        "step-aware-preference": ("", 2, False, "extremes"),
    }.get(arm, ("", 8, False, "extremes"))
    assert replace(config, parts=plain.parts, group_size=8) == plain
    assert getattr(configs, name).denoising.steps == QUICK.denoising


def test_the_arm_of_the_mean_optimises_the_number_that_is_reported():
    settings = replace(QUICK, executed_plans=5)
    terms = torch.tensor([[6.0, 0.2], [8.0, 0.1], [2.0, 0.9]])
    found = mixture(settings, "mean-mixing")(terms, torch.zeros(3, dtype=torch.int64))
    names = list(term_weights(settings))
    wanted = [climbed(settings, dict(zip(names, row, strict=True))) for row in terms.tolist()]
    assert (found / found[0]).tolist() == pytest.approx([value / wanted[0] for value in wanted])
    assert mixture(settings)(terms, torch.zeros(3, dtype=torch.int64)).tolist() != pytest.approx(found.tolist())


def test_what_is_claimed_of_costs_is_possible():
    """Rows of an iteration per start: the cheaper method has room to be as much cheaper as is claimed, at equal gain."""
    group, chunks, steps = group_size(QUICK), QUICK.chunks, QUICK.denoising
    plain = group * chunks * (steps + TRAINED * (steps - 1))
    tree = sum(min(2**chunk, group) + (steps - 1) * 2 ** (chunk + 1) for chunk in range(chunks))
    branch = tree + TRAINED * (steps - 1) * sum(min(2 ** (chunk + 1), group // 2) for chunk in range(chunks))
    assert plain / branch > 1.8
    pool = QUICK.explored * steps
    assert pool / (QUICK.explored * max(1, steps // 4) + group * steps) > 2


def test_alignment_and_tests_sample_alike():
    """As many steps, and noise that leaves no more behind than the ODE that plans are made with."""
    (_, configs), planner = alignment_method(QUICK, "flow-grpo"), planner_config(QUICK)
    assert planner.dynamics.sampling_steps == QUICK.denoising
    assert {configs.flow_grpo.denoising.noise, configs.branch_grpo.denoising.noise} == {"cps"}


def test_a_plan_lasts_as_long_as_a_demonstration():
    """Not to the time limit: what nothing was learned of would fill most of a plan, and every rate measured on it."""
    assert QUICK.chunks * QUICK.chunk == QUICK.horizon == 48
    assert chunks_to(QUICK, QUICK.tasks) == 3
    assert QUICK.video_frames == 13


def test_every_setting_of_the_planner_is_a_number_that_can_be_changed():
    numbers = {
        "world_rate": 1e-4, "ema": 0.9, "batch": 7, "first_chunk_share": 0.25, "event_share": 0.125, "static_share": 0.5,
        "action_dropout": 0.75, "bootstrap": 0.625, "unroll": 4, "codec_steps": 11, "world_steps": 12,
    }  # fmt: skip
    training = planner_training(changed(QUICK, numbers))
    found = {
        "world_rate": training.learning_rate, "ema": training.ema_decay, "world_steps": training.steps,
        **{name: getattr(training, name) for name in numbers if hasattr(training, name)},
    }  # fmt: skip
    assert found == numbers
    assert planner_config(changed(QUICK, {"codec_width": 64})).codec.width == 64
    with pytest.raises(SettingError, match="noisy_share"):
        changed(QUICK, {"noisy_share": 2})


def test_demonstrations_are_steady_and_disturbed_and_only_successes_are_learned_from(tmp_path, monkeypatch):
    settings = replace(SETTINGS["tiny"], demonstrations=5, noisy_share=0.4, noise=0.3, hold_steps=3)
    seen = {}
    monkeypatch.setattr(
        eva_parts, "collect_dataset", lambda folder, plans, player, **over: seen.update(plans=plans, **over)
    )
    eva_parts.record(settings, 0, tmp_path)
    steady, disturbed = seen["plans"]
    assert (steady.actor.noise, disturbed.actor.noise, seen["hold_steps"]) == (0, 0.3, 3)
    assert [spec.index for spec in (*steady.specs, *disturbed.specs)] == [0, 1, 2, 3, 4]
    assert len({spec.key for spec in (*steady.specs, *disturbed.specs)}) == 5
    assert len(disturbed.specs) == 2


@pytest.mark.parametrize("method", GIVEN)
def test_a_diagnosis_shows_what_its_link_makes_of_a_demonstration(method, make_world_model, push_episode, monkeypatch):
    """Recorded frames as they are, restored ones through the codec alone, imagined ones from the true actions."""
    model, episode = make_world_model(size=16), push_episode(0, 10)
    parts, seen = Parts(model, idm=None, learned=[], kept=[episode], frame_s=0.1), []
    imagine = model.imagine
    monkeypatch.setattr(
        model, "imagine", lambda state, action, **over: seen.append(action) or imagine(state, action, **over)
    )
    frames = shown(Cell(method, 0), parts, episode)
    recorded = torch.from_numpy(episode.frames[::2, 0])
    assert frames.shape == recorded.shape
    if method == "recorded":
        assert torch.equal(frames, recorded)
    elif method == "restored":
        assert torch.equal(frames, through_codec(model)(recorded, recorded[:1].expand_as(recorded)))
        assert not torch.equal(frames, recorded)
    else:
        assert torch.equal(frames[0], recorded[0])  # what is known is not imagined
        assert torch.equal(torch.cat(seen, dim=1)[0, :10], torch.from_numpy(episode.action))
    assert bool(seen) == (method == "imagined-true-actions")


def test_a_stage_leaves_images_for_the_page(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    (tmp_path / "blind").mkdir()
    save_strip(tmp_path, {"recorded": frames, "planned": frames[:2]}, ["step 0", "step 4", "step 8"])
    (found,) = stored_strips({"none, seed 0": tmp_path, "other": tmp_path / "blind"})
    assert (found.title, list(found.rows), found.labels[2]) == ("none, seed 0", ["recorded", "planned"], "step 8")
    assert np.array_equal(found.rows["planned"], frames[:2])


def test_seconds_on_the_way_are_the_logs_and_rows_the_historys():
    history = [{"cost/evaluations": 4.0, "cost/trained_steps": 2.0}] * 2
    lines = [
        {
            "series": "align",
            "step": k,
            "values": {
                "seconds/iteration": 5.0 + k, "seconds/imagining": 2.0,
                "cpu_seconds/iteration": 4.0, "cpu_seconds/imagining": 1.0,
            },
        }
        for k in (0, 1)
    ]  # fmt: skip
    means = {0: {"moving_executability": 1.0}, 2: {"moving_executability": 3.0}}
    found = climb_summary(QUICK, history, means, [*lines, {"series": "idm", "step": 0, "values": {}}])
    assert found == {
        "finished": [0, 2], "reward": [1, 3], "terms": {"moving_executability": [1, 3]}, "rows": [0, 20], "seconds": [0, 11], "rollout_seconds": [0, 4],
        "cpu_seconds": [0, 8], "cpu_rollout_seconds": [0, 2],
    }  # fmt: skip
    assert look_points(replace(QUICK, iterations=5, look_every=2)) == [0, 2, 4, 5]


def test_the_critics_reward_is_mixed_in_where_there_was_practice():
    """Without it nothing changes; with it, of two plans alike in motion the one that will succeed is worth more."""
    with_critic = replace(QUICK, executed_plans=10, critic_weight=2.0)
    terms, group = torch.tensor([[5.0, 0.1], [5.0, 0.9], [8.0, 0.5]]), torch.zeros(3, dtype=torch.int64)
    assert torch.equal(mixture(QUICK)(terms[:, :1], group), terms[:, 0])
    value = mixture(with_critic)(terms, group)
    torch.testing.assert_close(value, mix(terms, group, weights=[1.0, 2.0]))
    assert value[1] > value[0]
    named = {"moving_executability": 6.0, "execution": 0.5, "within_limits": -2.0, "clear_of_limits": -4.0}
    assert climbed(QUICK, named) == 6
    assert climbed(with_critic, named) == pytest.approx((6 + 2 * 10 * 0.5) / 3)
    # What is shown is what is optimised: penalties have their part in it, by name.
    penalised = replace(with_critic, limits_weight=0.5)
    assert climbed(penalised, named) == pytest.approx((6 - 0.5 * 2 + 2 * 10 * 0.5) / 3.5)
    assert climb_label(penalised) == "(moving_executability + 0.5 x within_limits + 20 x execution) / 3.5"
    assert climbed(replace(penalised, limits_margin=0.25), named) == pytest.approx((6 - 0.5 * 4 + 10) / 3.5)
    assert climb_label(QUICK) == "moving_executability"
    limited = replace(with_critic, limits_weight=0.5)
    third = torch.tensor([[0.0], [-0.1], [0.0]])
    every = torch.cat([terms[:, :1], third, terms[:, 1:]], dim=1)
    torch.testing.assert_close(mixture(limited)(every, group), mix(every, group, weights=[1.0, 0.5, 2.0]))
    alone = replace(QUICK, limits_weight=0.5)
    torch.testing.assert_close(mixture(alone)(every[:, :2], group), mix(every[:, :2], group, weights=[1.0, 0.5]))
    for wrong, message in (
        ({"limits_weight": -1}, "limits_weight"),
        ({"limits_weight": 1, "limits_margin": 1}, r"limits_margin must be in \[0, 1\)"),
        ({"limits_margin": 0.2}, r"limits_margin: .* change\.limits_weight above 0"),
        ({"limit_plans": -1}, "limit_plans"),
        ({"domain": "dark"}, "domain must be one of clean, randomised"),
    ):
        with pytest.raises(SettingError, match=message):
            changed(QUICK, wrong)
    for wrong in ({"executed_plans": -1}, {"critic_weight": 0}):
        with pytest.raises(SettingError, match="executed_plans"):
            changed(QUICK, wrong)


def test_the_critic_is_made_once_of_all_tasks(make_world_model, tmp_path, monkeypatch):
    asked = []

    def collect_plans(planning, chunks, count, *, place, domain, on_part):
        asked.append((chunks, count, planning.reward.names, domain))
        read = torch.arange(count)[:, None, None].expand(count, 3, 7).float()
        return CollectionSettings(read, ["a"] * count, ["open it"] * count, np.arange(count) % 2 == 0)

    monkeypatch.setattr(eva_critic, "collect_plans", collect_plans)
    two = "BimanualOpenDrawer+BimanualPlaceCubeOnPlate"
    settings = replace(QUICK, tasks=two, executed_plans=20, kept=0.25, critic_steps=2, domain="randomised")
    idm = SimpleNamespace(basis=SimpleNamespace(rewards={"moving_executability": None}))
    parts = Parts(make_world_model(planning=True), idm, [], [], frame_s=0.1)
    found = eva_critic.with_critic(settings, 0, tmp_path / "run/stages/one", parts)
    assert asked == [(dict.fromkeys(two.split("+"), 3), 20, ("moving_executability",), "randomised")]
    worth = found.critic_worth
    assert (worth["learned"], worth["executed"], worth["imagined_rows"]) == (15, 40, 20 * 2 * 3 * 4)
    assert worth["cpu_seconds"] > 0
    assert found.reward.names == ("moving_executability", "execution")
    limited = replace(found, limits=("clear_of_limits", 0.25)).reward
    assert limited.names == ("moving_executability", "clear_of_limits", "execution")
    assert limited.parts[0].terms["clear_of_limits"].keywords == {"margin": 0.25}
    assert eva_critic.with_critic(settings, 0, tmp_path / "run/stages/two", parts).critic is not None
    assert len(asked) == 1  # the second stage finds what the first has made


def test_seconds_before_a_kill_count(tmp_path, monkeypatch):
    """Practice of three parts, killed in the third; what the first two took is in the sum, and what followed the last mark is not."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(stopwatch.time, "process_time", lambda: clock.now / 2)

    def work(parts):
        def make(place, mark):
            for seconds in parts:
                clock.now += abs(seconds)
                if seconds < 0:
                    raise KeyboardInterrupt
                mark()

        return make

    with pytest.raises(KeyboardInterrupt):
        eva_critic.timed(tmp_path, work([5, 7, -3]))
    clock.now = 1000.0
    eva_critic.timed(tmp_path, work([4]))
    assert read_json(tmp_path / eva_critic.SPENT) == {"seconds": 16, "cpu_seconds": 8}


def test_demonstrations_practice_and_tests_lie_in_one_domain(tmp_path, monkeypatch):
    """``change.domain`` is asked for wherever the simulator is."""
    settings, seen = replace(SETTINGS["tiny"], domain="randomised", executed_plans=2, limit_plans=3), []
    monkeypatch.setattr(
        eva_parts, "collect_dataset", lambda folder, plans, player, **over: seen.append(player.options.domain)
    )
    eva_parts.record(settings, 0, tmp_path)
    monkeypatch.setattr(
        eva_critic,
        "collect_plans",
        lambda *given, domain, **over: seen.append(domain) or SimpleNamespace(save=lambda file: None),
    )
    parts = SimpleNamespace(model=None, idm=None, reward=None, executability=None)
    eva_critic.keep_collection(settings, 0, parts, tmp_path, lambda: None)

    def plans(*given, domain, **over):
        seen.append(domain)
        return []

    monkeypatch.setattr(eva_limits, "decoded_plans", plans)
    parts = SimpleNamespace(executability=SimpleNamespace(basis=None))
    assert eva_limits.planned_violations(settings, parts, None) == {"planned_violations": []}

    class AskedError(Exception):
        pass

    def execute(*given, domain, **over):
        seen.append(domain)
        raise AskedError

    monkeypatch.setattr(eva_arms, "executed_plans", execute)
    monkeypatch.setattr(eva_arms, "planning_of", lambda *given: None)
    with pytest.raises(AskedError):
        eva_arms.executed(settings, Cell("best-of-n", 0), parts)
    assert seen == ["randomised"] * 4


def test_tasks_are_all_or_those_named():
    assert len(task_names_of(replace(QUICK, tasks="bimanual"))) == 7
    two = "BimanualOpenDrawer+BimanualPlaceCubeOnPlate"
    assert task_names_of(replace(QUICK, tasks=two)) == two.split("+")
    with pytest.raises(SettingError, match="unknown task 'nothing'"):
        changed(QUICK, {"tasks": "BimanualOpenDrawer+nothing"})


def test_arms_are_all_that_can_be_or_those_named():
    assert changed(QUICK, {"arms": "flow-grpo+none+best-of-n"}).methods == ("none", "best-of-n", "flow-grpo")
    assert set(changed(QUICK, {"executed_plans": 5}).methods) - set(QUICK.methods) == {"imitate"}
    for wrong, message in (
        ("none+flow-grpo+bestofn", "did you mean 'best-of-n'"),
        ("flow-grpo", "add none"),
        ("none+flow-grpo+imitate", r"change\.executed_plans=N"),
    ):
        with pytest.raises(SettingError, match=message):
            changed(QUICK, {"arms": wrong})
