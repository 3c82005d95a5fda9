"""Unit under test: ``worldrl/methods/imitation/distillation.py``: divergence to each task's teacher, resume, refusals."""

import copy

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.methods.imitation import distillation
from worldrl.methods.imitation.config import Distillation
from worldrl.methods.imitation.distillation import balanced, distil, distillation_loss
from worldrl.policies.samples import make_samples
from worldrl.policies.token.tokens import still_dimensions

FEW = Distillation(steps=40, batch_size=16, learning_rate=3e-2)


@pytest.fixture
def two(tiny_policy):
    """Teachers of two tasks whose weights differ."""
    teachers = {}
    for number, task in enumerate(("PickRedCube", "PickGreenCylinder")):
        policy = tiny_policy(seed=number)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=stream(number, "shake")))
        teachers[task] = policy
    return teachers


@pytest.fixture
def samples(push_episode):
    episodes = [
        push_episode(n, task=task)
        for task, count in (("PickRedCube", 3), ("PickGreenCylinder", 1))
        for n in range(count)
    ]
    return make_samples(episodes, 4)


def rows_of(samples, task):
    return samples.select(torch.tensor([k for k, name in enumerate(samples.task) if name == task]))


def losses(policy, teachers, batch):
    with torch.no_grad():
        return [float(part) for part in distillation_loss(policy, teachers, batch)]


def test_a_policy_is_at_no_distance_from_itself(two, samples):
    for task, policy in two.items():
        assert losses(policy, {name: policy for name in two}, samples) == pytest.approx([0, 0], abs=1e-6)
        other = rows_of(samples, next(name for name in two if name != task))
        assert min(losses(policy, two, other)) > 1e-3


def test_each_row_has_its_tasks_teacher_in_whatever_order(two, samples):
    """Of a policy that is the first teacher, only rows of the second task count, and each by its own divergence."""
    policy, other = two["PickRedCube"], two["PickGreenCylinder"]
    mixed = samples.select(torch.randperm(len(samples), generator=stream(0, "order"))[:24])
    blue = [k for k, name in enumerate(mixed.task) if name == "PickGreenCylinder"]
    assert 0 < len(blue) < len(mixed)
    own, target = (p.log_softmax(mixed.observed).detach() for p in (policy, other))
    kl = (target.exp() * (target - own)).sum(dim=-1)[..., ~still_dimensions(policy.action_low, policy.action_high)]
    assert losses(policy, two, mixed)[0] == pytest.approx(kl[blue].sum().item() / kl.numel(), rel=1e-4)


def test_divergence_is_from_the_teacher_to_the_policy_not_back(two, samples):
    """KL(teacher ‖ policy), whose two directions differ."""
    policy, other = two["PickRedCube"], two["PickGreenCylinder"]
    forth = losses(policy, dict.fromkeys(two, other), samples)[0]
    back = losses(other, dict.fromkeys(two, policy), samples)[0]
    assert abs(forth - back) > 1e-4
    p, q = (one.log_softmax(samples.observed).detach() for one in (other, policy))
    assert forth == pytest.approx(((p.exp() * (p - q)).sum(dim=-1)).mean().item(), rel=1e-4)


def test_a_policy_learns_both_teachers_each_on_its_task(two, samples):
    policy = copy.deepcopy(two["PickRedCube"])
    before = losses(policy, two, rows_of(samples, "PickGreenCylinder"))[0]
    distil(policy, two, samples, config=FEW, seed=0, folder=None, log=None)
    after = {task: losses(policy, two, rows_of(samples, task))[0] for task in two}
    assert after["PickGreenCylinder"] < 0.2 * before
    assert after["PickRedCube"] < 0.2 * before


def test_tasks_weigh_alike_whatever_their_frames(samples):
    weight = balanced(samples.task)
    shares = [weight[[k for k, name in enumerate(samples.task) if name == task]].sum().item() for task in set(samples.task)]  # fmt: skip
    assert shares == pytest.approx([1, 1])


def test_interrupted_resumes_to_the_same_bits(two, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(distillation, "CHECKPOINT_EVERY", 4)
    config = Distillation(steps=10, batch_size=8, learning_rate=1e-2)
    whole, broken = (copy.deepcopy(two["PickRedCube"]) for _ in range(2))
    distil(whole, two, samples, config=config, seed=3, folder=tmp_path / "whole", log=None)
    real, count = distillation.distillation_loss, []

    def killed(*given):
        count.append(1)
        if len(count) == 7:
            raise RuntimeError("killed")
        return real(*given)

    monkeypatch.setattr(distillation, "distillation_loss", killed)
    with pytest.raises(RuntimeError, match="killed"):
        distil(broken, two, samples, config=config, seed=3, folder=tmp_path / "broken", log=None)
    again = copy.deepcopy(two["PickRedCube"])
    distil(again, two, samples, config=config, seed=3, folder=tmp_path / "broken", log=None)
    assert len(count) == 7 + 6  # from the checkpoint of step 4
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


def test_a_task_without_a_teacher_and_an_empty_batch_are_refused(two, samples):
    with pytest.raises(SettingError, match=r"no teacher for the tasks \['PickGreenCylinder'\]"):
        distil(
            two["PickRedCube"], {"PickRedCube": two["PickRedCube"]}, samples, config=FEW, seed=0, folder=None, log=None
        )
    with pytest.raises(SettingError, match=r"distillation\.batch_size"):
        Distillation(batch_size=0)
