"""The command starts itself once more with large memory pages, and leaves a user's own value alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worldrl.core import memory_pages
from worldrl.core.memory_pages import PAGES, TUNABLES, VARIABLE, glibc, offered

NOTED = "import os\nopen(os.environ['NOTES'], 'a').write(f\"{os.getpid()} {os.environ.get('GLIBC_TUNABLES')}\\n\")\n"


@pytest.mark.parametrize(
    ("libc", "text", "expected"),
    [
        ("glibc 2.36", "always [madvise] never", True),
        ("glibc 2.35", "[always] madvise never", True),
        ("glibc 3.0", "always [madvise] never", True),
        ("glibc 2.34", "always [madvise] never", False),
        ("glibc 2.4", "always [madvise] never", False),
        ("glibc 2.36", "always madvise [never]", False),
        ("", "always [madvise] never", False),
        ("musl 2.36", "always [madvise] never", False),
    ],
)
def test_large_pages_need_glibc_2_35_and_a_kernel_that_gives_them(
    libc: str, text: str, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "enabled").write_text(text)
    assert offered(libc, tmp_path / "enabled") is expected


def test_a_kernel_without_large_pages_gives_none(tmp_path: Path) -> None:
    assert not offered("glibc 2.36", tmp_path / "missing")


def starts(folder: Path, line: list[str], **variables: str) -> tuple[list[list[str]], subprocess.CompletedProcess[str]]:
    """Run a command line; return number and tunables of each interpreter that started, and the finished process."""
    (folder / "sitecustomize.py").write_text(NOTED)
    environment = {key: text for key, text in os.environ.items() if key != VARIABLE}
    environment |= {"PYTHONPATH": f"{folder}:{os.getcwd()}", "NOTES": str(folder / "notes"), **variables}
    finished = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return [row.split(" ", 1) for row in (folder / "notes").read_text().splitlines()], finished


@pytest.mark.skipif(not offered(glibc(), PAGES), reason="no large pages here")
def test_a_command_starts_once_more_in_the_same_process(tmp_path: Path) -> None:
    (first, second), finished = starts(tmp_path, [sys.executable, "-m", "worldrl", "evaluate", "unheard=x"])
    assert first == [second[0], "None"]
    assert second[1] == TUNABLES
    assert finished.returncode == 2
    assert "unheard" in finished.stderr


@pytest.mark.parametrize("own", ["", "glibc.malloc.check=0"])
def test_a_value_of_the_users_own_stays(own: str, tmp_path: Path) -> None:
    (only,), finished = starts(tmp_path, [sys.executable, "-m", "worldrl", "--version"], GLIBC_TUNABLES=own)
    assert only[1] == own
    assert finished.stdout.startswith("worldrl ")


@pytest.mark.skipif(not offered(glibc(), PAGES), reason="no large pages here")
@pytest.mark.skipif("[always]" in (PAGES.read_text() if PAGES.exists() else ""), reason="every process has large pages")
@pytest.mark.parametrize(("tunables", "large"), [("", "False"), (TUNABLES, "True")])
def test_the_kernel_tells_whether_the_pages_are_large(tunables: str, large: str) -> None:
    asked = [sys.executable, "-c", "from worldrl.core.memory_pages import has_large_pages as h; print(h())"]
    said = subprocess.run(
        asked, env=os.environ | {VARIABLE: tunables}, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.strip() == large


def test_a_kernel_that_counts_nothing_gives_small_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_pages, "COUNTS", tmp_path / "missing")
    assert not memory_pages.has_large_pages()
