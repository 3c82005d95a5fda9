import contextlib
from types import SimpleNamespace

import numpy as np
import torch

from worldrl.core.rng import initial_weights, numpy_stream, on_device, row_noise, row_streams, stream, stream_seed


def test_a_name_always_gives_the_same_numbers_in_any_process(child):
    code = "from worldrl.core.rng import stream_seed; print(stream_seed(7, 'train', 3))"
    assert int(child(code).stdout) == stream_seed(7, "train", 3)
    assert stream_seed(0) == 4246866556266386882, "changing this breaks every recorded result"


def test_different_paths_give_different_seeds_in_range():
    paths = [(), ("a",), ("a", 1), ("a", 11), ("a", 1, 1), ("a1",), ("b",), (1, "a")]
    seeds = [stream_seed(seed, *path) for seed in (0, 1, -1, 10) for path in paths]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_new_consumer_moves_nobody():
    first = torch.randn(4, generator=stream(0, "policy", 5))
    torch.randn(100, generator=stream(0, "new", 5))
    assert torch.equal(torch.randn(4, generator=stream(0, "policy", 5)), first)


def test_the_global_generators_are_left_alone():
    state = torch.get_rng_state()
    stream(0, "x")
    row_noise(row_streams(0, ["x"], 2), (3,))
    numpy_stream(0, "x")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_rows_draws_do_not_depend_on_its_neighbours():
    four = row_noise(row_streams(3, ("imagine", 0), 4), (2, 5))
    two = row_noise(row_streams(3, ("imagine", 0), 2), (2, 5))
    assert four.shape == (4, 2, 5)
    assert four.dtype == torch.float32
    assert torch.equal(four[:2], two)
    alone = row_noise([stream(3, "imagine", 0, 3)], (2, 5))
    assert torch.equal(four[3:], alone)


def test_noise_is_standard_normal_and_uncorrelated_over_rows():
    noise = row_noise(row_streams(0, ["normal"], 50), (2000,))
    assert abs(noise.mean().item()) < 0.02
    assert abs(noise.std().item() - 1) < 0.02
    off_diagonal = np.corrcoef(noise.numpy()) - np.eye(50)
    assert np.abs(off_diagonal).max() < 0.12


def test_initial_weights_are_named_and_the_global_generator_gets_its_state_back():
    before = torch.get_rng_state()
    with initial_weights(0, "policy"):
        first = torch.nn.Linear(3, 3).weight
    torch.testing.assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
    torch.rand(7)
    with initial_weights(0, "policy"):
        again = torch.nn.Linear(3, 3).weight
    with initial_weights(0, "codec"):
        other = torch.nn.Linear(3, 3).weight
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_initial_weights_give_the_state_back_after_an_error():
    before = torch.get_rng_state()
    with contextlib.suppress(KeyError), initial_weights(0, "policy"):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)


def test_on_the_cpu_the_generator_is_the_same_one():
    generator = stream(0, "x")
    assert on_device(generator, torch.device("cpu")) is generator


def test_numpy_stream_is_named_too():
    assert numpy_stream(1, "a").random() == numpy_stream(1, "a").random()
    assert numpy_stream(1, "a").random() != numpy_stream(1, "b").random()


def test_a_generator_that_draws_there_already_is_kept():
    there = SimpleNamespace(device=torch.device("cuda"))
    assert on_device(there, torch.device("cuda")) is there
