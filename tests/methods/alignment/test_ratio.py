"""How an iteration's denoising steps become gradient steps."""

import torch

from worldrl.methods.alignment.flow_grpo import FlowGrpoConfig, flow_grpo


def test_no_gradient_step_is_taken_on_a_few_left_over_rows(make_task):
    """Adam's step does not shrink with the rows it was drawn from: nine left over would move the weights as far as 64."""

    def minibatches(rows, **over):
        return list(flow_grpo(make_task(**over), FlowGrpoConfig()).minibatches(rows, 0))

    parts = minibatches(201, minibatch=64, epochs=2)
    assert [len(part) for part in parts] == 2 * [51, 50, 50, 50]
    for epoch in (parts[:4], parts[4:]):
        assert torch.cat(epoch).sort().values.tolist() == list(range(201))
    assert [len(part) for part in minibatches(192, minibatch=64)] == [64, 64, 64]
    assert [len(part) for part in minibatches(7, minibatch=512)] == [7]
