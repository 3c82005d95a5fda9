"""Unit under test: ``worldrl.registry``."""

import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from worldrl import registry
from worldrl.core.errors import SettingError
from worldrl.registry import Registry

ROOT = Path(__file__).parents[1]


@pytest.fixture
def parts() -> Registry[object]:
    made: Registry[object] = Registry("part", "worldrl.no_such_group")
    made.register("fraction", "fractions:Fraction")
    made.register("colour", "colorsys:rgb_to_hsv")
    return made


def test_get_imports_only_the_chosen_part(parts: Registry[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    import fractions

    assert parts.get("fraction") is fractions.Fraction
    assert parts.names() == ["colour", "fraction"]
    assert "colorsys" not in sys.modules


def test_unknown_name_lists_the_nearest(parts: Registry[object]) -> None:
    with pytest.raises(SettingError, match=r"unknown part 'fracton'; did you mean 'fraction'\?"):
        parts.get("fracton")


def test_unknown_name_far_from_all_lists_all(parts: Registry[object]) -> None:
    with pytest.raises(SettingError, match="valid names: colour, fraction"):
        parts.get("zzz")


def test_duplicate_name_shows_both_targets(parts: Registry[object]) -> None:
    with pytest.raises(SettingError, match=r"registered twice: 'fractions:Fraction' and 'decimal:Decimal'"):
        parts.register("fraction", "decimal:Decimal")
    assert parts.get("fraction").__name__ == "Fraction"


@pytest.mark.parametrize("target", ["fractions.Fraction", "fractions:", ":Fraction", ""])
def test_target_of_another_form_is_refused(parts: Registry[object], target: str) -> None:
    with pytest.raises(SettingError, match="module:attribute"):
        parts.register("other", target)


def test_missing_attribute_names_module_and_attribute(parts: Registry[object]) -> None:
    parts.register("gone", "fractions:Gone")
    with pytest.raises(SettingError, match="fractions has no 'Gone'"):
        parts.get("gone")


def _plug(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    def plugins(group: str) -> list[EntryPoint]:
        return [EntryPoint(name, value, group) for name, value in entries]

    monkeypatch.setattr(registry, "_plugins", plugins)


def test_plugin_is_found_and_imported_at_use(parts: Registry[object], monkeypatch: pytest.MonkeyPatch) -> None:
    _plug(monkeypatch, ("plugged", "no_such_module:thing"))
    assert "plugged" in parts.names()
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        parts.get("plugged")


def test_plugin_may_not_replace_a_part(parts: Registry[object], monkeypatch: pytest.MonkeyPatch) -> None:
    _plug(monkeypatch, ("fraction", "evil:thing"))
    with pytest.raises(SettingError, match="registered twice"):
        parts.names()


def test_real_entry_points_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[worldrl.test_group]\nhalf = fractions:Fraction\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found: Registry[object] = Registry("part", "worldrl.test_group")
    assert found.names() == ["half"]
    assert found.get("half").__name__ == "Fraction"


def test_the_groups_are_the_documented_ones() -> None:
    groups = {made.group for made in vars(registry).values() if isinstance(made, Registry)}
    kinds = ("world_models", "policies", "rewards", "video_rewards", "algorithms", "terminations")
    of_rl = (
        *("reward_mixes", "advantage_estimators", "sample_selectors", "start_samplers", "budget_allocators"),
        *("rollout_schedules", "log_probs", "policy_losses", "update_controllers", "alignments", "improvements"),
    )
    assert groups == {f"worldrl.{kind}" for kind in (*kinds, *of_rl)}


def test_every_registered_part_exists() -> None:
    for made in [made for made in vars(registry).values() if isinstance(made, Registry)]:
        for name in made.names():
            assert callable(made.get(name))


def test_worldrl_registers_its_own_parts_in_code_not_as_plugins() -> None:
    assert "entry-points" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
