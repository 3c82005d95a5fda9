"""Units under test: ``worldrl.jobs.environment.methods`` and ``worldrl.recipes.rl_parts``: what can be named, and what is said of it."""

import json
import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import worldrl
from worldrl import registry
from worldrl.cli import COMMANDS, main
from worldrl.core.errors import SettingError
from worldrl.jobs.environment.methods import KINDS, MethodsSettings, parts_of
from worldrl.jobs.environment.methods import main as list_methods
from worldrl.jobs.motion.align_world_model import AlignWorldModelSettings
from worldrl.jobs.vla.settings import TrainVlaSettings
from worldrl.methods.rl.config import PartNames
from worldrl.recipes.rl_parts import ALIGNMENT, IMPROVEMENT, REGISTRIES, open_parts
from worldrl.registry import Registry
from worldrl.settings import compose


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_tells_its_equation_its_paper_and_its_file(kind):
    parts = parts_of(kind)
    assert [part.name for part in parts] == KINDS[kind].names()
    for part in parts:
        assert part.what
        assert part.equation, part.name
        assert part.paper, part.name
        assert (Path(worldrl.__file__).parent / part.file).is_file()


@pytest.mark.parametrize(
    ("command", "settings", "group", "needed"),
    [
        ("align-world-model", AlignWorldModelSettings, ALIGNMENT, {}),
        ("train-vla", TrainVlaSettings, IMPROVEMENT, {"improvement.algorithm": "grpo"}),
    ],
)
def test_every_name_is_a_setting_or_refused_with_what_it_needs_and_every_other_is_refused(
    command, settings, group, needed
):
    for kind, known in REGISTRIES.items():
        taken = []
        for name in known.names():
            try:
                made = compose(command, settings, {f"{group}.{kind}": name, **needed})
            except SettingError as error:
                assert re.match(rf"{group}\.{kind}={name} needs .+: .+, or {group}", str(error))  # noqa: PT017
                continue
            for word in group.split("."):
                made = getattr(made, word)
            assert getattr(made, kind) == name
            taken.append(name)
        assert taken
        with pytest.raises(SettingError, match=rf"{group}\.{kind}: unknown value 'nothing'"):
            compose(command, settings, {f"{group}.{kind}": "nothing", **needed})


def test_every_part_of_the_settings_is_looked_up():
    assert set(REGISTRIES) == set(vars(PartNames()))


def test_json_goes_to_standard_output_and_the_table_to_the_console(capsys):
    assert main(["methods", "json=true"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"kind": "loss", "name": "nft"}.items() <= next(r for r in rows if r["name"] == "nft").items()
    assert main(["methods", "kind=reward"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "rewards=[NAME]" in told.err
    assert "EVA (2603.17808)" in told.err
    assert main(["methods", "kind=los"]) == 2
    assert "did you mean 'loss'" in capsys.readouterr().err
    assert COMMANDS["methods"].schema({}) is MethodsSettings


def test_another_packages_part_is_used_and_listed(monkeypatch):
    own: Registry[object] = Registry("advantage estimator", "worldrl.advantage_estimators", "parts.advantage={}")
    point = EntryPoint("theirs", "worldrl.methods.rl.advantages:mean_only", "worldrl.advantage_estimators")
    monkeypatch.setattr(registry, "_plugins", lambda group: [point] if group == own.group else [])
    monkeypatch.setitem(REGISTRIES, "advantage", own)
    monkeypatch.setitem(KINDS, "advantage", own)
    assert open_parts(PartNames(advantage="theirs"), ALIGNMENT).advantage.__name__ == "mean_only"
    (row,) = list_methods(MethodsSettings(kind="advantage"))["parts"]
    assert (row["name"], row["paper"]) == ("theirs", "Dr. GRPO (2503.20783); WoVR's text")
