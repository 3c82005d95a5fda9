import subprocess
import sys

import gymnasium
import pytest

import worldrl_envs
from worldrl_envs.errors import UnknownNameError
from worldrl_envs.tasks import TASKS


def test_every_task_is_registered_with_its_horizon():
    for name, spec in TASKS.items():
        registered = gymnasium.spec(f"worldrl/{name}-v0")
        assert registered.max_episode_steps == spec.horizon
        assert registered.kwargs == {"task": name}


def test_kinds_partition_the_twelve_tasks():
    by_kind = [name for kind in worldrl_envs.kinds() for name in worldrl_envs.task_names(kind)]
    assert sorted(by_kind) == sorted(worldrl_envs.task_names())
    assert len(by_kind) == 12


def test_unknown_names_name_the_nearest():
    with pytest.raises(UnknownNameError, match="nearest is 'PickRedCube'"):
        worldrl_envs.get_task("PickRedCub")
    with pytest.raises(UnknownNameError, match="nearest is 'spatial'"):
        worldrl_envs.task_names("spatal")


@pytest.mark.parametrize("name", TASKS)
def test_paraphrases_are_enough_and_split(name):
    spec = TASKS[name]
    assert len(set(spec.paraphrases)) == len(spec.paraphrases) >= 8
    assert len(spec.phrases.held_out) >= 2
    assert not set(spec.phrases.train) & set(spec.phrases.held_out)
    assert spec.instruction not in spec.paraphrases


def test_import_is_light():
    code = "import sys, worldrl_envs; print([m for m in ('mujoco', 'torch', 'worldrl', 'cv2') if m in sys.modules])"
    path = {"PYTHONPATH": str(next(p for p in worldrl_envs.__path__).rsplit("/", 1)[0])}
    out = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_colon_form():
    env = gymnasium.make("worldrl_envs:worldrl/PickRedCube-v0", obs="state")
    env.reset(seed=0)
    env.close()
