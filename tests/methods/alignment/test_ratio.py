"""How an iteration's denoising steps become gradient steps."""

import torch

from worldrl.methods.alignment.ratio import minibatches


def test_no_gradient_step_is_taken_on_a_few_left_over_rows(make_task):
    """Adam's step does not shrink with the rows it was drawn from: nine left over would move the weights as far as 64."""
    task = make_task(minibatch=64, epochs=2)
    parts = list(minibatches(task, 201, iteration=0))
    assert [len(part) for part in parts] == 2 * [51, 50, 50, 50]
    for epoch in (parts[:4], parts[4:]):
        assert torch.cat(epoch).sort().values.tolist() == list(range(201))
    assert [len(part) for part in minibatches(make_task(minibatch=64), 192, iteration=0)] == [64, 64, 64]
    assert [len(part) for part in minibatches(make_task(minibatch=512), 7, iteration=0)] == [7]
