"""Plain technical English in documents and messages, one name per thing, and old names that still work.

Units under test: every document, every text that the program can show, ``scripts/check_language.py`` itself, ``worldrl.aliases`` and
``worldrl.core.renames``.
"""

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from worldrl.aliases import ALIASES, OLD_COMMANDS, OLD_VALUES, current_tokens
from worldrl.cli import COMMANDS, default_run_dir, main
from worldrl.core.errors import RunDirectoryError, SettingError
from worldrl.core.renames import (
    RESULTS,
    SCORES,
    current_config,
    current_key,
    current_results,
    current_value,
    first_name,
)
from worldrl.core.storage.artefact import read_config, write_artefact
from worldrl.core.storage.run import RunDirectory
from worldrl.rewards.execution_critic import ExecutionConfig
from worldrl.rollout.trust.confidence import CONFIDENCE_SCORES
from worldrl.settings import as_plain
from worldrl.usage import bare_hint, describe
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.wan.config import WanConfig

ROOT = Path(__file__).parents[1]
CODE_TEXTS = {
    "worldrl/old_modules.py",
    "worldrl/evaluation/conventions/conventions.py",
    "worldrl/workers/link/rendering.py",
}
"""Files whose strings are code: formulas of conventions, a program for another process."""
INSTRUCTIONS = {"envs/worldrl_envs/language.py", "envs/worldrl_envs/bimanual/language.py"}
"""Files whose strings are instructions that policies were trained on."""


def load_checker():
    """Load the script by its path, as ``python scripts/check_language.py`` would."""
    spec = importlib.util.spec_from_file_location("check_language", ROOT / "scripts" / "check_language.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checker = load_checker()
PAGES = checker.pages([ROOT / name for name in ("docs", "README.md", "CONTRIBUTING.md", "SECURITY.md")])


# --- documents -----------------------------------------------------------------------------------------------------


def test_every_page_is_plain_english():
    found = {page.relative_to(ROOT): checker.faults_of_page(page.read_text(encoding="utf-8")) for page in PAGES}
    assert {page: faults for page, faults in found.items() if faults} == {}


def test_the_changelog_is_plain_english():
    faults = checker.faults_of_page((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert [fault for fault in faults if not fault.endswith(f"words, {checker.MAX_PAGE} at most")] == []


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert checker.word_count(text) <= 700
    prose = checker.FENCE.sub("", text).split("\n")
    assert [line for line in prose if len(line) > checker.MAX_LINE] == []


# --- messages ------------------------------------------------------------------------------------------------------


def messages(source: str) -> Iterator[str]:
    """Strings of a source file that hold a blank and are no docstrings; f-strings joined, with X for what is put in."""
    tree = ast.parse(source)
    silent: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                silent.add(id(statement.value))
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values))
            silent |= {id(part) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            found.append(node.value)
    yield from (text for text in found if " " in text.strip())


def faults_of_message(text: str) -> list[str]:
    """Faults of each line of a message."""
    return [fault for line in text.split("\n") for fault in checker.faults_of_prose(line)]


SOURCES = sorted([*(ROOT / "worldrl").rglob("*.py"), *(ROOT / "envs").rglob("*.py")])


def test_messages_are_plain_english():
    read = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in SOURCES}
    texts = [(name, text) for name in read.keys() - CODE_TEXTS - INSTRUCTIONS for text in messages(read[name])]
    assert [(name, fault) for name, text in texts for fault in faults_of_message(text)] == []


def test_names_of_tests_have_no_replaced_words():
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))]
    names = {name for source in sources for name in re.findall(r"def (test_\w+)", source)}
    assert "test_names_of_tests_have_no_replaced_words" in names
    assert sorted(name for name in names if checker.REPLACED.search(name.replace("_", " "))) == []


def test_docstrings_and_comments_have_no_replaced_words():
    own = [*SOURCES, *(path for name in ("scripts", "tests") for path in sorted((ROOT / name).rglob("*.py")))]
    found = {str(path.relative_to(ROOT)): checker.faults_of_source(path.read_text(encoding="utf-8")) for path in own}
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_help_is_plain_english(command):
    rows = describe(COMMANDS[command].load()[1])
    texts = [COMMANDS[command].summary, *(row.meaning for row in rows)]
    assert [fault for text in texts for fault in faults_of_message(text)] == []
    names = " ".join(part for row in rows for part in row.key.split("."))
    assert [match[0] for match in checker.REPLACED.finditer(names.replace("_", " "))] == []


# --- the checker ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (" ".join(["word"] * 31) + ".", "31 words"),
        ("The gain is +3 [1, 5] and +4 [2, 6].", "two intervals"),
        ("The world model dreams of success.", "replaced word 'dreams'"),
        ("It has one juror at most.", "replaced word 'juror'"),
        ("| a cell | The run goes on |", "replaced word 'goes on'"),
        ("short " * 30 + "\n", "180 characters"),
        ("word. " * 1501, "1501 words"),
    ],
)
def test_planted_fault_of_a_page_is_found(text, fault):
    assert any(fault in found for found in checker.faults_of_page(text))


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(["word " * 15] * 2) + ".",
        "The gain is +3 [1, 5]. The other is +4 [2, 6].",
        "`policy_rollouts.npz` holds imagined rollouts.",
        "```\nthe dream goes on, " + "x" * 200 + "\n```\nA text follows.",
        "See [the page](docs/dreams.md).",
    ],
)
def test_what_is_allowed_is_not_reported(text):
    assert checker.faults_of_page(text) == []


def test_planted_fault_of_a_comment_is_found():
    source = 'def f(dream):\n    """It dreams of ``dreams``."""\n    return "a dream", dream  # a dream\n'
    assert checker.faults_of_source(source) == ["line 2: replaced word 'dreams'", "line 3: replaced word 'dream'"]


def test_planted_fault_of_a_message_is_found_and_a_docstring_is_none():
    source = 'def f(x):\n    """It dreams."""\n    raise E(f"the jury of {x} dreams", "key_of_dreams")\n'
    assert list(messages(source)) == ["the jury of X dreams"]
    assert len(faults_of_message("the jury of X dreams")) == 2


# --- aliases -------------------------------------------------------------------------------------------------------

GIVEN = {"evaluate": ["policy=p"], "train-offline": ["data=d"], "compare": ["a=a", "b=b"]}
"""What a command cannot do without."""


def groups(schema, prefix=""):
    """Dotted names of the groups of a settings dataclass."""
    hints = get_type_hints(schema)
    for name in schema.__dataclass_fields__:
        inner = bare_hint(hints[name])
        if is_dataclass(inner) and isinstance(inner, type):
            yield f"{prefix}{name}", inner
            yield from groups(inner, f"{prefix}{name}.")


def uses():
    """Command, old dotted key, new dotted key and a value, for each setting that had another name."""
    for command, entry in COMMANDS.items():
        schema = entry.load()[1]
        rows = {row.key: as_plain(row.default) for row in describe(schema)}
        for alias, new in ALIASES.items():
            where, _, old = alias.rpartition(":") if ":" in alias else alias.rpartition(".")
            if ":" in alias and where == command:
                found = [(f"{old}{key.removeprefix(new)}", key) for key in rows if key.split(".")[0] == new]
            else:
                ends = f"{where}.{new}"
                keys = [key for key in rows if f".{key}".endswith(f".{ends}")] if "." in alias else []
                found = [(f"{key[: -len(new)]}{old}", key) for key in keys]
            for before, after in found:
                value = rows[after]
                term = ".success" if isinstance(value, dict) else ""
                yield command, before + term, after + term, "0.5" if term else as_text(value)


def as_text(value):
    """Write a default as a command line would."""
    if value is None:
        return "null"
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


USES = list(uses())


def test_every_alias_is_of_a_setting_that_exists():
    used = {new.split(".")[-1] for _, _, new, _ in USES} | {new.split(".")[0] for _, _, new, _ in USES}
    artefacts_only, of_a_reproduction = {"sizes.far"}, {"change.practice"}
    for alias, new in ALIASES.items():
        if alias not in artefacts_only | of_a_reproduction:
            assert new in used | {part for _, _, key, _ in USES for part in key.split(".")}, alias


@pytest.mark.parametrize(("command", "old", "new", "value"), USES, ids=lambda part: str(part))
def test_old_name_is_written_as_the_new_one(command, old, new, value):
    tokens, notes = current_tokens(command, [f"{old}={value}"])
    assert tokens == [f"{new}={value}"]
    assert notes == [f"setting {old!r} is now called {new!r}; the old name still works"]
    assert current_tokens(command, tokens) == (tokens, [])
    nested = yaml.safe_load(value)
    for part in reversed(old.split(".")):
        nested = {part: nested}
    found = current_config(nested, command)
    for part in new.split("."):
        found = found[part]
    assert found == yaml.safe_load(value)


@pytest.mark.parametrize(
    ("command", "old", "new", "value"),
    list({(command, new.split(".")[-1]): (command, old, new, value) for command, old, new, value in USES}.values()),
    ids=lambda part: str(part),
)
def test_old_name_gives_the_same_settings_and_one_line(command, old, new, value, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rows = {row.key: row for row in describe(COMMANDS[command].load()[1])}
    conditions = rows[new].conditions if new in rows else ()
    unmet = [one for one in conditions if (str(rows[one.key].default) in one.values) == one.other]
    effect = [f"{one.key}={'1' if one.other else one.values[0]}" for one in unmet]
    critic = ["rewards=[execution]"] if "executed_plans=1" in effect else []  # which has no other use
    needed = [*GIVEN.get(command, []), *effect, *critic]

    def shown(key):
        assert main(["config", "show", command, *needed, f"{key}={value}"]) == 0
        return capsys.readouterr()

    before, after = shown(old), shown(new)
    assert before.out == after.out
    assert before.err == f"worldrl: setting {old!r} is now called {new!r}; the old name still works\n"
    assert after.err == ""


@pytest.mark.parametrize(("old", "new"), list(SCORES.items()))
def test_old_value_is_accepted(old, new, capsys):
    key = "improvement.trust.confidence_score"
    for given in (old, new):
        assert main(["config", "show", "train-vla", f"{key}={given}", "improvement.trust.limit=0.1"]) == 0
        said = capsys.readouterr()
        assert yaml.safe_load(said.out)["improvement"]["trust"]["confidence_score"] == new
        line = f"worldrl: value {old!r} of {key!r} is now called {new!r}; the old name still works\n"
        assert said.err == (line if given == old else "")
    assert set(OLD_VALUES["trust.confidence_score"].values()) <= set(CONFIDENCE_SCORES)


@pytest.mark.parametrize(("old", "new"), list(OLD_COMMANDS.items()))
def test_old_command_is_accepted(old, new, capsys):
    assert main([old, "--help"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"worldrl {new}: ")
    assert said.err == f"worldrl: command {old!r} is now called {new!r}; the old name still works\n"


def test_old_and_new_name_together_are_refused(capsys):
    tokens = ["practice.noise=0.1", "collection.noise=0.2"]
    for given in (tokens, tokens[::-1]):
        with pytest.raises(
            SettingError, match=r"are names of one setting, and both are given; give collection\.noise only"
        ):
            current_tokens("train-vla", given)
    assert main(["config", "show", "train-vla", *tokens]) == 2
    said = capsys.readouterr().err
    assert "practice.noise" in said
    assert "collection.noise" in said


def test_the_same_name_means_other_things_in_other_commands():
    assert current_key("practice", "align-world-model") == "executed_plans"
    assert current_key("practice.dream_episodes", "train-vla") == "collection.imagined_episodes"
    assert current_key("practice", "evaluate") == "practice"
    assert current_key("wan.model.outcome.jury", "train-vla") == "wan.model.outcome.ensemble_size"
    assert current_value("improvement.trust.confidence_score", "least_opinion") == "min_resampled"
    assert current_value("improvement.algorithm", "least_opinion") == "least_opinion"


def test_help_shows_new_names_only():
    for entry in COMMANDS.values():
        schema = entry.load()[1]
        keys = {row.key for row in describe(schema)} | {name for name, _ in groups(schema)}
        assert {key for key in keys if current_key(key, entry.name) != key} == set()


# --- files of earlier versions -------------------------------------------------------------------------------------


def old_names(plain, within=""):
    """Write a world model's config as earlier versions did."""
    renamed = {"ensemble_size": "jury", "min_threshold": "least_threshold", "conditioning": "told"}
    return {
        renamed.get(key, key) if within == "outcome" else key: old_names(value, key)
        if isinstance(value, dict)
        else value
        for key, value in plain.items()
    }


@pytest.mark.parametrize("config", [VideoWorldModelConfig(), WanConfig()], ids=["video", "wan"])
def test_old_world_model_config_loads(config, tmp_path):
    config.outcome.ensemble_size, config.outcome.min_threshold = 3, 0.6
    old = old_names(config.to_json())
    assert old["outcome"]["jury"] == 3
    assert type(config).from_json(old) == config
    write_artefact(tmp_path / "model", kind="model", config=old)
    assert read_config(tmp_path / "model") == json.loads(json.dumps(config.to_json()))


def test_bundled_weights_keep_the_names_they_were_saved_with():
    folder = ROOT / "assets" / "weights" / "world_model"
    assert "jury" in json.loads((folder / "config.json").read_text())["outcome"]
    assert VideoWorldModelConfig.from_json(read_config(folder)).outcome.ensemble_size == 1


def test_old_critic_config_loads(tmp_path):
    write_artefact(tmp_path / "critic", kind="critic", config={"sizes": {"far": 2.0}})
    assert ExecutionConfig(**read_config(tmp_path / "critic")["sizes"]).distance_penalty == 2.0


def open_run(path, command, config):
    return RunDirectory.open(path, command=command, config=config, resume_command="")


def test_old_run_directory_resumes(tmp_path):
    new = {
        "collection": {"noise": 0.1, "imagined_episodes": 2},
        "improvement": {"trust": {"confidence_score": "score"}},
    }
    old = {"practice": {"noise": 0.1, "dream_episodes": 2}, "improvement": {"trust": {"sign": "score"}}}
    with open_run(tmp_path, "train-vla", old) as run:
        run.stage("01-a").finish({"practice": {"success": {"dream": 1}}})
    with open_run(tmp_path, "train-vla", new) as run:
        assert run.stage("01-a").summary == {"collection": {"success": {"imagined": 1}}}
    new["collection"]["noise"] = 0.2
    with pytest.raises(RunDirectoryError, match=r"another config: collection\.noise"):
        open_run(tmp_path, "train-vla", new)


def test_run_directory_of_an_old_command_resumes(tmp_path):
    with open_run(tmp_path, "prolong", {"steps": 1}) as run:
        run.stage("01-a").finish({})
    open_run(tmp_path, "extend", {"steps": 1}).close()


def test_old_command_line_finds_its_own_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = Path(default_run_dir("train-vla", {"practice.noise": "0.1"}))
    assert main(["config", "show", "train-vla", "practice.noise=0.1"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["run_dir"] == default_run_dir(
        "train-vla", {"collection.noise": "0.1"}
    )
    own.mkdir(parents=True)
    (own / "config.yaml").write_text("{}")
    assert main(["config", "show", "train-vla", "practice.noise=0.1"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["run_dir"] == str(own)


def keys_of(plain):
    """All keys of nested JSON."""
    parts = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in parts:
        yield key
        yield from keys_of(value)


def test_stored_results_are_read_by_their_new_keys():
    files = sorted((ROOT / "docs" / "results").rglob("*.json"))
    assert files
    found = [current_results(json.loads(file.read_text())) for file in files]
    assert not {key for plain in found for key in keys_of(plain)} & set(RESULTS)
    assert current_results(found) == found
    assert current_results({"practice": 1}, "align-world-model") == {"executed_plans": 1}


def test_random_streams_keep_the_names_they_had():
    assert [first_name(score) for score in SCORES.values()] == list(SCORES)
    assert first_name("score") == "score"
