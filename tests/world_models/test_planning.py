"""A world model without actions: given the instruction instead, untouched where it has them, and really learned."""

import pytest
import torch

from worldrl.core.errors import ActionError, SettingError
from worldrl.core.rng import initial_weights, row_streams, stream
from worldrl.recipes.world_model.start import starting_world_model
from worldrl.world_models.video.config import DynamicsConfig
from worldrl.world_models.video.dynamics import hide_actions
from worldrl.world_models.video.extension import extended
from worldrl.world_models.video.flow_transformer import FlowTransformer
from worldrl.world_models.video.instructions import TaskInstructions, hide_rows, relabel
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import fit_dynamics, latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining

SENTENCES = TaskInstructions(
    same={"PickRedCube": ("pick up the red cube",), "PickGreenCylinder": ("pick up the green cylinder",)},
    other={"PickRedCube": ("pick up the green cylinder",), "PickGreenCylinder": ("pick up the red cube",)},
)


@pytest.fixture
def records(make_record):
    return [make_record(20, task="PickRedCube"), make_record(20, task="PickGreenCylinder")]


def test_with_actions_nothing_changes_not_a_bit(make_world_model, records, tmp_path, same_tree):
    """Weights from before load, and give the same numbers, saved and loaded again as a planner too."""
    plain = make_world_model()
    plain.save(tmp_path / "plain")
    planner = extended(VideoWorldModel.load(tmp_path / "plain"), make_world_model(planning=True).config, seed=3)
    planner.save(tmp_path / "planner")
    action = torch.rand(2, 4, 7, generator=stream(0, "action")) * 2 - 1
    told = []
    for model in (plain, planner, VideoWorldModel.load(tmp_path / "planner")):
        state, imagined = model.imagine(model.start(records), action, generators=row_streams(0, ("n",), 2))
        told.append((state.state_dict(), imagined.latent, imagined.success_prob))
    same_tree(told[0], told[1])
    same_tree(told[0], told[2])


def test_rows_with_actions_are_as_if_nobody_had_lost_theirs(make_world_model):
    dynamics = make_world_model(planning=True, spread=0.3).dynamics
    draw = stream(0, "given")
    noise, reference = torch.randn(3, 2, 4, 2, 2, generator=draw), torch.randn(3, 4, 2, 2, generator=draw)
    memory, action = torch.randn(3, 2, 4, 2, 2, generator=draw), torch.randn(3, 4, 14, generator=draw)
    instruction = torch.randn(3, 16, generator=draw)
    hidden = torch.tensor([False, True, False])
    plain, _ = dynamics.sample(noise, reference, memory, action)
    mixed, _ = dynamics.sample(noise, reference, memory, hide_actions(action, instruction, hidden))
    torch.testing.assert_close(mixed[[0, 2]], plain[[0, 2]], rtol=0, atol=0)
    assert not torch.equal(mixed[1], plain[1])
    other = [action.clone(), instruction.clone()]
    other[0][1] += 1  # what is hidden has no effect
    other[1][[0, 2]] += 1  # nor has an instruction beside actions
    again, _ = dynamics.sample(noise, reference, memory, hide_actions(*other, hidden))
    assert torch.equal(again, mixed)
    other[1][1] += 1
    assert not torch.equal(dynamics.sample(noise, reference, memory, hide_actions(*other, hidden))[0][1], mixed[1])


def test_a_plan_depends_on_the_instruction_and_keeps_the_command(make_world_model, records):
    model = make_world_model(planning=True, spread=0.3)
    state = model.start(records)
    after, imagined = model.imagine(state, None, generators=[stream(0, "same")] * 2)
    assert imagined.command.shape == (2, 4, 7)
    assert torch.equal(after.command, state.command)
    alone, _ = model.imagine(state.select(torch.tensor([1])), None, generators=[stream(1, "row")])
    both, _ = model.imagine(state, None, generators=[stream(2, "row"), stream(1, "row")])
    torch.testing.assert_close(both.memory[1], alone.memory[0])
    same = [stream(0, "same"), stream(0, "same")]
    twice, _ = model.imagine(state, None, generators=same)
    assert not torch.allclose(twice.memory[0], twice.memory[1])


def test_a_model_that_does_not_plan_says_what_to_do(world_model, records):
    with pytest.raises(ActionError, match=r"model\.dynamics\.planning=true"):
        world_model.imagine(world_model.start(records), None, generators=row_streams(0, ("n",), 2))
    with pytest.raises(ActionError, match="one generator per row: 2, got 1"):
        world_model.imagine(world_model.start(records), None, generators=row_streams(0, ("n",), 1))


def test_settings_that_do_not_go_together_are_refused(world_model, push_episodes):
    with pytest.raises(SettingError, match="planning is the flow transformer's"):
        DynamicsConfig(kind="edm_unet", planning=True)
    config = WorldModelTraining(action_dropout=0.5, dtype="float32", unroll=2)
    with pytest.raises(SettingError, match=r"dynamics\.planning=true"):
        fit_dynamics(world_model, push_episodes, config, instructions=SENTENCES, seed=0, folder=None, log=None)


def test_hidden_windows_move_and_get_their_instruction(world_model, push_episodes):
    config = WorldModelTraining(dtype="float32", unroll=2, static_share=0.3)
    batch = latent_sampler(world_model, push_episodes, config).sample(300, stream(0, "windows"))
    hidden = hide_rows(batch, 0.5, stream(0, "hide"))
    assert 0.25 < hidden[batch.fulfilled].float().mean() < 0.45
    assert not (hidden & batch.static).any()
    told = relabel(batch, SENTENCES, 1.0, stream(0, "relabel"), hidden).instruction
    for row, task in enumerate(batch.task):
        assert told[row] == (SENTENCES.same if hidden[row] else SENTENCES.other)[task][0]
    assert hide_rows(batch, 0.0, stream(0, "hide")) is None


def test_weights_that_do_not_plan_are_extended(world_model, robot, tmp_path):
    world_model.save(tmp_path / "model")
    config = VideoWorldModel.load(tmp_path / "model").config
    config.dynamics.planning = True
    start = {"seed": 0, "device": torch.device("cpu")}
    planner = starting_world_model(str(tmp_path / "model"), config, robot, **start)
    assert planner.config.dynamics.planning
    planner.save(tmp_path / "planner")
    again = starting_world_model(str(tmp_path / "planner"), config, robot, **start)
    assert torch.equal(again.dynamics.plan.position, planner.dynamics.plan.position)


def test_two_instructions_lead_to_two_futures_from_one_image():
    """The plan follows the instruction alone: the same frames before, no actions, two clips learned by heart."""
    config = DynamicsConfig(
        chunk_length=4, memory_frames=2, width=32, depth=2, heads=2, motion_weight=0.0, planning=True
    )
    with initial_weights(0, "dynamics"):
        dynamics = FlowTransformer(config, (4, 4, 4))
    draw = stream(0, "clips")
    reference = torch.randn(1, 4, 4, 4, generator=draw).expand(2, -1, -1, -1)
    memory, clean = reference[:, None].expand(-1, 2, -1, -1, -1), 0.5 * torch.randn(2, 2, 4, 4, 4, generator=draw)
    instruction, action = torch.randn(2, 32, generator=draw), torch.randn(2, 4, 14, generator=draw)
    condition = hide_actions(action, instruction, torch.ones(2, dtype=torch.bool))
    optimizer = torch.optim.Adam(dynamics.parameters(), lr=4e-3)
    valid = torch.ones(2, 2, dtype=torch.bool)
    for step in range(80):
        told = dynamics.loss(clean, valid, reference, memory, condition, generator=stream(0, "learn", step))
        optimizer.zero_grad()
        told.loss.backward()
        optimizer.step()
    with torch.no_grad():
        planned, _ = dynamics.sample(torch.randn(2, 2, 4, 4, 4, generator=draw), reference, memory, condition)
    right = (planned - clean).square().mean().item()
    wrong = (planned - clean.flip(0)).square().mean().item()
    assert right < 0.2 * wrong
