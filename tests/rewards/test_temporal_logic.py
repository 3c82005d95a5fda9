import math
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import stream
from worldrl.core.types import ImaginedVideos
from worldrl.registry import VIDEO_REWARDS
from worldrl.rewards.config import IdmConfig
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.kept_rules import KeptRules, rules_reward
from worldrl.rewards.motion.readout import Column
from worldrl.rewards.rules_file import Rules
from worldrl.rewards.temporal_logic import LONGEST, Rule, always, eventually, until

X = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0])
Y = torch.tensor([0.0, -1.0, 6.0, 2.0, 7.0])
TOUCH = torch.tensor([True, True, False, False, False])


def at_start(text, frame_s=0.5):
    return float(Rule("r", text).robustness({"x": X, "y": Y, "command.x": -X, "arm/x": X, "touch": TOUCH}, frame_s)[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x >= 2", 1),
        ("x <= 2", -1),
        ("2 <= x <= 3.5", 0.5),
        ("not x >= 2", -1),
        ("x >= 2 and y >= 2", -2),
        ("x >= 2 or y >= 2", 1),
        ("always(x >= 1.5)", -0.5),
        ("eventually(y >= 5)", 2),
        ("always(x >= 0, 0, 0.5)", 1),
        ("always(x >= 0, 1, 1.5)", 2),
        ("eventually(x >= 4, 0, 1)", -1),
        ("implies(x >= 4, y >= 9)", 1),
        ("implies(x >= 1, y >= 9)", -2),
        ("until(x >= 0, y >= 5)", 1),
        ("until(x >= 2, y >= 5)", -1),
        ("until(x >= 0, y >= 5, 0, 0.5)", -5),
        ("eventually(always(x >= 3.5))", 0.5),
        ("abs(command.x) - x >= 0", 0),
        ("norm(x, y + 4) <= 6", 1),
        ("rate(x) >= -3", -1),
        ("'arm/x' >= 2", 1),
        ("touch", math.inf),
        ("always(touch)", -math.inf),
        ("always(implies(touch, x >= 2))", -1),
        ("always(implies(not touch, x >= 1.5))", 0.5),
        ("-x * 2 / 3 >= -4", 2),
    ],
)
def test_robustness_is_that_of_the_definition(text, expected):
    assert at_start(text) == pytest.approx(expected)


def by_definition(hold, then, first, last, t):
    """Until of the module's docstring, written out."""
    steps = len(hold)
    best = -math.inf
    for u in range(t + first, min(t + last, steps - 1) + 1):
        best = max(best, min([float(then[u]), *map(float, hold[t:u])]))
    return best


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 3), (2, 2), (1, 30), (7, 9), (40, 50)])
def test_windows_are_those_of_the_definition_at_every_frame(first, last):
    hold, then = torch.randn(2, 12, generator=stream(0, "signals"))
    expected = [by_definition(hold, then, first, last, t) for t in range(12)]
    torch.testing.assert_close(until(hold, then, first, last), torch.tensor(expected))
    free = torch.full_like(hold, math.inf)
    torch.testing.assert_close(eventually(then, first, last), until(free, then, first, last))
    torch.testing.assert_close(always(then, first, last), -eventually(-then, first, last))


def test_without_a_window_the_rest_of_the_recording_counts():
    torch.testing.assert_close(always(X), torch.tensor([1.0, 1, 2, 4, 4]))
    torch.testing.assert_close(eventually(X), torch.tensor([5.0, 5, 5, 5, 4]))


def test_many_recordings_at_once_are_each_as_alone():
    both = torch.stack([X, Y])
    together = Rule("r", "always(x >= 1, 0, 1)").robustness({"x": both}, 0.5)
    alone = [Rule("r", "always(x >= 1, 0, 1)").robustness({"x": one}, 0.5) for one in both]
    torch.testing.assert_close(together, torch.stack(alone))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("always(x >=", "cannot be read"),
        ("always(x)", "'x' is neither kept nor broken; compare numbers"),
        ("x > 2", "needs >= or <="),
        ("always(z >= 2)", "no signal 'z'"),
        ("always(command.y >= 2)", "no signal 'command.y'; did you mean 'command.x'"),
        ("always(x >= 2, 1)", "always needs 1 formula, and two times"),
        ("implies(x >= 2)", "implies needs 2 formulas"),
        ("implies(x >= 2, y >= 2, 0, 1)", "implies needs 2 formulas"),
        ("always(x >= 2, 2, 1)", "a window goes from a time to a later one"),
        ("always(x >= 2, -1, 1)", "a window goes from a time to a later one"),
        ("always(x >= 2, 0.1, 0.2)", "no frame lies between 0.1 and 0.2 s"),
        ("rate(x, y) >= 2", "rate needs one value"),
        ("always(touch >= 1)", "'touch' is yes or no"),
        ("x ** 2 >= 2", "is no number"),
        ("x >= True", "is no number"),
        ("__import__('os').system('false') >= 1", "is no number"),
        ("always(x >= (lambda: 1)())", "is no number"),
        ("+".join(["x"] * LONGEST), f"at most {LONGEST}"),
    ],
)
def test_what_decides_nothing_is_refused_with_the_rule(text, message):
    with pytest.raises(SettingError, match=r"rules\.r: ") as refusal:
        Rule("r", text).check(("x", "y", "command.x"), ("touch",), frame_s=0.5)
    assert message in str(refusal.value)


@pytest.mark.parametrize("text", ["(" * 190 + "x >= 1" + ")" * 190, "not " * 120 + "x >= 1", "-" * 490 + "x >= 1"])
def test_a_rule_nested_as_deeply_as_its_length_allows_is_read(text):
    Rule("r", text).check(("x",), frame_s=0.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rules: [", "not readable as YAML"),
        ("[1, 2]", "names no rules"),
        ("rules: {}", "names no rules"),
        ("rules: {a: 3}", "a needs a name and a text"),
        ("rules: {a: x >= 1}\nmore: 1", "unknown field 'more'"),
        ("rules: {a: x >= 1}\ninverse_dynamics: [1]", "inverse_dynamics must be a folder"),
        ("rules: {a: always(x}", "rules.a"),
        ("rules: !!python/object/apply:os.system ['false']", "not readable as YAML"),
    ],
)
def test_a_file_that_states_no_rules_is_refused(tmp_path, content, message):
    (tmp_path / "rules.yaml").write_text(content)
    with pytest.raises(SettingError, match="rules") as refusal:
        Rules.read(tmp_path / "rules.yaml")
    assert message in str(refusal.value)
    with pytest.raises(SettingError, match="No such file"):
        Rules.read(tmp_path / "absent.yaml")


# --- as a reward of generated videos -------------------------------------------------------------------------------------


class Brightness:
    """Decodes a height from the brightness of a frame."""

    basis = None
    columns = (Column("state", 2, "z"),)

    def decode(self, frames):
        return SimpleNamespace(mean=frames.float().mean(dim=(2, 3, 4))[..., None] / 100)


def test_as_a_reward_a_rule_scores_the_decoded_motion():
    frames = torch.tensor([[50, 60, 90], [100, 20, 150]], dtype=torch.uint8).view(2, 3, 1, 1, 1).expand(2, 3, 4, 4, 3)
    videos = ImaginedVideos(frames, torch.zeros(2, 2, 1, 1, 1), 0.1, ["a", "b"])
    reward = KeptRules(Brightness(), [Rule("low", "always(z <= 1)"), Rule("up", "eventually(z >= 0.8)")])
    assert reward.names == ("low", "up")
    torch.testing.assert_close(reward.score(videos), torch.tensor([[0.1, 0.1], [-0.5, 0.7]]))


def test_a_file_of_rules_makes_the_reward_of_its_inverse_dynamics(tmp_path):
    columns = (Column("state", 0, "x"), Column("state", 2, "z"))
    idm = InverseDynamics(IdmConfig(width=8, blocks=1, keypoints=2, value_width=2, hidden=8), columns)
    idm.save(tmp_path / "idm")
    file = tmp_path / "rules.yaml"
    file.write_text("rules: {high: always(z >= 0.1), near: always(x <= 0.6)}\ninverse_dynamics: idm\n")
    assert VIDEO_REWARDS.get("rules") is rules_reward
    assert rules_reward(str(file), [], torch.device("cpu")).names == ("high", "near")
    assert rules_reward(str(file), ["near"], torch.device("cpu")).names == ("near",)
    with pytest.raises(SettingError, match="did you mean 'high'"):
        rules_reward(str(file), ["hihg"], torch.device("cpu"))
    file.write_text("rules: {high: always(y >= 0.1)}\ninverse_dynamics: idm\n")
    with pytest.raises(SettingError, match="no signal 'y'"):
        rules_reward(str(file), [], torch.device("cpu"))
    file.write_text("rules: {high: always(z >= 0.1)}\n")
    with pytest.raises(SettingError, match="lacks inverse_dynamics"):
        rules_reward(str(file), [], torch.device("cpu"))
    with pytest.raises(SettingError, match=r"folders\.rules"):
        rules_reward("", [], torch.device("cpu"))
    file.write_text("rules: {high: always(z >= 0.1)}\ninverse_dynamics: absent\n")
    with pytest.raises(ArtefactError):
        rules_reward(str(file), [], torch.device("cpu"))
