"""The methods' own mathematics, that each raises a reward, and that a stopped alignment continues bit for bit."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import NonFiniteError, SettingError
from worldrl.core.rng import stream
from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics
from worldrl.diffusion.sde import Denoising, RatioRule, make_schedule
from worldrl.methods.alignment.align import MethodConfigs, align
from worldrl.methods.alignment.branch_grpo import BranchGrpoConfig, by_depth
from worldrl.methods.alignment.dance_grpo import DanceGrpoConfig
from worldrl.methods.alignment.diffusion_nft import DiffusionNftConfig, noised, old_weight_decay
from worldrl.methods.alignment.flow_grpo import FlowGrpoConfig, flow_grpo
from worldrl.methods.alignment.imagination import task_scale
from worldrl.methods.alignment.sol_rl import SolRlConfig, rank_agreement, sol_rl
from worldrl.methods.alignment.step_aware_preference import StepAwarePreferenceConfig, candidate_values, preferred
from worldrl.methods.alignment.videos import Layer, Surroundings
from worldrl.methods.rl.advantages import batch_std, group_advantage, group_std, mean_only
from worldrl.methods.rl.config import PartNames, Parts
from worldrl.methods.rl.control import KlStop
from worldrl.methods.rl.interfaces import Evaluated, Trace
from worldrl.methods.rl.losses import nft_loss, preference, preference_loss
from worldrl.methods.rl.selection import best_and_worst, largest_variance, random_steps
from worldrl.recipes.rl_parts import make_method
from worldrl.registry import ALIGNMENTS
from worldrl.rewards.mixing import mean_of_terms, mix

NOTHING = Surroundings(*[torch.zeros(0)] * 3)
SDE = Denoising(steps=3, noise="constant", eta=0.6)
ODE = Denoising(steps=3, noise="none")
METHODS = tuple(vars(MethodConfigs()))
CONFIGS = MethodConfigs(
    FlowGrpoConfig(SDE, RatioRule("mean", 1e-2)),
    DanceGrpoConfig(SDE, RatioRule("mean", 1e-2)),
    BranchGrpoConfig(SDE, RatioRule("mean", 1e-2), splits=[0, 1]),
    DiffusionNftConfig(ODE),
    SolRlConfig(8, 1, "float32", nft=DiffusionNftConfig(ODE, coupled=True)),
    StepAwarePreferenceConfig(SDE, candidates=3, gap=0.0),
)


# --- DiffusionNFT ---------------------------------------------------------------------------------------------------


@pytest.fixture
def predictions():
    """Predicted, old and finished chunks ``[4, 2, 3]`` in float64."""
    draw = stream(0, "nft")
    return [torch.randn(4, 2, 3, generator=draw, dtype=torch.float64) for _ in range(3)]


def gradient(clean, old, target, advantage, **over):
    clean = clean.clone().requires_grad_()
    nft_loss(clean, old, target, advantage, **({"beta": 1.0, "advantage_max": 5.0} | over)).backward()
    return clean.grad


@pytest.mark.parametrize("beta", [1.0, 0.1])
def test_nft_has_no_gradient_without_advantage_where_it_stands(predictions, beta):
    _, old, target = predictions
    assert gradient(old, old, target, torch.zeros(4), beta=beta).abs().max() < 1e-15


def test_nft_draws_to_good_chunks_and_pushes_from_bad_ones(predictions):
    _, old, target = predictions
    slope = gradient(old, old, target, torch.tensor([5.0, 1.0, -1.0, -5.0], dtype=torch.float64))
    toward = (slope * (old - target)).flatten(1).sum(dim=1)
    assert (toward[:2] > 0).all()
    assert (toward[2:] < 0).all()


def test_nft_pushes_as_hard_as_it_draws_and_in_proportion_up_to_its_limit(predictions):
    """Where it stands, the slope of a chunk is that of advantage 1 times the advantage: odd, linear, and cut at A_max."""
    _, old, target = predictions
    one = gradient(old, old, target, torch.ones(4, dtype=torch.float64))
    for advantage, times in ((-1.0, -1.0), (3.0, 3.0), (-5.0, -5.0), (9.0, 5.0)):
        found = gradient(old, old, target, torch.full((4,), advantage, dtype=torch.float64))
        torch.testing.assert_close(found, times * one)
    assert one.abs().max() > 1e-3


def test_nft_loss_is_its_formula(predictions):
    clean, old, target = predictions
    advantage, beta = torch.tensor([5.0, -2.5, 7.0, 0.0], dtype=torch.float64), 0.5
    weight = [1.0, 0.25, 1.0, 0.5]
    expected = 0.0
    for row in range(4):
        sides = []
        for sign in (1, -1):
            made = (1 - sign * beta) * old[row] + sign * beta * clean[row]
            error = (made - target[row]).flatten()
            sides.append((error**2).mean() / error.abs().mean())
        expected += 5 * (weight[row] * sides[0] + (1 - weight[row]) * sides[1]) / beta / 4
    torch.testing.assert_close(nft_loss(clean, old, target, advantage, beta=beta, advantage_max=5.0), expected)


def test_coupled_noisings_cancel_their_noise_and_cover_both_ends():
    schedule, latent = make_schedule(ODE, 1.0), torch.randn(3, 1, 2, 2, 2, generator=stream(0, "latent"))
    x, sigma = noised(latent, schedule, stream(0, "noise"), coupled=True)
    alone = noised(latent, schedule, stream(0, "noise"))
    torch.testing.assert_close((x[:3], sigma[:3]), alone)
    levels = schedule.level(torch.arange(schedule.steps))
    for k in range(3):
        at = int((levels == sigma[k]).nonzero())
        assert sigma[3 + k] == levels[schedule.steps - 1 - at]
        noise = [(x[i] - (1 - sigma[i]) * latent[k]) / sigma[i] for i in (k, 3 + k)]
        torch.testing.assert_close(noise[0], -noise[1], atol=1e-4, rtol=1e-4)


def test_nft_keeps_the_old_weights_as_published():
    assert [old_weight_decay(k, "rising") for k in (0, 10, 900)] == pytest.approx([0, 0.01, 0.5])
    assert [old_weight_decay(k, "late") for k in (74, 75, 95, 900)] == pytest.approx([0, 0, 0.15, 0.999])


# --- Flow-GRPO, DanceGRPO -------------------------------------------------------------------------------------------


def seen(group, times=1, **over):
    """A trace of videos whose steps are all learnable."""
    return Trace(0, group, torch.ones(times, len(group), dtype=torch.bool), **over)


def test_advantages_are_divided_by_the_groups_deviation_or_by_everyones():
    value, group = torch.tensor([0.0, 2.0, 10.0, 10.4]), torch.tensor([0, 0, 1, 1])
    torch.testing.assert_close(group_std(value, seen(group))[0], group_advantage(value, group))
    std = value.std(correction=0).item() + 1e-4
    assert batch_std(value, seen(group))[0].tolist() == pytest.approx([-1 / std, 1 / std, -0.2 / std, 0.2 / std])


def test_gdpo_is_divided_once(make_task):
    """A group in which two terms cancel has nothing to learn from; its own deviation would make it as loud as the others."""
    task = replace(make_task(), mix=mix, batch_scale=True)
    assert task_scale(task) is batch_std
    assert task_scale(make_task()) is group_std
    cancelled = [[0.0, 1.0], [1.0, 0.001], [0.5, 0.5]]
    terms = torch.tensor([*cancelled, [0.0, 0.0], [1.0, 1.0], [0.5, 0.5]])
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    value = mix(terms, group)
    found = task_scale(task)(value, seen(group))[0]
    torch.testing.assert_close(
        found, value * math.sqrt(6 / 5), rtol=1e-3, atol=1e-4
    )  # the sample's deviation, the batch's
    assert found[:3].abs().max() < 0.01 < found[3:].abs().max()
    tree = [Layer(0, group, group, *[torch.zeros(6)] * 3, NOTHING, True)]
    torch.testing.assert_close(by_depth(value, seen(group, tree=tree), scale=batch_std)[0], found)
    more = seen(group, explored=(terms[:, 0], group))
    torch.testing.assert_close(batch_std(terms[:, 0], more), batch_std(terms[:, 0], seen(group)))


def test_dance_grpo_trains_a_share_of_each_videos_noisy_steps():
    valid = torch.tensor([1, 1, 1, 0] * 2, dtype=torch.bool)[:, None].expand(-1, 8)
    trace = Trace(0, torch.arange(8) // 4, valid)
    keep = random_steps(torch.zeros(0), torch.zeros(8), trace, stream(0, "share"), trained_share=0.5)
    assert keep.sum(dim=0).tolist() == [3] * 8
    assert not keep[[3, 7]].any()
    assert len({tuple(column) for column in keep.T.tolist()}) > 1


# --- Sol-RL ---------------------------------------------------------------------------------------------------------


def test_best_and_worst_of_each_group():
    value = torch.tensor([3.0, 1, 2, 9, 8, 7, 6])
    group = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    assert best_and_worst(value, group, 2).tolist() == [1, 0, 6, 3]
    assert best_and_worst(value, group, 3).tolist() == [1, 2, 0, 6, 4, 3]


def test_rank_agreement_counts_pairs():
    first = torch.tensor([1.0, 2, 3, 4])
    assert rank_agreement(first, first * 2) == 1
    assert rank_agreement(first, -first) == 0
    assert rank_agreement(first, torch.tensor([1.0, 2, 4, 3])) == pytest.approx(5 / 6)
    assert math.isnan(rank_agreement(first, torch.zeros(4)))


def test_sol_rl_makes_the_same_seeds_again(make_task, monkeypatch):
    """With as many steps in both stages the second videos are the first ones; with fewer they begin with the same noise."""
    from worldrl.methods.alignment import imagination

    grow = imagination.grow
    for steps in (3, 1):
        task, selected_samples = make_task(), []
        monkeypatch.setattr(imagination, "grow", lambda *a, g=selected_samples, **k: g.append(grow(*a, **k)) or g[-1])
        config = SolRlConfig(8, steps, "float32", nft=DiffusionNftConfig(ODE))
        logs = {}
        list(sol_rl(task, config).losses(3, logs))
        cheap, full = selected_samples
        place = [cheap.keys.index(key) for key in full.keys]
        assert len(place) == 8
        assert torch.equal(cheap.group[place], full.group)
        torch.testing.assert_close(cheap.layers[0].x[place], full.layers[0].x, rtol=0, atol=0)
        same = torch.allclose(cheap.latent[place], full.latent, rtol=1e-4, atol=1e-5)
        assert same == (steps == 3)
        value = task.reward.score(_shown(task, cheap))[:, 0]
        assert place == best_and_worst(value, cheap.group, 4).tolist()
        assert (logs["cost/explore_evaluations"], logs["cost/evaluations"]) == (16 * 2 * steps, 8 * 2 * 3)
        assert steps == 1 or logs["align/rank_agreement"] == 1


def test_the_whole_pool_in_full_is_what_sol_rl_is_held_against(make_task):
    """Without a second stage the extremes of the pool are trained on as they are: the same chunks, made once."""
    seen, costs, nft = [], [], DiffusionNftConfig(ODE)
    for again in (True, False):
        method, logs = sol_rl(make_task(), SolRlConfig(8, 3, "float32", again, nft=nft)), {}
        collected = method.schedule(method.source, method.request(0), method.mix, logs)
        seen.append(method.decided(method.request(0), collected, logs))
        costs.append((int(logs["cost/explore_evaluations"]), int(logs.get("cost/evaluations", 0))))
    assert costs == [(16 * 2 * 3, 8 * 2 * 3), (16 * 2 * 3, 0)]
    for name in ("latent", "advantage"):
        torch.testing.assert_close(getattr(seen[0], name), getattr(seen[1], name), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(seen[0].around.memory, seen[1].around.memory, rtol=1e-3, atol=1e-4)
    with pytest.raises(SettingError, match="explored in full: give explore_steps=3 and explore_dtype=float32"):
        SolRlConfig(8, 1, "float32", resample=False, nft=nft)


def _shown(task, tree):
    from worldrl.methods.alignment.task import imagined_videos

    return imagined_videos(task, tree.latent, tree.start)


# --- step-aware preference ------------------------------------------------------------------------------------------


def test_pairs_need_a_clear_gap():
    value = torch.tensor([[0.0, 3.0, 1.0], [0.5, 0.5, 0.6]])
    best, worst, clear = preferred(value, 0.3)
    assert (best.tolist(), worst.tolist()) == ([1, 2], [0, 0])
    assert clear.tolist() == [True, False]


def test_candidates_that_are_alike_are_no_pair_under_any_mixture():
    """Four candidates scaled to their own deviation always differ by more than the gap, even where nothing tells them apart."""
    alike, apart = torch.tensor([0.50, 0.51, 0.50, 0.49]), torch.tensor([0.0, 1.0, 0.4, 0.6])
    terms, group = torch.cat([alike, apart])[:, None], torch.tensor([0, 0])
    for mixture in (mix, mean_of_terms):
        value = candidate_values(mixture, terms, group, 4)
        assert preferred(value, 0.1)[2].tolist() == [False, True]


def test_preferences_push_until_the_range_is_left():
    best, worst = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    loss = preference_loss(best, worst, beta=10.0, clip=0.1)
    assert loss.item() == pytest.approx(math.log(2))
    loss.backward()
    assert (best.grad.item(), worst.grad.item()) == pytest.approx((-5, 5))
    far = torch.tensor([0.2], requires_grad=True)
    preference_loss(far, torch.zeros(1), beta=10.0, clip=0.1).backward()
    assert far.grad.item() == 0
    clipped = -math.log(1 / (1 + math.exp(-10 * math.log(1.1))))
    assert preference_loss(far.detach(), torch.zeros(1), beta=10.0, clip=0.1).item() == pytest.approx(clipped)
    pair = Evaluated(torch.tensor([[0.3, 0.1]]), torch.tensor([[0.1, 0.1]]), torch.zeros(1), torch.ones(1))
    assert preference(pair)[0].item() == pytest.approx(clipped)  # log-ratios 0.2 and 0


# --- the loop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_reward_rises(make_task, method):
    """Brightness rises by several times what it scatters by among the videos of a group (0.0036 before training)."""
    rate = 3e-2 if method in ("diffusion_nft", "sol_rl") else 1e-2
    task = make_task(
        iterations=8,
        prompts=3,
        spread=0.3,
        learning_rate=rate,
        names=("bright", "even"),
        mix=lambda terms, _: terms[:, 0],
    )
    history = align(task, make_method(method, task, CONFIGS), folder=None, log=None)
    bright = [numbers["reward/bright"] for numbers in history]
    assert sum(bright[-3:]) / 3 - bright[0] > 0.012
    assert all("reward/even" in numbers for numbers in history)


@pytest.mark.parametrize("method", METHODS)
def test_an_alignment_interrupted_resumes_to_the_same_bits(make_task, method, tmp_path, same_tree):
    """Stopped in iteration 3 (checkpoint at 2): weights, history and log are those of the run without a stop."""

    class StopError(Exception):
        pass

    def run(folder, stop=None):
        task = make_task(learning_rate=1e-2, chunks=1, group_size=4)
        chosen = make_method(method, task, CONFIGS)
        losses = chosen.losses

        def watched(iteration, logs):
            for loss in losses(iteration, logs):
                yield loss
                if iteration == stop:
                    raise StopError

        stopping = SimpleNamespace(losses=watched, modules=chosen.modules, prefix=chosen.prefix, control=chosen.control)
        with MetricLog(folder, tracker=TrackerName.none) as log:
            history = align(task, stopping, folder=folder / "checkpoints", log=log)
        return dict(task.model.state_dict()), history

    whole = run(tmp_path / "whole")
    with pytest.raises(StopError):
        run(tmp_path / "cut", stop=3)
    again = run(tmp_path / "cut")
    same_tree(again[0], whole[0])
    assert str(again[1]) == str(whole[1])  # as text: NaN is not itself
    lines = read_metrics(tmp_path / "cut")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    told = {"reward/bright", "cost/evaluations", "seconds/iteration", "cpu_seconds/imagining", "cpu_seconds/iteration"}
    assert lines[0]["values"].keys() >= told


def test_weights_that_explode_are_not_kept(make_task):
    task = make_task()
    method = SimpleNamespace(
        modules={}, prefix="align", losses=lambda k, logs: iter([task.dynamics.position.sum() * torch.inf])
    )
    before = [parameter.detach().clone() for parameter in task.dynamics.parameters()]
    with pytest.raises(NonFiniteError, match="iteration 0; the model was not updated"):
        align(task, method, folder=None, log=None)
    assert all(torch.equal(a, b) for a, b in zip(before, task.dynamics.parameters(), strict=True))


def test_kl_holds_the_weights_back(make_task):
    """The distance to the starting weights is 0 at first, and smaller with a heavy KL than without."""
    away = []
    for kl in (1e-6, 100.0):
        task = make_task(iterations=4, learning_rate=3e-3)
        config = MethodConfigs(flow_grpo=FlowGrpoConfig(SDE, RatioRule("mean", 1e-2), kl))
        history = align(task, make_method("flow_grpo", task, config), folder=None, log=None)
        assert history[0]["align/kl"] == pytest.approx(0, abs=1e-9)
        away.append(history[-1]["align/kl"])
    assert away[1] < 0.5 * away[0]


def test_groups_of_any_sizes_are_trained_together(make_task):
    """Nothing is reshaped to groups of one size: one alone has no advantage, the others their group's."""
    sizes = torch.tensor([1, 4, 7])
    task, given = make_task(prompts=3, iterations=1, minibatch=8), []
    method = flow_grpo(
        task, FlowGrpoConfig(SDE, kl=0.0), Parts(budget=lambda records, starts, rows: given.append(rows) or sizes)
    )
    logs = {}
    request = method.request(0)
    collected = method.schedule(method.source, request, method.mix, logs)
    steps = method.decided(request, collected, logs)
    assert given == [12]
    assert collected.experience.group.bincount().tolist() == [1, 4, 7]
    advantage = steps.advantage[:12]  # of the first noisy step
    assert advantage[0] == 0
    for rows in (slice(1, 5), slice(5, 12)):
        assert advantage[rows].mean().item() == pytest.approx(0, abs=1e-3)
        assert advantage[rows].std().item() == pytest.approx(1, abs=1e-2)
    assert len(align(task, method, folder=None, log=None)) == 1


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (Parts(advantage=lambda value, trace: value), r"parts.advantage: needs numbers \[T, B\] = \[6, 8\], got \[8\]"),
        (Parts(selection=lambda a, value, trace, g: value[None]), r"parts.selection: .* got \[1, 8\]"),
        (Parts(budget=lambda records, starts, rows: torch.tensor([1, 2])), r"8 rollouts of them in all.* and \[1, 2\]"),
        (Parts(starts=lambda records, count, g: torch.tensor([0])), r"need 2 starts"),
    ],
)
def test_a_part_of_another_package_that_answers_wrongly_is_named(make_task, parts, told):
    method = flow_grpo(make_task(), FlowGrpoConfig(SDE, kl=0.0), parts)
    with pytest.raises(SettingError, match=told):
        next(method.losses(0, {}))


def test_parts_that_settings_name_replace_a_methods_own(make_task):
    names = PartNames(advantage="mean_only", selection="largest_variance", loss="gaussian_trust", control="kl_stop")
    task = make_task(iterations=2, parts=names)
    method = make_method("dance_grpo", task, CONFIGS)
    assert (method.advantage, method.selection) == (mean_only, largest_variance)
    assert isinstance(method.control, KlStop)
    first, _ = align(task, method, folder=None, log=None)
    assert (
        first["cost/trained_steps"] == 2 * 2 * 2 * 2
    )  # half of four videos of two prompts, two noisy steps of two chunks
    videos = make_task(parts=PartNames(starts="mopps"))
    with pytest.raises(SettingError, match=r"alignment.parts.starts=mopps needs rollouts that succeed or fail: videos"):
        make_method("flow_grpo", videos, CONFIGS)


def test_unknown_methods_and_impossible_settings_are_refused(make_task):
    task = make_task()
    with pytest.raises(SettingError, match="did you mean 'flow_grpo'"):
        make_method("flow_grp", task, CONFIGS)
    with pytest.raises(SettingError, match="noise must be none"):
        make_method("diffusion_nft", task, MethodConfigs(diffusion_nft=DiffusionNftConfig(SDE)))
    with pytest.raises(SettingError, match=r"explored must be at least alignment\.group_size 4"):
        make_method("sol_rl", task, MethodConfigs(sol_rl=SolRlConfig(explored=3)))
    for make in (
        lambda: DanceGrpoConfig(trained_share=0),
        lambda: DiffusionNftConfig(beta=0),
        lambda: DiffusionNftConfig(old_decay="slow"),
        lambda: SolRlConfig(normalise_on="all"),
        lambda: StepAwarePreferenceConfig(candidates=1),
        lambda: make_task(group_size=1),
    ):
        with pytest.raises(SettingError):
            make()
    assert sorted(METHODS) == ALIGNMENTS.names()
