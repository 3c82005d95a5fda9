"""Unit under test: ``workers/libero_states.py``, on files written as the vendor's are."""

import io
import pickle
import zipfile

import numpy as np
import pytest

from worldrl.workers.libero import facts
from worldrl.workers.libero.states import (
    DIGESTS,
    StatesError,
    check_digest,
    load_suite,
    read_pruned_init,
    states_digest,
)


def archive(path, program):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", program)


@pytest.fixture
def states():
    return np.random.default_rng(0).normal(size=(facts.STORED_STATES, 7))


def vendor_program(value):
    """Protocol 2, as the published files have it; their numpy said numpy.core."""
    return pickle.dumps(value, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def test_reads_what_is_stored(tmp_path, states):
    archive(tmp_path / "task.pruned_init", vendor_program(states))
    np.testing.assert_array_equal(read_pruned_init(tmp_path / "task.pruned_init"), states)


def test_a_program_is_refused_and_never_run(tmp_path):
    canary = tmp_path / "canary"

    class Attack:
        def __reduce__(self):
            return open, (str(canary), "w")

    archive(tmp_path / "task.pruned_init", pickle.dumps(Attack(), protocol=2))
    with pytest.raises(StatesError, match="not LIBERO's"):
        read_pruned_init(tmp_path / "task.pruned_init")
    assert not canary.exists()


def test_an_array_that_also_names_something_else_is_refused(tmp_path, states):
    whole = vendor_program(states)
    archive(tmp_path / "task.pruned_init", whole[:2] + b"cposix\nsystem\n0" + whole[2:])
    with pytest.raises(StatesError, match="not LIBERO's"):
        read_pruned_init(tmp_path / "task.pruned_init")


@pytest.mark.parametrize("shape", [(49, 7), (50, 6, 2), (50,)])
def test_another_shape_is_refused(tmp_path, shape):
    archive(tmp_path / "task.pruned_init", vendor_program(np.zeros(shape)))
    with pytest.raises(StatesError):
        read_pruned_init(tmp_path / "task.pruned_init")


def test_float32_truncation_and_damage_are_refused(tmp_path, states):
    path = tmp_path / "task.pruned_init"
    archive(path, vendor_program(states.astype(np.float32)))
    with pytest.raises(StatesError):
        read_pruned_init(path)
    program = vendor_program(states)
    archive(path, program[: len(program) // 2])
    with pytest.raises(StatesError):
        read_pruned_init(path)
    path.write_bytes(b"not a zip")
    with pytest.raises(StatesError, match="run setup again"):
        read_pruned_init(path)


def test_digest_sees_one_bit_one_name_and_the_order(states):
    base = states_digest({"a": states, "b": states})
    changed = states.copy()
    changed[3, 2] = np.nextafter(changed[3, 2], 9)
    assert base == states_digest({"a": states.copy(), "b": states})
    assert len({base, states_digest({"a": changed, "b": states}), states_digest({"b": states, "a": states})}) == 3
    assert set(DIGESTS) == set(facts.SUITES)


def test_states_of_another_benchmark_are_refused(tmp_path, states):
    with pytest.raises(StatesError, match="the benchmark's have"):
        check_digest("libero_goal", {"task": states})
    file = io.BytesIO()
    np.savez(file, task=states)
    (tmp_path / "libero_goal.npz").write_bytes(file.getvalue())
    with pytest.raises(StatesError, match="the benchmark's have"):
        load_suite(tmp_path / "libero_goal.npz", "libero_goal")
    (tmp_path / "libero_goal.npz").write_bytes(file.getvalue()[:-30])
    with pytest.raises(StatesError, match="worldrl setup libero"):
        load_suite(tmp_path / "libero_goal.npz", "libero_goal")
    with pytest.raises(StatesError, match="cannot be read"):
        load_suite(tmp_path / "none.npz", "libero_goal")
