"""Parts by their equations: starts, budgets, selectors, losses, controllers; and GRPO made of others than its own."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.storage.log import MetricLog, TrackerName
from worldrl.methods.rl.budgets import root_variance, uniform
from worldrl.methods.rl.config import GrpoConfig, PartNames
from worldrl.methods.rl.control import EffectiveShare, KlStop
from worldrl.methods.rl.grpo import train_grpo
from worldrl.methods.rl.imagination import imagined_env
from worldrl.methods.rl.interfaces import Evaluated, Request, Trace
from worldrl.methods.rl.loop import Learner, iterate
from worldrl.methods.rl.losses import clipped, gaussian_trust, nft, preference
from worldrl.methods.rl.method import fitted
from worldrl.methods.rl.records import FORGETTING, StartRecords
from worldrl.methods.rl.selection import extremes, largest_variance
from worldrl.methods.rl.starts import balanced, mopps, permuted
from worldrl.policies.exploration import Exploration
from worldrl.recipes.rl_parts import open_parts
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore

TASKS = ["PickRedCube"] * 6


def known_starts(wins=(0,) * 6, losses=(0,) * 6, **over):
    made = StartRecords(TASKS, [False] * 6, counts=True, **over)
    made.wins, made.losses = (torch.tensor(known, dtype=torch.float64) for known in (wins, losses))
    return made


# -- requests, starts, budgets -------------------------------------------------------------------------------------


def test_a_request_names_every_row_whatever_the_sizes_of_its_groups():
    request = Request.make(7, torch.tensor([4, 2, 9]), torch.tensor([2, 1, 3]))
    assert request.group.tolist() == [0, 0, 1, 2, 2, 2]
    assert request.keys == [(7, 0, 0), (7, 0, 1), (7, 1, 0), (7, 2, 0), (7, 2, 1), (7, 2, 2)]
    assert request.select(torch.tensor([5, 0])).keys == [(7, 2, 2), (7, 0, 0)]


def test_starts_near_one_half_are_taken_once_they_are_known():
    known = known_starts(wins=(500, 0, 250, 500, 260, 3), losses=(0, 500, 250, 0, 240, 497))
    drawn = [mopps(known, 2, stream(0, "mopps", k)).sort().values.tolist() for k in range(20)]
    assert drawn == [[2, 4]] * 20
    early = {int(i) for k in range(40) for i in mopps(known_starts(), 2, stream(0, "mopps", k))}
    assert early == set(range(6))  # nothing is known: any may be taken
    assert mopps(known_starts(), 13, stream(0, "mopps")).bincount().tolist() in ([3, 2, 2, 2, 2, 2], *_orders())


def _orders():
    return [[3 if k == n else 2 for k in range(6)] for n in range(6)]


def test_what_is_known_of_a_start_fades_where_it_is_visited():
    known = known_starts(wins=(10,) * 6, losses=(20,) * 6)
    known.learn(torch.tensor([1, 1, 4]), torch.tensor([2, 1, 0]), torch.tensor([4, 4, 4]))
    alpha, beta = known.posterior(torch.arange(6))
    assert alpha[[0, 4]].tolist() == [11, 1 + FORGETTING * 10]
    assert alpha[1].item() == pytest.approx(1 + FORGETTING * 10 + 3)
    assert beta[1].item() == pytest.approx(1 + FORGETTING * 20 + 5)
    again = known_starts()
    again.load_state_dict(known.state_dict())
    assert torch.equal(again.wins, known.wins)


def test_videos_have_no_rate_of_success():
    videos = StartRecords(TASKS, [False] * 6)
    for ask in (lambda: mopps(videos, 2, stream(0, "m")), lambda: root_variance(videos, torch.arange(2), 8)):
        with pytest.raises(SettingError, match="needs to know which rollouts succeed"):
            ask()


def test_tasks_take_turns_and_permutations_repeat_nothing():
    store = StartRecords(["a", "b", "a", "b", "a"], [False, False, False, True, True], p_keyframe=1.0)
    drawn = balanced(store, 40, stream(0, "starts")).tolist()
    assert {store.task[i] for i in drawn[::2]} != {store.task[i] for i in drawn[1::2]}
    assert set(drawn) == {3, 4}  # always a keyframe
    assert permuted(store, 5, stream(0, "starts")).sort().values.tolist() == list(range(5))


def test_uncertain_starts_get_more_rollouts_and_every_one_two():
    known = known_starts(wins=(500, 250, 0, 0, 0, 0), losses=(0, 250, 500, 0, 0, 0))
    sizes = root_variance(known, torch.tensor([0, 1, 2]), 30)
    assert sizes.sum() == 30
    assert sizes.tolist() == [4, 22, 4]  # 2 + 24 sqrt(p (1 - p)) shares
    assert root_variance(known_starts(), torch.arange(4), 9).sum() == 9
    assert uniform(known, torch.arange(3), 30).tolist() == [10] * 3
    with pytest.raises(SettingError, match="cannot be shared out alike"):
        uniform(known, torch.arange(3), 31)
    with pytest.raises(SettingError, match="needs two rollouts"):
        root_variance(known, torch.arange(3), 5)


# -- selectors ------------------------------------------------------------------------------------------------------


def select(part, value, group, **over):
    trace = Trace(0, group, torch.ones(2, len(group), dtype=torch.bool))
    weight = part(torch.zeros(2, len(group)), value, trace, torch.Generator(), **over)
    assert torch.equal(weight[0], weight[1])
    return weight[0].nonzero()[:, 0].tolist()


def test_the_subset_of_largest_variance_is_the_best_of_all_subsets():
    group = torch.tensor([0] * 6 + [1] * 5)
    value = torch.randn(11, generator=stream(0, "pods"))
    kept = select(largest_variance, value, group)
    for number in (0, 1):
        rows = (group == number).nonzero()[:, 0].tolist()
        count = max(2, round(0.5 * len(rows)))
        best = max(itertools.combinations(rows, count), key=lambda r: float(value[list(r)].var(correction=0)))
        assert [i for i in kept if i in rows] == sorted(best)


def test_extremes_are_the_best_and_the_worst_of_each_group():
    value, group = torch.tensor([3.0, 1, 2, 5, 9, 8, 7, 6]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    assert select(extremes, value, group) == [1, 3, 4, 7]
    assert select(extremes, value, group, extremes_share=1.0) == list(range(8))


# -- losses and controllers -----------------------------------------------------------------------------------------


def evaluated(now, before, **over):
    now = torch.tensor(now, dtype=torch.float64).requires_grad_()
    before, rows = torch.tensor(before, dtype=torch.float64), len(before)
    one = torch.ones(rows, dtype=torch.float64)
    return Evaluated(now, before, **({"advantage": one, "weight": one} | over))


def test_a_gaussian_trust_fades_where_clipping_cuts():
    found = evaluated([0.0, 0.2, 0.6], [0.0, 0.0, 0.0])
    gaussian_trust(found, spread=0.2)[0].backward()
    log_ratio = found.now.detach()
    expected = -torch.exp(-(log_ratio**2) / 0.08) * log_ratio.exp() / 3
    torch.testing.assert_close(found.now.grad, expected)
    again = evaluated([0.0, 0.2, 0.6], [0.0, 0.0, 0.0])
    clipped(again)[0].backward()
    assert again.now.grad[2] == 0


def test_ratio_losses_say_how_much_of_the_sample_is_effective():
    even, uneven = clipped(evaluated([0.5, 0.5], [0.0, 0.0]))[1], clipped(evaluated([20.0, 0.0], [0.0, 0.0]))[1]
    assert float(even["effective_share"]) == pytest.approx(1)
    assert float(uneven["effective_share"]) == pytest.approx(0.5)
    assert float(clipped(evaluated([0.1, -0.1], [0.0, 0.0]))[1]["approx_kl"]) == pytest.approx(0.005, rel=1e-2)


@pytest.mark.parametrize("loss", [nft, preference])
def test_a_loss_of_other_inputs_says_where_it_belongs(loss):
    with pytest.raises(SettingError, match=rf"parts.loss={loss.__name__}"):
        loss(evaluated([0.1, 0.2], [0.0, 0.0]))


@pytest.mark.parametrize(
    ("control", "factor"), [(KlStop(limit=0.6), 1.0), (KlStop(limit=0.4), 0.0), (EffectiveShare(), 0.5)]
)
def test_a_controller_scales_the_step_or_leaves_it_out(control, factor):
    weight = torch.nn.Parameter(torch.tensor([1.0]))

    def losses(iteration, logs):
        logs.update({"x/approx_kl": torch.tensor(0.5), "x/effective_share": torch.tensor(0.25)})
        yield 2 * weight.sum()

    optimizer = torch.optim.SGD([weight], lr=0.1)
    learner = Learner({}, optimizer, lambda: [weight], 100.0, 1, 1, "x", note=str)
    iterate(learner, SimpleNamespace(losses=losses, prefix="x", control=control), 0)
    assert weight.item() == pytest.approx(1 - 0.1 * 2 * factor)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_part_gets_those_of_a_methods_settings_that_it_has():
    bound = fitted(clipped, clip_low=0.5, clip_high=0.5, keep_low=0.3)
    assert bound.keywords == {"clip_low": 0.5, "clip_high": 0.5}


# -- GRPO of other parts --------------------------------------------------------------------------------------------

OTHERS = (
    PartNames("leave_one_out", "largest_variance", "mopps", "root_variance", "gaussian_trust", "effective_share"),
    PartNames("process_advantage", "two_levels", "difficulty_bins", "knapsack", "decoupled", "verified"),
    PartNames("anchored", "everything", "hardest", "shrinking_interval", "mismatch_mask", "kl_stop"),
    PartNames("batch_std", loss="with_demonstrations"),
)


@pytest.mark.parametrize("parts", OTHERS, ids=lambda parts: parts.advantage)
def test_grpo_of_other_parts_learns_and_continues_to_the_same_bits(
    scripted_world, make_record, tiny_policy, tmp_path, same_tree, no_demonstrations, parts
):
    store = ResetStore([make_record(grey) for grey in (20, 120, 220, 60, 160)])
    config = GrpoConfig(groups=4, group_size=8, learning_rate=1e-2, epochs=2, checkpoint_every=1, parts=parts)

    def run(folder, *iterations):
        for count in iterations:
            env = imagined_env(scripted_world, store, SuccessRule(0.4, 2), rows=32, horizon={"PickRedCube": 4})
            policy = tiny_policy()
            with MetricLog(folder, tracker=TrackerName.none) as log:
                history = train_grpo(
                    policy,
                    env,
                    replace(config, iterations=count),
                    exploration=Exploration(),
                    p_keyframe=0.0,
                    seed=0,
                    folder=folder / "checkpoints",
                    log=log,
                    series="grpo",
                    parts=open_parts(parts, "parts"),
                    demonstrations=no_demonstrations,
                )
        return dict(policy.state_dict()), history

    whole, again = run(tmp_path / "whole", 12), run(tmp_path / "cut", 5, 12)
    assert again[1] == whole[1]
    same_tree(again[0], whole[0])
    assert sum(whole[1][-3:]) / 3 > sum(whole[1][:3]) / 3 + 0.2
