"""Files at the top of the project, for agents, language models, containers and GitHub, agree with the project."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
AGENTS, LLMS, DOCKERFILE = ((ROOT / name).read_text() for name in ("AGENTS.md", "llms.txt", "Dockerfile"))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
LISTED = re.compile(r"^\| \[(?P<name>[^\]]+)\]\((?P<page>[^)]+\.md)\) \| (?P<what>.+) \|$", re.MULTILINE)


def steps() -> list[dict]:
    return WORKFLOW["jobs"]["ci"]["steps"]


def test_llms_txt_lists_every_page_with_the_description_of_the_documentation():
    listed = LISTED.finditer((ROOT / "docs" / "README.md").read_text())
    wanted = [f"- [{row['name']}](docs/{row['page']}): {row['what']}" for row in listed]
    assert [line for line in LLMS.splitlines() if line.startswith("- [")] == wanted
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "log"}
    assert pages - set(re.findall(r"\((docs/[^)]+)\)", LLMS)) == {"docs/README.md"}


def test_agents_md_is_short_and_names_what_exists():
    assert len(AGENTS.splitlines()) <= 60
    named = {word for word in re.findall(r"`([\w./-]+)`", AGENTS) if "/" in word or word.endswith((".md", ".txt"))}
    named |= set(re.findall(r"tests/[\w/]+\.py", AGENTS))
    assert len(named) > 15
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_workflow_runs_the_whole_of_ci_on_python_3_11():
    assert steps()[-1] == {"run": ".ci/run"}
    assert {"python-version": "3.11"} in [step.get("with") for step in steps()]
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_image_and_workflow_install_what_the_check_of_the_system_names():
    packages = re.findall(r'^PACKAGES = "([^"]+)"', (ROOT / "scripts" / "check_system.py").read_text(), re.MULTILINE)
    assert len(packages) == 1
    assert packages[0] in DOCKERFILE
    assert any(packages[0] in step.get("run", "") for step in steps())


def test_the_image_is_small_checked_and_not_of_root():
    assert DOCKERFILE.count("FROM python:3.11-slim") == 1
    assert "-c constraints.txt -e ." in DOCKERFILE
    assert DOCKERFILE.index("USER worldrl") < DOCKERFILE.index("pip install") < DOCKERFILE.index("RUN worldrl doctor")


def test_issue_templates_have_a_name_and_a_purpose():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"):
        head = yaml.safe_load(path.read_text().split("---")[1])
        assert head.keys() == {"name", "about"}
