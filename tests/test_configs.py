"""Units under test: ``configs/`` and the composition in ``worldrl.settings``."""

import re
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from worldrl.cli import COMMANDS, main
from worldrl.core.errors import SettingError
from worldrl.paths import config_dir
from worldrl.settings import (
    Preset,
    as_plain,
    compose,
    compose_plain,
    fraction,
    non_negative,
    one_of,
    parse_overrides,
    positive,
    presets_of,
    required,
    setting,
    to_yaml,
)
from worldrl.usage import REQUIRED, describe, value_at

PRESETS = [preset.value for preset in Preset]
FILES = sorted(config_dir().rglob("*.yaml"))


def leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix.rstrip("."): tree}
    return {k: v for name, sub in tree.items() for k, v in leaves(sub, f"{prefix}{name}.").items()}


def fill(schema: type[Any], preset: str) -> dict[str, str]:
    """Overrides that give every required setting a value of its type."""
    examples = {"int": "1", "float": "1.0", "bool": "true"}
    needed = [row for row in describe(schema) if row.default == REQUIRED]
    return {"preset": preset, **{row.key: examples.get(row.type_text, "x") for row in needed}}


# --- the files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "preset"), [(name, preset) for name in COMMANDS for preset in presets_of(name)])
def test_every_preset_of_every_command_composes(command: str, preset: str) -> None:
    schema = COMMANDS[command].load()[1]
    settings = compose(command, schema, fill(schema, preset))
    assert type(settings) is schema
    assert is_dataclass(settings)


def test_folders_are_the_commands_and_files_the_presets() -> None:
    assert {folder.name for folder in config_dir().iterdir()} == set(COMMANDS)
    for command in COMMANDS:
        folder = config_dir() / command
        names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert names == {"config.yaml", *(f"preset/{preset}.yaml" for preset in presets_of(command))}
        assert {*presets_of(command)} >= {*PRESETS} - {"libero"}  # sizes are every command's


@pytest.mark.parametrize("command", COMMANDS)
def test_the_preset_for_libero_changes_something_or_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = COMMANDS[command].load()[1]
    acting = [name for name in COMMANDS if "libero" in presets_of(name)]
    _, listed = main([command, "--help", "all"]), capsys.readouterr().out
    assert ("tiny|cpu|gpu|wan|libero" in listed) == (command in acting)
    if command in acting:
        own, plain = (compose_plain(command, schema, fill(schema, preset)) for preset in ("libero", "cpu"))
        assert own != plain
        return
    with pytest.raises(
        SettingError, match=f"libero has no effect in {command}.*it has an effect in {', '.join(sorted(acting))}"
    ):
        compose(command, schema, fill(schema, "libero"))


def test_the_guide_names_the_commands_of_the_preset_for_libero() -> None:
    page = (config_dir().parent / "docs" / "guide" / "libero.md").read_text()
    (sentence,) = re.findall(r"`preset=libero` acts in ([^;.]+)", page)
    assert set(re.findall(r"`([\w-]+)`", sentence)) == {name for name in COMMANDS if "libero" in presets_of(name)}


@pytest.mark.parametrize("command", ["train-vla", "collect", "evaluate"])
def test_the_tasks_of_a_preset_are_of_its_own_suite(command: str) -> None:
    schema = COMMANDS[command].load()[1]

    def tasks(*given: str) -> list[str]:
        return compose_plain(command, schema, parse_overrides(["preset=tiny", *given]))["tasks"]

    assert "PickRedCube" in tasks()
    assert tasks("suite=embedded") == tasks()
    assert tasks("suite=fetch") == []
    assert tasks("suite=fetch", "tasks=[push]") == ["push"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(config_dir())))
def test_yaml_holds_data_only(path: Path) -> None:
    text = path.read_text()
    assert "_target_" not in text
    assert "${" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_yaml_holds_only_differences_from_the_dataclass(command: str) -> None:
    schema = COMMANDS[command].load()[1]
    defaults = {row.key: as_plain(row.default) for row in describe(schema)}
    base = yaml.safe_load((config_dir() / command / "config.yaml").read_text())
    base.pop("defaults")
    repeated = [key for key, value in leaves(base).items() if key and value == defaults[key]]
    for preset in presets_of(command):
        tree = yaml.safe_load((config_dir() / command / "preset" / f"{preset}.yaml").read_text()) or {}
        given = {**defaults, **leaves(base)}
        repeated += [
            f"{preset}: {key}" for key, value in leaves(tree).items() if key and value == given.get(key, REQUIRED)
        ]
    assert repeated == []


@pytest.mark.parametrize("command", COMMANDS)
def test_dataclass_keys_with_mapping_values_survive_composition(command: str) -> None:
    schema = COMMANDS[command].load()[1]
    settings = compose(command, schema, fill(schema, "tiny"))
    again = yaml.safe_load(to_yaml(settings))
    assert again == as_plain(settings)


@pytest.mark.parametrize("command", ["train-policy", "train-world-model", "train-vla"])
def test_tiny_preset_leaves_no_training_at_its_full_length(command: str) -> None:
    schema = COMMANDS[command].load()[1]
    plain = compose_plain(command, schema, fill(schema, "tiny"))
    trained = [
        row.key for row in describe(schema) if row.key.rpartition(".")[2] in ("steps", "outcome_steps", "codec_steps")
    ]
    long = {key: value_at(plain, key) for key in trained if not key.startswith(("wan.", "policy.", "fine_tuning."))}
    assert {key: steps for key, steps in long.items() if isinstance(steps, int) and steps > 20} == {}


# --- the composition -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Optimiser:
    """A frozen record, as rooms below jobs write them.

    Attributes:
        steps: how many
            updates.
    """

    steps: int = 10
    sizes: tuple[int, ...] = (4, 8)  # widths of the layers
    # share that is
    # left out
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.steps == 13:
            raise SettingError("steps: must not be thirteen")
        if not self.sizes:
            raise SettingError("rl.sizes must not be empty")


@dataclass
class CollectSettings:
    """Settings of a made-up job."""

    episodes: int = required("how many", made_by="worldrl collect")
    rl: Optimiser = setting(Optimiser(steps=20), "")
    rate: float = setting(0.5, "a fraction")
    where: Path = setting(Path("here"), "a folder")
    note: str | None = setting(None, "a remark")
    tasks: list[str] = setting(["lift"], "task names")
    weight: dict[str, float] = setting({}, "weight by task")
    preset: Preset = setting(Preset.cpu, "size")
    fast: bool = setting(False, "a switch")

    def __post_init__(self) -> None:
        fraction("rate", self.rate)


Made = Callable[..., CollectSettings]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Compose the made-up job from a configuration folder of its own."""
    presets = tmp_path / "collect" / "preset"
    presets.mkdir(parents=True)
    (tmp_path / "collect" / "config.yaml").write_text(
        "defaults:\n  - _self_\n  - preset: cpu\nfast: true\nrl:\n  steps: 7\n"
    )
    (presets / "cpu.yaml").write_text("# @package _global_\n")
    (presets / "tiny.yaml").write_text("# @package _global_\nrl:\n  steps: 2\n")
    (presets / "gpu.yaml").write_text("# @package _global_\nrl:\n  stepz: 2\n")
    monkeypatch.setattr("worldrl.settings.config_dir", lambda: tmp_path)

    def compose_it(*tokens: str) -> CollectSettings:
        return compose("collect", CollectSettings, parse_overrides(["episodes=3", *tokens]))

    return compose_it


def test_later_sources_win(made: Made) -> None:
    assert CollectSettings(1).rl.steps == 20
    assert made().rl.steps == 7
    assert made().fast is True
    assert made("preset=tiny").rl.steps == 2
    assert made("preset=tiny", "rl.steps=5").rl.steps == 5


def test_values_have_their_declared_types(made: Made) -> None:
    settings = made(
        "rl.sizes=[1,2,3]", "tasks=[push,lift]", "weight.lift=2", "rate=1", "where=/a b/c=(1),é", "preset=tiny"
    )
    assert settings.rl == Optimiser(2, (1, 2, 3))
    assert settings.tasks == ["push", "lift"]
    assert settings.weight == {"lift": 2.0}
    assert isinstance(settings.rate, float)
    assert settings.where == Path("/a b/c=(1),é")
    assert settings.preset is Preset.tiny


@pytest.mark.parametrize("text", ["it's", 'say "no"', "a=b, c", "[x", "${oc.env:HOME}", "\\", "1", "true", ""])
def test_text_is_taken_as_typed(made: Made, text: str) -> None:
    assert made(f"note={text}").note == text


def test_null_is_nothing_where_nothing_is_allowed(made: Made) -> None:
    assert made("note=null").note is None
    assert made("where=null").where == Path("null")


def test_instances_share_no_default() -> None:
    CollectSettings(1).tasks.append("push")
    assert CollectSettings(1).tasks == ["lift"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["rl.step=1"], r"collect has no setting 'rl.step'; did you mean 'rl.steps'\?"),
        (["preste=tiny"], r"did you mean 'preset'\?"),
        (["rl=3"], "no setting 'rl'"),
        (["weights.lift=3"], "no setting 'weights.lift'"),
        (["hydra.run.dir=x"], "no setting 'hydra.run.dir'"),
        (["rl.steps=many"], "^rl.steps must be int, got 'many'$"),
        (["rl.steps=1.5"], "^rl.steps must be int, got '1.5'$"),
        (["rl.steps=1,2"], "^rl.steps must be int, got '1,2'$"),
        (["rl.steps="], "^rl.steps must be int, got ''$"),
        (["fast=perhaps"], "^fast must be bool, got 'perhaps'$"),
        (["tasks=lift"], r"^tasks must be list of str, got 'lift'; a list is written 'tasks=\[lift\]'$"),
        (["weight.lift=heavy"], "^weight.lift must be str to float, got 'heavy'$"),
        (["preset=big"], "preset: unknown value 'big'; valid names: cpu, gpu, libero, tiny, wan"),
        (["rl.steps=-1"], "^rl.steps must be at least 0, got -1; give rl.steps=... in that range$"),
        (["rl.steps=13"], "^rl.steps: must not be thirteen$"),  # a record that does not know where it stands
        (["rl.sizes=[]"], "^rl.sizes must not be empty$"),  # and one that does
        (["rate=2"], r"rate must be in \[0, 1\], got 2;"),
        (["rate=nan"], r"rate must be in \[0, 1\], got nan"),
        (["rate=1", "rate=0"], "rate is given twice: '1' and '0'"),
        (["+rate=1"], r"cannot read '\+rate=1'; settings are written key=value"),
        (["~rate"], "cannot read '~rate'"),
        (["rate"], "cannot read 'rate'"),
        (["rate=${now:%Y}"], r"rate: '\$\{now:%Y\}' is an interpolation; give the value itself"),
        (["tasks=[a,,b]"], r"tasks: cannot read the list '\[a,,b\]'"),
        (["tasks=['a]"], "close quotes"),
        (["preset=gpu"], "configs/collect: .*stepz"),
    ],
)
def test_mistake_is_reported_in_one_line(made: Made, tokens: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        made(*tokens)
    assert "\n" not in str(caught.value)


def test_required_setting_is_asked_for(made: Made) -> None:
    with pytest.raises(SettingError, match=r"collect needs episodes; give episodes=\.\.\."):
        compose("collect", CollectSettings, {})


def test_composing_twice_leaves_nothing_behind(made: Made) -> None:
    made("rl.steps=5", "weight.lift=1")
    assert made() == made()
    assert made().weight == {}


def test_yaml_round_trip(made: Made) -> None:
    settings = made("rl.sizes=[1]", "note=${x}", "preset=tiny")
    tree = yaml.safe_load(to_yaml(settings))
    assert tree == as_plain(settings)
    assert tree["preset"] == "tiny"
    assert list(tree)[:3] == ["episodes", "rl", "rate"]


# --- describing ----------------------------------------------------------------------------------------------------


def test_description_covers_nested_fields_with_the_parents_defaults() -> None:
    rows = {row.key: row for row in describe(CollectSettings)}
    assert rows["rl.steps"].default == 20
    assert rows["rl.steps"].meaning == "how many updates."
    assert rows["rl.sizes"].meaning == "widths of the layers"
    assert rows["rl.dropout"].meaning == "share that is left out"
    assert rows["rl.sizes"].type_text == "list of int"
    assert rows["note"].type_text == "str or null"
    assert rows["preset"].type_text == "tiny|cpu|gpu|wan|libero"
    assert rows["weight"].type_text == "str to float"
    assert rows["where"].type_text == "path"
    assert rows["episodes"].default == REQUIRED


def test_value_at_a_missing_parent_is_none() -> None:
    assert value_at({"a": {"b": 1}}, "a.b") == 1
    assert value_at({"a": 1}, "a.b") is None


# --- checks --------------------------------------------------------------------------------------------------------


def test_checks_accept_their_range() -> None:
    positive("x", 1e-9)
    non_negative("x", 0)
    fraction("x", 0)
    fraction("x", 1)
    one_of("x", "a", {"a", "b"})


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_positive_refuses(value: float) -> None:
    with pytest.raises(SettingError, match="x must be positive, got"):
        positive("x", value)


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_non_negative_refuses(value: float) -> None:
    with pytest.raises(SettingError, match="x must be zero or more"):
        non_negative("x", value)


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan")])
def test_fraction_and_between_refuse(value: float) -> None:
    with pytest.raises(SettingError, match="between 0 and 1"):
        fraction("x", value)


def test_one_of_suggests() -> None:
    with pytest.raises(SettingError, match=r"x: unknown value 'grpoo'; did you mean 'grpo'\?"):
        one_of("x", "grpoo", ["grpo", "bc"])
