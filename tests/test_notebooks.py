"""Notebooks run from top to bottom, in the order in which they need one another, and become pages of the site."""

from pathlib import Path

import pytest

from worldrl.workers.link.boot import load_file

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ("imagine_and_compare", "improve_a_policy", "which_checkpoint")
LAST = {
    "imagine_and_compare": "films do not say what the model shows under other actions",
    "improve_a_policy": "round-1-4-improve",
    "which_checkpoint": "not to be trusted, because: ['it has learned from every episode",
}
"""What a notebook shows in one of its last cells."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("notebooks")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name, place, run_python):
    done = run_python(
        ROOT / "docs" / "notebooks" / f"{name}.py", cwd=place, timeout=900, PYTHONPATH=f"{ROOT}:{ROOT / 'envs'}"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert LAST[name] in done.stdout


def test_every_notebook_is_listed_and_becomes_a_page():
    files = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
    assert tuple(file.stem for file in files) == NOTEBOOKS
    site, listed = load_file("docs_site", ROOT / "scripts" / "docs_site.py"), (ROOT / "docs" / "README.md").read_text()
    for file in files:
        page = site.as_page(file.read_text())
        assert page.startswith("# ")
        assert "# %%" not in page
        assert page.count("```") % 2 == 0
        assert f"(notebooks/{file.name})" in listed
        assert f"(notebooks/{file.stem}.md)" in site.on_page_markdown(listed)
    small = "# %% [markdown]\n# # Title\n#\n# A text.\n\n# %%\nprint(1)  # one\n"
    assert site.as_page(small) == "# Title\n\nA text.\n\n```python\nprint(1)  # one\n```"
