import json
from pathlib import Path

import pytest

from worldrl.algorithms.grpo import GrpoConfig
from worldrl.algorithms.improve import Improvement, imagined_env, improve
from worldrl.core.errors import SettingError
from worldrl.core.log import MetricLog, read_metrics
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.reset_store import ResetStore

SCRIPT = Path(__file__).parent / "improve_script.py"


def test_a_bandit_is_won(scripted_world, make_record, tiny_policy, tmp_path):
    """Success is a high first action at the chunk's two frames: 4 of 25 by chance, all once it is learned."""
    store = ResetStore([make_record(grey) for grey in (20, 120, 220)])
    env = imagined_env(scripted_world, store, SuccessRule(0.4, 2), rows=32, horizon={"PickRedCube": 4})
    grpo = GrpoConfig(groups=4, group_size=8, learning_rate=1e-2, keep_low=0, keep_high=1, epochs=2)
    config = Improvement(iterations=25, p_keyframe=0, checkpoint_every=25, grpo=grpo)
    with MetricLog(tmp_path, tensorboard=False) as log:
        history = improve(tiny_policy(), env, config, seed=0, folder=tmp_path / "checkpoints", log=log)
    assert sum(history[:3]) / 3 < 0.5
    assert sum(history[-3:]) / 3 > 0.9
    lines = read_metrics(tmp_path)
    assert [line["values"]["grpo/imagined_success"] for line in lines] == pytest.approx(history)


def test_a_killed_improvement_goes_on_bit_for_bit(run_python, tmp_path):
    """Killed in iteration 4 (checkpoint at 3), then in the third one of the next session, then left alone."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder, moment, code in ((whole, -1, 0), (cut, 4, -9), (cut, 2, -9), (cut, -1, 0)):
        folder.mkdir(exist_ok=True)
        ended = run_python(SCRIPT, folder, moment, cwd=tmp_path)
        assert ended.returncode == code, ended.stderr
    history = json.loads((whole / "history.json").read_text())
    assert len(history) == 7
    assert len(set(history)) > 1  # something was learned from
    assert json.loads((cut / "history.json").read_text()) == history
    weights = [(folder / "policy" / "model.safetensors").read_bytes() for folder in (whole, cut)]
    assert weights[0] == weights[1]
    lines = [[(line["step"], line["values"]) for line in read_metrics(folder)] for folder in (whole, cut)]
    assert lines[0] == lines[1]
    assert any(values["grpo/kept_rollouts"] > 0 for _, values in lines[0])


@pytest.mark.parametrize("over", [{"p_keyframe": 1.5}, {"iterations": 0}, {"checkpoint_every": 0}])
def test_impossible_settings_are_refused(over):
    with pytest.raises(SettingError, match=next(iter(over))):
        Improvement(**over)
