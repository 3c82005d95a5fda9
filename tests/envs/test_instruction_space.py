"""Instructions arrive in asynchronous vectors, with shared memory and without, by every start method."""

import copy
import multiprocessing
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

from worldrl_envs.instruction_space import MAX_INSTRUCTION, InstructionSpace


def make_paraphrased():
    return gymnasium.make(
        "worldrl_envs:worldrl/PickRedCube-v0", image_size=8, instruction="paraphrase", max_episode_steps=2
    )


def observed(context, **kwargs):
    """Instructions of two rows over two episodes, as observed and as named in info."""
    envs = AsyncVectorEnv([make_paraphrased] * 2, context=context, **kwargs)
    seen = []
    try:
        obs, info = envs.reset(seed=3)
        for _ in range(4):
            assert envs.observation_space.contains(obs)
            seen.append((tuple(obs["instruction"]), tuple(info["instruction"].tolist())))
            obs, *_, info = envs.step(np.zeros((2, 7), np.float32))
    finally:
        envs.close()
    return seen


@pytest.mark.parametrize(
    ("context", "kwargs"),
    [
        ("spawn", {}),
        ("forkserver", {"copy": False}),
        ("spawn", {"shared_memory": False}),
        ("spawn", {"autoreset_mode": "SameStep"}),
    ],
)
def test_async_vectors_observe_the_instruction_of_each_row(context, kwargs):
    seen = observed(context, **kwargs)
    assert all(obs == info for obs, info in seen)
    assert len({row for obs, _ in seen for row in obs}) > 1


def test_make_vec_with_its_defaults_shows_the_instruction_of_two_arms():
    envs = gymnasium.make_vec(
        "worldrl/BimanualLiftPot-v0",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"context": "spawn"},
        image_size=8,
    )
    obs, info = envs.reset(seed=0)
    assert obs["instruction"] == tuple(info["instruction"]) != ("a" * MAX_INSTRUCTION,) * 2
    envs.close()


def test_a_batch_reads_the_memory_and_its_copy_does_not():
    space = gymnasium.spaces.Dict({"deep": gymnasium.spaces.Tuple([InstructionSpace(12, charset="abcé中")])})
    memory = create_shared_memory(space, n=3, ctx=multiprocessing)
    batch = read_from_shared_memory(space, memory, n=3)
    assert batch["deep"][0] == ("", "", "")
    write_to_shared_memory(space, 1, {"deep": ("abcé中",)}, memory)
    first = copy.deepcopy(batch)["deep"][0]
    write_to_shared_memory(space, 1, {"deep": ("a",)}, memory)
    live = batch["deep"][0]
    assert type(first) is tuple
    assert first == ("", "abcé中", "")
    assert live == ("", "a", "")
    assert (list(live), live[1], live[1:], len(live), "a" in live) == (["", "a", ""], "a", ("a", ""), 3, True)
    assert copy.copy(live) == pickle.loads(pickle.dumps(live)) == ("", "a", "")
    with pytest.raises(ValueError, match="at most 12 characters, got 13"):
        write_to_shared_memory(space, 0, {"deep": ("a" * 13,)}, memory)


def test_the_space_is_a_text_space():
    space = InstructionSpace()
    assert isinstance(space, gymnasium.spaces.Text)
    assert space == gymnasium.spaces.Text(256, charset=space.characters)
    assert space.sample() in space
    assert pickle.loads(pickle.dumps(space)) == space


@pytest.mark.parametrize("text", [5, None, "", "x" * 257, "🦾", "lift\nit", ["lift it"], b"lift it"])
def test_what_is_no_instruction_is_refused_with_a_reason(text):
    assert InstructionSpace().refusal(text)
    assert InstructionSpace().refusal("lift it") is None
