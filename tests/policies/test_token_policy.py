import copy
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.interfaces import TrainablePolicy
from worldrl.core.rng import row_streams, stream
from worldrl.core.storage.artefact import write_artefact
from worldrl.core.types import PolicyObs
from worldrl.policies.observation import ObservationError
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.policies.token.tokens import inverse_cdf
from worldrl.policies.token.waypoint import Augmented


def pick(obs: PolicyObs, rows: list[int]) -> PolicyObs:
    return PolicyObs(obs.image[rows], obs.command[rows], [obs.instruction[row] for row in rows])


def test_policy_meets_its_protocol(policy):
    assert isinstance(policy, TrainablePolicy)


@pytest.mark.parametrize("temperature", [0.5, 1.6])
def test_the_likelihood_holds_the_distribution_that_is_drawn_from(policy, make_obs, temperature):
    obs = make_obs()
    chunk = policy.act(obs, generators=row_streams(0, ["act"], 5), temperature=temperature)
    found = policy.likelihood(obs, chunk.token, temperature=temperature)
    torch.testing.assert_close(found.logp.detach(), chunk.logp)
    expected = policy.log_softmax(obs, temperature=temperature)
    torch.testing.assert_close(found.logits.log_softmax(dim=-1), expected)


def test_actions_are_in_the_datas_own_range_and_never_the_networks(policy, config, statistics, make_obs):
    """Elsewhere normalised numbers were sent to the robot as they are."""
    low, high = statistics.action_low, statistics.action_high
    action = policy.act(make_obs(), generators=row_streams(0, ["act"], 5), temperature=1.6).action
    assert bool(((action >= low - 1e-6) & (action <= high + 1e-6)).all())
    far = replace(statistics, action_low=low / 4, action_high=high / 4)
    other = TokenPolicy(config, far)
    other.load_state_dict(
        {**policy.state_dict(), **{k: v for k, v in other.state_dict().items() if k.startswith("action_")}}
    )
    moved = other.eval().act(make_obs(), generators=row_streams(0, ["act"], 5), temperature=1.6).action
    torch.testing.assert_close(moved, action / 4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
def test_log_prob_agrees_with_act(policy, make_obs, temperature):
    obs = make_obs()
    chunk = policy.act(obs, generators=row_streams(0, ["act"], 5), temperature=temperature)

    logp = policy.log_prob(obs, chunk.token, temperature=temperature)

    assert chunk.logp.shape == (5, 3, 7)
    assert logp.requires_grad
    torch.testing.assert_close(logp.detach(), chunk.logp)
    torch.testing.assert_close(chunk.action, policy.decode(chunk.token))


def test_token_probabilities_sum_to_one_and_still_dimension_is_certain(policy, make_obs):
    obs = make_obs(2)
    token = torch.zeros(2, 3, 7, dtype=torch.int64)

    total = sum(policy.log_prob(obs, token + i).exp() for i in range(policy.config.bins))

    torch.testing.assert_close(total, torch.ones(2, 3, 7))
    assert (policy.log_prob(obs, token)[:, :, 4] == 0).all()


def test_entropy_is_that_of_the_probabilities(policy, make_obs):
    obs = make_obs(2)
    token = torch.zeros(2, 3, 7, dtype=torch.int64)
    probability = torch.stack([policy.log_prob(obs, token + i, temperature=2.0).exp() for i in range(9)])

    expected = torch.special.entr(probability).sum(dim=0)

    torch.testing.assert_close(policy.entropy(obs, temperature=2.0), expected)
    assert (policy.entropy(obs)[:, :, 4] == 0).all()


def test_greedy_takes_the_most_probable_tokens(policy, make_obs):
    obs = make_obs()
    greedy = policy.act(obs, generators=None)

    for delta in range(1, policy.config.bins):
        other = (greedy.token + delta) % policy.config.bins
        assert (policy.log_prob(obs, other) <= greedy.logp).all()


def test_sampling_follows_the_probabilities(policy, make_obs):
    obs = pick(make_obs(1), [0] * 4000)
    token = policy.act(obs, generators=row_streams(3, ["act"], 4000), temperature=1.3).token

    frequency = torch.nn.functional.one_hot(token, 9).double().mean(dim=0)  # [L, A, bins]
    expected = policy.log_softmax(pick(obs, [0]), temperature=1.3)[0].exp().double()

    # Four standard errors of a frequency over 4,000 draws, and a little for the rarest bins.
    assert ((frequency - expected).abs() <= 4 * (expected * (1 - expected) / 4000).sqrt() + 1e-3).all()


def test_temperature_flattens(policy, make_obs):
    cold, warm = (policy.entropy(make_obs(), temperature=t).sum() for t in (0.5, 2.0))

    assert cold < warm


def test_rows_do_not_depend_on_their_neighbours(policy, make_obs):
    obs, generators = make_obs(), row_streams(0, ["act"], 5)
    whole = policy.act(obs, generators=generators)
    order = [3, 0, 4]
    other = make_obs(3, seed=9)
    mixed = PolicyObs(
        torch.cat([other.image, obs.image[order]]),
        torch.cat([other.command, obs.command[order]]),
        [*other.instruction, *(obs.instruction[i] for i in order)],
    )
    fresh = row_streams(0, ["act"], 5)

    part = policy.act(mixed, generators=[*row_streams(1, ["x"], 3), *(fresh[i] for i in order)])

    assert torch.equal(part.token[3:], whole.token[order])
    torch.testing.assert_close(part.logp[3:], whole.logp[order], atol=1e-5, rtol=1e-5)


def test_one_uniform_draw_per_token_is_consumed(policy, make_obs):
    generator = stream(0, "row")
    policy.act(make_obs(1), generators=[generator])
    reference = stream(0, "row")
    torch.rand(3, 7, generator=reference)

    assert torch.equal(torch.rand(4, generator=generator), torch.rand(4, generator=reference))


def test_same_streams_give_the_same_bits(policy, make_obs):
    first, second = (policy.act(make_obs(), generators=row_streams(0, ["act"], 5)) for _ in range(2))

    assert torch.equal(first.token, second.token)
    assert torch.equal(first.logp, second.logp)


def test_inverse_cdf_by_hand():
    probability = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0])
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.9, 0.99999994])

    assert inverse_cdf(probability.expand(5, 5), uniform).tolist() == [1, 1, 3, 3, 3]


def test_gradient_of_log_prob_matches_finite_differences(policy, make_obs):
    exact = copy.deepcopy(policy).double()
    obs = make_obs(2)
    token = exact.act(obs, generators=row_streams(0, ["act"], 2)).token
    layers = [exact.decoder[4].weight, exact.image_encoder.query.weight, exact.image_encoder.blocks[0].film.weight,
              exact.instruction_encoder.qkv.weight]  # fmt: skip

    def objective() -> torch.Tensor:
        return exact.log_prob(obs, token, temperature=1.6).sum()

    gradients = torch.autograd.grad(objective(), layers)
    for layer, gradient in zip(layers, gradients, strict=True):
        direction = torch.randn(layer.shape, generator=stream(0, "direction"), dtype=torch.float64)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                layer += sign * 1e-6 * direction
                values.append(objective())
                layer -= sign * 1e-6 * direction
        torch.testing.assert_close((values[0] - values[1]) / 2e-6, (gradient * direction).sum(), rtol=1e-4, atol=1e-6)


def test_instruction_image_and_command_all_matter(policy, make_obs):
    obs = make_obs(1)
    base = policy.logits(obs)
    changes = [
        replace(obs, instruction=["lift the blue block"]),
        replace(obs, image=255 - obs.image),
        replace(obs, command=obs.command + 0.1),
    ]

    for changed in changes:
        assert (policy.logits(changed) - base).abs().max() > 1e-3


def test_hidden_command_does_not_matter(config, statistics, make_obs):
    policy, obs = TokenPolicy(replace(config, waypoint=False), statistics).eval(), make_obs(1)
    hidden = Augmented(torch.zeros(1).bool(), torch.zeros(1, 7), [torch.zeros(1, 2).long()])

    other = policy.logits(replace(obs, command=obs.command + 0.1), augmented=hidden)

    assert torch.equal(policy.logits(obs, augmented=hidden), other)
    assert not torch.equal(policy.logits(obs), other)


def test_saved_policy_loads_to_the_same_bits(policy, make_obs, tmp_path: Path):
    policy.save(tmp_path / "policy")
    loaded = TokenPolicy.load(tmp_path / "policy", "cpu")

    assert loaded.config == policy.config
    assert all(
        torch.equal(a, b) for a, b in zip(policy.state_dict().values(), loaded.state_dict().values(), strict=True)
    )
    assert torch.equal(policy.act(make_obs(), generators=None).logp, loaded.act(make_obs(), generators=None).logp)
    stored = json.loads((tmp_path / "policy" / "config.json").read_text())
    assert ActionSpec.from_json(stored.pop("actions")) == policy.actions == TOOL_ACTIONS
    assert stored.pop("observation") == policy.observation.to_json()
    assert TokenPolicyConfig(**{k: v for k, v in stored.items() if k not in ("schema", "kind")}) == policy.config


def test_a_folder_that_does_not_say_its_actions_is_of_seven_changes(policy, make_obs, tmp_path: Path):
    """As every policy that was saved before robots had a say."""
    write_artefact(tmp_path / "old", kind="policy", config=asdict(policy.config), tensors=policy.state_dict())
    loaded = TokenPolicy.load(tmp_path / "old", "cpu")
    assert loaded.actions == TOOL_ACTIONS
    assert torch.equal(policy.act(make_obs(), generators=None).logp, loaded.act(make_obs(), generators=None).logp)


def test_missing_statistics_are_an_error(policy, config, tmp_path: Path):
    policy.save(tmp_path / "policy")
    tensors = load_file(tmp_path / "policy" / "model.safetensors")
    del tensors["action_low"]
    write_artefact(tmp_path / "bare", kind="policy", config=vars(config), tensors=tensors)

    with pytest.raises(ArtefactError, match=r"statistics action_low .*missing"):
        TokenPolicy.load(tmp_path / "bare", "cpu")
    with pytest.raises(SettingError, match="statistics"):
        TokenPolicy(config, None)


def test_weights_of_another_size_are_an_error(policy, config, tmp_path: Path):
    wrong = vars(replace(config, hidden=16))
    write_artefact(tmp_path / "wrong", kind="policy", config=wrong, tensors=policy.state_dict())

    with pytest.raises(ArtefactError, match="do not fit"):
        TokenPolicy.load(tmp_path / "wrong", "cpu")


BAD = {
    "image-dtype": ("image: dtype", lambda o: replace(o, image=o.image.float())),
    "image-size": ("image: shape", lambda o: replace(o, image=o.image[:, :8])),
    "image-channels-first": ("image: shape", lambda o: replace(o, image=o.image.permute(0, 3, 1, 2))),
    "no-rows": ("image: must hold", lambda o: PolicyObs(o.image[:0], o.command[:0], [])),
    "command-shape": ("command: shape", lambda o: replace(o, command=o.command[:, :6])),
    "command-rows": ("command: shape", lambda o: replace(o, command=o.command[:1])),
    "command-dtype": ("command: dtype", lambda o: replace(o, command=o.command.long())),
    "command-nan": (r"command\[1\]: must be finite", lambda o: replace(o, command=o.command.index_fill(0, torch.tensor([1]), torch.nan))),
    "instruction-empty": (r"instruction\[1\]", lambda o: replace(o, instruction=["go", "  "])),
    "instruction-count": ("instruction: must be 2", lambda o: replace(o, instruction=["go"])),
    "instruction-string": ("one string", lambda o: replace(o, instruction="go")),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_observations_are_named(policy, make_obs, case):
    message, spoil = BAD[case]

    with pytest.raises(ObservationError, match=message):
        policy.act(spoil(make_obs(2)), generators=None)


def test_bad_arguments_are_named(policy, make_obs):
    obs = make_obs(2)
    with pytest.raises(SettingError, match="generators: one per row, so 2"):
        policy.act(obs, generators=row_streams(0, ["act"], 3))
    with pytest.raises(SettingError, match="temperature"):
        policy.act(obs, generators=None, temperature=0.0)
    for token in (torch.zeros(2, 3, 7), torch.zeros(2, 7, dtype=torch.int64), torch.full((2, 3, 7), 9)):
        with pytest.raises(SettingError, match="token"):
            policy.log_prob(obs, token)


@pytest.mark.parametrize(("name", "value"), [("bins", 1), ("chunk_length", 0), ("image_size", 30), ("hidden", 0)])
def test_config_out_of_range(name, value):
    with pytest.raises(SettingError, match=f"policy.{name}"):
        TokenPolicyConfig(**{name: value})


@pytest.mark.gpu
def test_cpu_and_gpu_choose_the_same_tokens(policy, make_obs):
    obs = make_obs(64)
    on_gpu = copy.deepcopy(policy).cuda()
    for temperature, seed in itertools.product((1.0, 1.6), range(5)):
        here, there = (
            p.act(obs, generators=row_streams(seed, ["act"], 64), temperature=temperature) for p in (policy, on_gpu)
        )
        # A draw within rounding of a bin's edge may fall on either side; that is one token in a million.
        assert (here.token == there.token.cpu()).float().mean() > 0.999
        torch.testing.assert_close(here.logp, there.logp.cpu(), atol=5e-3, rtol=1e-3)
