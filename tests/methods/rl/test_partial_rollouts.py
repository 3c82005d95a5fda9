"""Rollouts that last for several iterations: nothing lost or doubled, exact likelihoods, resume equality.

Unit under test: ``methods.rl.partial_rollouts``, and what ``rollout.imagined.rollouts`` keeps under way.
"""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.embodiment import integrate_commands
from worldrl.core.errors import SettingError
from worldrl.core.storage.log import read_metrics
from worldrl.methods.rl import staleness
from worldrl.methods.rl.config import GrpoConfig, PartNames
from worldrl.methods.rl.imagination import PolicyImagination, imagined_env
from worldrl.methods.rl.improve import Improvement
from worldrl.methods.rl.interfaces import Request
from worldrl.methods.rl.partial_rollouts import PartialImagination, Slots, iteration_ends
from worldrl.methods.rl.trust import Trust
from worldrl.policies.exploration import Exploration
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.workers.link.boot import load_file

SCRIPT = Path(__file__).parents[1] / "improve_script.py"
script = load_file("improve_script", SCRIPT)
OWN = ("grpo/groups", "grpo/age")
"""What a run of partial rollouts logs besides."""


@pytest.mark.parametrize(
    ("complete", "advanced", "segment", "ends"),
    [
        (0, 9, 2, False),  # nothing to learn from yet
        (1, 1, 2, False),
        (1, 2, 2, True),
        (1, 99, 0, False),  # no segment ends it
        (3, 1, 0, True),  # enough
        (4, 0, 0, True),  # all slots are complete
    ],
)
def test_an_iteration_ends_with_its_segment_or_with_enough_groups(complete, advanced, segment, ends):
    assert iteration_ends(complete, 4, advanced, enough=3, segment=segment) == ends


def imagination(*, segment=2, enough=3, keyframes=0.0, steps=24):
    """Three slots of four rollouts from three start records."""
    store = ResetStore([script.record(grey) for grey in (20, 120, 220)])
    rule = SuccessRule(0.1, 2)
    env = imagined_env(script.world_model(), store, rule, rows=12, horizon={"PickRedCube": steps})
    given = (env, script.policy().eval(), Exploration(), keyframes, 1)
    slots = Slots(*given[:3], 4)
    return PartialImagination(*given, slots=slots, enough=enough, segment=segment), PolicyImagination(*given)


def asked(iteration):
    return Request.make(iteration, torch.tensor([0, 1, 2]).roll(iteration), torch.full((3,), 4))


def test_each_group_comes_in_once():
    source, _ = imagination()
    begun, came = Counter(), Counter()
    for iteration in range(12):
        free = len(source.slots.free)
        begun.update((start, iteration) for start in asked(iteration).starts[:free].tolist())
        found = source.imagine(asked(iteration))
        groups = found.came
        assert groups.iteration == iteration
        came.update(zip(groups.starts.tolist(), groups.begun.tolist(), strict=True))
        assert groups.group.bincount().tolist() == [4] * len(groups.starts)
        assert torch.equal(found.rollouts.group, groups.group)
        # the grey of its image names a start record
        first = found.rollouts.image[0].flatten(1).float().mean(dim=1)
        assert first.tolist() == [20.0 + 100 * start for start in groups.starts[groups.group].tolist()]
    under_way = Counter(source.slots.groups.values())
    assert under_way
    assert came + under_way == begun
    assert max(begun.values()) == 1


def test_a_rollout_continues_where_it_was():
    """Commands follow from the actions without a gap, and each decision's likelihood is that of what was shown."""
    source, _ = imagination()
    robot, policy, lengths = source.env.world_model.embodiment, source.policy, set()
    for iteration in range(6):
        found = source.imagine(asked(iteration)).rollouts
        lengths |= set(found.valid.sum(dim=0).tolist())
        for t, row in found.valid.nonzero().tolist():
            chunk, at = torch.tensor([t]), torch.tensor([row])
            logp = policy.log_prob(found.observed(chunk, at), found.token[chunk, at])
            assert torch.allclose(logp, found.logp[chunk, at], atol=1e-5)
            after = integrate_commands(robot, found.command[chunk, at], found.action[chunk, at])[0, -1]
            last = t + 1 == found.valid[:, row].sum()
            assert torch.allclose(after, found.end.command[row] if last else found.command[t + 1, row], atol=1e-6)
    assert max(lengths) > 4  # such that some lasted for several segments


def test_a_long_segment_is_a_batch_of_whole_rollouts(same_tree):
    partial, whole = imagination(segment=6)
    for iteration in range(2):
        found, expected = (source.imagine(asked(iteration)).rollouts for source in (partial, whole))
        same_tree(vars(found), vars(expected))
    assert partial.under_way() == {"groups": [], "rollouts": {}}


def test_spare_groups_wait_for_no_more_than_enough():
    source, _ = imagination(segment=0, enough=1)
    assert len(source.imagine(asked(0)).came.starts) == 1
    assert len(source.slots.groups) == 2


def test_the_state_holds_all_that_is_under_way(same_tree):
    one, _ = imagination()
    for iteration in range(3):
        one.imagine(asked(iteration))
    two, _ = imagination()
    two.carry_on(one.under_way())
    assert one.slots.groups
    for iteration in range(3, 6):
        found, expected = (source.imagine(asked(iteration)) for source in (two, one))
        same_tree(vars(found.rollouts), vars(expected.rollouts))
        same_tree(vars(found.came), vars(expected.came))
    two.carry_on({})
    assert len(two.slots.free) == 3


# -- training ---------------------------------------------------------------------------------------------------------


def improved(folder, **settings):
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    learner, history = script.improved("grpo", folder, **settings)
    lines = [(line["step"], line["values"]) for line in read_metrics(folder)]
    return SimpleNamespace(weights=learner.state_dict(), history=history, lines=lines)


@pytest.fixture(scope="module")
def versions():
    """Weights at the beginning of each iteration, and what came in, of the run below."""
    return SimpleNamespace(weights=[], came=[])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, versions):
    imagine = PartialImagination.imagine

    def watched(self, request):
        versions.weights.append({name: value.clone() for name, value in self.policy.state_dict().items()})
        versions.came.append(imagine(self, request))
        return versions.came[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartialImagination, "imagine", watched)
        return improved(tmp_path_factory.mktemp("unbroken") / "run", **script.PARTIAL)


def test_a_rollout_holds_the_likelihoods_of_all_the_weights_that_drew_it(unbroken, versions):
    policy, several = script.policy().eval(), 0
    for found in versions.came:
        rollouts, came = found.rollouts, found.came
        for row in range(len(rollouts.success)):
            drew, now = [], int(came.begun[came.group[row]])
            for t in range(int(rollouts.valid[:, row].sum())):
                chunk, at = torch.tensor([t]), torch.tensor([row])
                drew.append(set())
                for k, weights in enumerate(versions.weights[: came.iteration + 1]):
                    policy.load_state_dict(weights)
                    logp = policy.log_prob(rollouts.observed(chunk, at), rollouts.token[chunk, at])
                    if torch.allclose(logp, rollouts.logp[chunk, at], atol=1e-5):
                        drew[-1].add(k)
                now = min(k for k in drew[-1] if k >= now)  # never those of an earlier iteration again
            several += not set.intersection(*drew)
    assert several


def test_a_run_tells_how_many_groups_come_in_and_how_old_they_are(unbroken, versions):
    told = [[values[name] for name in OWN] for _, values in unbroken.lines]
    found = [
        [float(len(batch.came.starts)), float((batch.came.iteration - batch.came.begun).float().mean())]
        for batch in versions.came
    ]
    assert told == found
    assert max(age for _, age in told) >= 1


def test_whole_rollouts_in_one_segment_change_no_bit_of_training(tmp_path):
    one, two = improved(tmp_path / "one", horizon=24), improved(tmp_path / "two", horizon=24, segment_chunks=6)
    assert len(set(one.history)) > 1
    assert one.history == two.history
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)
    assert one.lines == [(step, {k: v for k, v in values.items() if k not in OWN}) for step, values in two.lines]


def test_a_killed_run_equals_an_unbroken_one(tmp_path, unbroken):
    ended = subprocess.run([sys.executable, SCRIPT, "partial", tmp_path, "4"], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    again = improved(tmp_path, **script.PARTIAL)
    assert again.history == unbroken.history
    assert all(torch.equal(again.weights[name], value) for name, value in unbroken.weights.items())
    assert again.lines == unbroken.lines


def test_another_process_carries_them_on_alike(tmp_path, monkeypatch, unbroken):
    """Without a lag it equals the learner's own; with one, a killed run equals an unbroken one."""
    made = staleness.imagined_ahead
    with monkeypatch.context() as patch:
        patch.setattr(staleness, "imagined_ahead", lambda method, policy, _, *rest: made(method, policy, 0, *rest))
        other = improved(tmp_path / "other", staleness=1, **script.PARTIAL)
    assert other.history == unbroken.history
    assert all(torch.equal(other.weights[name], value) for name, value in unbroken.weights.items())
    ahead, cut = improved(tmp_path / "ahead", staleness=2, **script.PARTIAL), tmp_path / "cut"
    cut.mkdir()
    command = [sys.executable, SCRIPT, "partial", cut, "5", "2", int(signal.SIGKILL)]
    ended = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, start_new_session=True, timeout=300
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    again = improved(cut, staleness=2, **script.PARTIAL)
    assert again.history == ahead.history
    assert all(torch.equal(again.weights[name], value) for name, value in ahead.weights.items())
    assert again.lines == ahead.lines
    assert not all(torch.equal(ahead.weights[name], value) for name, value in unbroken.weights.items())


# -- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"budget": "knapsack"}, r"segment_chunks needs groups of one size, and parts.budget=knapsack makes others"),
        ({"control": "verified"}, r"segment_chunks has rollouts under way between updates, and parts.control=verified"),
    ],
)
def test_parts_that_need_whole_batches_are_refused(parts, told):
    with pytest.raises(SettingError, match=told):
        GrpoConfig(segment_chunks=2, parts=PartNames(**parts))


def test_trust_needs_rollouts_that_are_over_together():
    with pytest.raises(SettingError, match=r"improvement.trust.confidence_score=score .* or the trust$"):
        Improvement("grpo", grpo=GrpoConfig(spare_groups=2), trust=Trust("score"))
