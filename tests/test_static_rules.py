"""What the code never does, checked on every file; each rule is first shown to catch a planted violation.

Units under test: the source files themselves. ``code_faults`` reads the syntax tree of package code,
``text_faults`` the text of everything a person edits.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
BANNED_IMPORTS = {**dict.fromkeys(PICKLES, "unpickling runs code"), "torchvision": "it drags in another torch"}
NUMPY_STREAMS = {"Generator", "default_rng", "SeedSequence", "BitGenerator", "PCG64", "Philox"}
TORCH_GLOBAL_SEEDS = {"torch", "torch.random", "torch.cuda", "torch.mps", "torch.xpu"}
MAX_BYTES = 500_000
MAX_LINES = 350
"""The aim is under 300; this is where a file must be split."""


def code_faults(source: str) -> list[str]:
    """Rules that need the syntax tree."""
    return [
        f"line {getattr(node, 'lineno', 0)}: {fault}" for node in ast.walk(ast.parse(source)) for fault in _of(node)
    ]


def _of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from _import_faults(node)
    if isinstance(node, ast.Call):
        yield from _call_faults(node)
    if isinstance(node, ast.Attribute):
        yield from _attribute_faults(node)
    for name in _identifiers(node):
        if {"done", "dones"} & set(name.lower().split("_")):
            yield f"identifier {name!r}: say terminated, truncated or finished"


def _import_faults(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    for name in names:
        root = name.split(".")[0]
        if root in BANNED_IMPORTS:
            yield f"import {root}: {BANNED_IMPORTS[root]}"
        if root == "random":
            yield "import random: streams come from worldrl.core.rng"


def _call_faults(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    if name in ("eval", "exec", "print", "__import__", "input"):
        yield f"{name}(...)"
    if name == "torch.load":
        yield "torch.load: weights are safetensors"
    if name in ("os.system", "os.popen"):
        yield f"{name}: no shell"
    if name.endswith((".extractall", ".unpack_archive")):
        yield f"{name}: archives are not unpacked"
    for keyword in node.keywords:
        if keyword.arg in ("allow_pickle", "shell") and not (
            isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        ):
            yield f"{keyword.arg}={ast.unparse(keyword.value)}"


def _attribute_faults(node: ast.Attribute) -> Iterator[str]:
    owner = ast.unparse(node.value)
    if node.attr in ("manual_seed", "manual_seed_all", "seed") and owner in TORCH_GLOBAL_SEEDS:
        yield f"{owner}.{node.attr}: global seeding"
    if owner in ("np.random", "numpy.random") and node.attr not in NUMPY_STREAMS:
        yield f"{owner}.{node.attr}: global generator; streams come from worldrl.core.rng"


def _identifiers(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.arg | ast.keyword):
        return [node.arg or ""]
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


# Written in parts, so that this file does not break its own rules.
MACHINE_PATH = re.compile(
    "|".join([r"(?<![\w.])/(?:r" + "oot|w" + r"ork|opt)/\w", "/ho" + r"me/\w", "/Us" + r"ers/\w"])
)
REGISTRY = re.compile(
    "|".join(["py" + r"pi\.org", "python" + "hosted", "download.py" + "torch", "--(?:extra-)?in" + "dex-url"])
)
PRIVATE_KEY = re.compile("BEGIN [A-Z ]*PRIVATE" + " KEY")
LATER = re.compile(r"\b(?:TO" + "DO|FIX" + "ME|X" + "XX)" + r"\b|NotImplemented" + "Error")


def text_faults(text: str) -> list[str]:
    """Rules that need only the text."""
    rules = {
        "machine path": MACHINE_PATH,
        "registry address": REGISTRY,
        "private key": PRIVATE_KEY,
        "left for later": LATER,
    }
    faults = [f"{what}: {match[0]!r}" for what, rule in rules.items() for match in rule.finditer(text)]
    faults += [f"line {n}: trailing blank" for n, line in enumerate(text.split("\n"), 1) if line != line.rstrip()]
    return faults + (
        [] if not text or (text.endswith("\n") and not text.endswith("\n\n")) else ["must end with one newline"]
    )


CODE = sorted(path for room in ("worldrl", "envs", "scripts") for path in (ROOT / room).rglob("*.py"))
FOLDERS = ("worldrl", "envs", "scripts", "tests", "configs", "docs", ".ci")
SUFFIXES = {".py", ".pyi", ".yaml", ".yml", ".toml", ".md", ".txt", ".cff", ".xml", ".html", ".css", ".js", ""}
TEXTS = sorted(
    path
    for path in [*ROOT.iterdir(), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*"))]
    if path.is_file() and path.suffix in SUFFIXES and path.name != "LICENSE"
    and not {".git", "__pycache__"} & set(path.relative_to(ROOT).parts)
)  # fmt: skip


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_code() -> None:
    found = {_name(path): code_faults(path.read_text()) for path in CODE}
    for name in [name for name in found if name.startswith("scripts/")]:
        found[name] = [fault for fault in found[name] if not fault.endswith("print(...)")]
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_text() -> None:
    found = {_name(path): text_faults(path.read_text(encoding="utf-8")) for path in TEXTS}
    assert {name: faults for name, faults in found.items() if faults} == {}
    assert [_name(path) for path in TEXTS if path.stat().st_size >= MAX_BYTES] == []


def test_files_are_short() -> None:
    lines = {_name(path): len(path.read_text().splitlines()) for path in CODE}
    long = {name: count for name, count in lines.items() if count > MAX_LINES}
    assert [name for name in long if not name.startswith("scripts/")] == []


def test_data_files_parse() -> None:
    for path in [path for path in TEXTS if path.suffix in (".yaml", ".yml", ".toml", ".cff")]:
        text = path.read_text()
        assert tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text) is not False, path


PLANTED_CODE = [
    "import pickle",
    "from cloudpickle import loads",
    "import torchvision.transforms",
    "import random",
    "from random import choice",
    "torch.load(path, weights_only=True)",
    "np.load(path, allow_pickle=True)",
    "np.load(path, allow_pickle=flag)",
    "eval(text)",
    "exec(text)",
    "print(1)",
    "archive.extractall(folder)",
    "shutil.unpack_archive(a)",
    "subprocess.run(text, shell=True)",
    "os.system(text)",
    "torch.manual_seed(0)",
    "torch.cuda.manual_seed_all(0)",
    "np.random.seed(0)",
    "np.random.rand(3)",
    "done = True",
    "def f(dones): ...",
    "step(is_done=1)",
    "class Done: ...",
    "x.done",
]


@pytest.mark.parametrize("source", PLANTED_CODE)
def test_planted_code_is_found(source: str) -> None:
    assert code_faults(source)


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "generator.manual_seed(1)",
        "np.random.default_rng(1)",
        "x: np.random.Generator",
        "np.load(path, allow_pickle=False)",
        "abandoned = condone(1)",
        "safetensors.torch.load(data)",
    ],
)
def test_good_code_is_not_reported(source: str) -> None:
    assert code_faults(source) == []


@pytest.mark.parametrize(
    "text",
    [
        "see /r" + "oot/x\n",
        "'/w" + "ork/main'\n",
        "/ho" + "me/me\n",
        "pip --index" + "-url x\n",
        "https://py" + "pi.org/simple\n",
        "# TO" + "DO later\n",
        "raise NotImplemented" + "Error\n",
        "-----BEGIN RSA PRIVATE" + " KEY-----\n",
        "blank \n",
        "no newline",
        "two\n\n",
    ],
)
def test_planted_text_is_found(text: str) -> None:
    assert text_faults(text)


@pytest.mark.parametrize("text", ["run_dir=/a/larger/disk\n", "assets/work/x\n", "to do it\n", ""])
def test_good_text_is_not_reported(text: str) -> None:
    assert text_faults(text) == []
