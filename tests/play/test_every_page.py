"""The local pages and a report in headless Chromium, light and dark, on a desk and on a phone. Skips where there is none."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from worldrl.core.storage.run import RunDirectory
from worldrl.evaluation.report.model import ImaginedReal, Table
from worldrl.evaluation.report.page import SECTIONS, render
from worldrl.runs.server import RunsServer
from worldrl.workers.link.boot import load_file

AUDIT = Path(__file__).with_name("audit.js").read_text()
REPORT = load_file("report_example", Path(__file__).parents[1] / "evaluation/report/conftest.py")
VIEWS = tuple(product((1280, 390), ("light", "dark")))


def look(page, address, ready, *, width, scheme):
    """Open a page in one view and return the faults that a reader would meet."""
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 500)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.events.clear()
    page.call("Page.navigate", url=address)
    page.until(f"document.readyState === 'complete' && {ready}")
    found = json.loads(page.js(AUDIT))
    assert found["texts"] > 10
    faults = found["faults"] + page.named("Runtime.exceptionThrown", "Log.entryAdded")
    wide, seen = (page.js(f"document.documentElement.{name}") for name in ("scrollWidth", "clientWidth"))
    return faults + ([f"{wide} pixels wide"] if wide > min(seen, width) else [])


def asked(page):
    return {sent["request"]["url"].split("?")[0] for sent in page.named("Network.requestWillBeSent")}


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_a_report_is_legible_and_asks_for_nothing(page, tmp_path, width, scheme):
    data = REPORT.example()
    alike = [ImaginedReal(name, REPORT.wilson(0, 4), REPORT.wilson(0, 9)) for name in ("one", "another")]
    rows = [("a_name_" * 9, "0.0015", "a sentence that says at some length how this is read"), ("empty", "", "")]
    tables = [Table("Long", ("Name", "Value", "What"), rows)]
    data = replace(data, imagined_real=[*data.imagined_real, *alike], tables=tables, sections=list(SECTIONS))
    path = tmp_path / "report.html"
    path.write_text(render(data), encoding="utf-8")
    assert look(page, path.as_uri(), "true", width=width, scheme=scheme) == []
    assert {url for url in asked(page) if not url.startswith("data:")} == {path.as_uri()}


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_the_page_of_play_is_legible(serve, page, width, scheme):
    with serve() as port:
        ready = "typeof frames !== 'undefined' && frames.length === 1"
        assert look(page, f"http://127.0.0.1:{port}/", ready, width=width, scheme=scheme) == []


@pytest.fixture
def two_runs(tmp_path, serve_app):
    for number in range(2):
        with RunDirectory.open(
            tmp_path / f"run-{number}", command="collect", config={"seed": number}, resume_command="x"
        ) as run:
            values = {"lr": 1.234e-5 * (1 + number), "loss": 0.5}
            lines = [json.dumps({"series": "s", "step": k, "values": {**values, "x": k}}) for k in range(4)]
            (run.path / "metrics.jsonl").write_text("\n".join([*lines, ""]))
            run.write_result({"success": REPORT.wilson(number, 9)}, seed=0, device="cpu")
    with serve_app(RunsServer(tmp_path).app()) as port:
        yield f"http://127.0.0.1:{port}/"


COMPARED = "document.querySelectorAll('svg.curve').length === 3"


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_the_page_of_runs_is_legible(two_runs, page, width, scheme):
    address = f"{two_runs}?run=run-0&run=run-1"
    assert look(page, address, COMPARED, width=width, scheme=scheme) == []
    outside = """[...document.querySelectorAll('svg.curve text')].filter((one) =>
        one.getBoundingClientRect().left < one.closest('figure').getBoundingClientRect().left).map((one) => one.textContent)"""
    assert page.js(outside) == []


FOCUSED = "(document.activeElement.id || document.activeElement.tagName)"


def test_the_keyboard_reaches_what_is_chosen_and_escape_closes_it(two_runs, page):
    look(page, f"{two_runs}?run=run-0&run=run-1", COMPARED, width=1280, scheme="light")
    assert page.js("document.querySelector('#jump a').innerText") == "2 chosen: to the comparison"
    page.js("document.querySelector('#jump a').focus()")
    page.key("Enter", "Enter")
    page.until(f"{FOCUSED} === 'compare'")
    page.js(
        "document.querySelector('#details summary').focus(); document.querySelector('#details details').open = true"
    )
    page.key("Tab", "Tab")
    assert page.js("document.activeElement.innerText") == "config.yaml"
    page.key("Escape", "Escape")
    assert (
        page.js("[document.querySelector('#details details').open, document.activeElement.tagName].join()")
        == "false,SUMMARY"
    )


def test_tab_goes_down_the_page_of_play_on_a_phone_and_escape_closes_what_is_open(serve, page):
    with serve() as port:
        ready = "typeof frames !== 'undefined' && frames.length === 1"
        look(page, f"http://127.0.0.1:{port}/", ready, width=390, scheme="light")
        heights, seen = [], []
        for _ in range(30):
            page.key("Tab", "Tab")
            if page.js("document.activeElement === document.body"):
                break
            assert page.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            heights.append(page.js("document.activeElement.getBoundingClientRect().bottom + scrollY"))
            seen.append(page.js(FOCUSED))
        assert heights == sorted(heights)
        assert {"time", "task", "index", "step", "pace", "gripper", "SUMMARY"} <= set(seen)
        assert seen.count("BUTTON") == 9  # eight ways to move, and reset
        page.js("document.querySelector('details').open = true; say('a message')")
        page.key("Escape", "Escape")
        assert page.js("document.querySelector('details').open || !$('message').hidden") is False
