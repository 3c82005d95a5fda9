"""The page of ``worldrl runs`` in headless Chromium: filters, compares, follows a run, and a report can do nothing."""

import json

import numpy as np
import pytest

from worldrl.core.storage.log import Progress
from worldrl.core.storage.run import RunDirectory
from worldrl.evaluation.world_model.film import encode_mp4
from worldrl.runs.server import RunsServer

RATE = {"k": 3, "n": 4, "rate": 0.75, "lo": 0.30, "hi": 0.95, "method": "wilson"}
EVIL = "<img src=x onerror=document.title='evil'>"
REPORT = """<title>report</title><script>document.title = "evil"; fetch("/api/runs")</script>
<meta http-equiv="refresh" content="0;url=/api/runs"><img src="/api/runs"><form action="/api/runs"></form><p>content</p>"""


@pytest.fixture
def port(tmp_path, serve_app):
    folder, film = tmp_path / "all", encode_mp4(np.zeros((8, 32, 64, 3), np.uint8), 10)
    for name, rounds in (("a", 3), ("b", 2)):
        typed = f"worldrl evaluate rounds={rounds}"
        with RunDirectory.open(
            folder / name, command="evaluate", config={"rounds": rounds}, resume_command=typed
        ) as run:
            lines = [json.dumps({"series": "s", "step": k, "values": {"loss": 1 / (k + 1)}}) + "\n" for k in range(9)]
            (run.path / "metrics.jsonl").write_text("".join(lines))
            (run.path / "videos").mkdir()
            (run.path / "videos" / "01.mp4").write_bytes(film)
            (run.path / "report.html").write_text(REPORT)
            run.write_result({"success": RATE}, seed=0, device="cpu")
    (folder / EVIL).mkdir()
    (folder / EVIL / "config.yaml").write_text("a: [")
    with serve_app(RunsServer(folder).app()) as port:
        yield port


ROWS = "document.querySelectorAll('#runs tbody tr').length"


def test_a_person_filters_and_compares_by_keyboard(port, page):
    page.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
    page.until(f"{ROWS} === 3")
    assert EVIL in page.js("document.querySelector('#runs tbody').innerText")
    assert "damaged: config.yaml" in page.js("document.querySelector('#runs tbody').innerText")
    assert "75 % [30, 95] (3/4)" in page.js("document.querySelector('#runs tbody').innerText").replace("\xa0", " ")
    page.key("Slash", "/")
    assert page.js("document.activeElement.id") == "filter"
    page.call("Input.insertText", text="rounds=3")
    page.until(f"{ROWS} === 1")
    page.key("Tab", "Tab")
    page.key("Space", " ")
    page.until("!$('compare').hidden && document.querySelectorAll('svg.curve polyline').length === 1")
    page.js("$('filter').value = ''; $('filter').oninput()")
    page.until(f"{ROWS} === 3")
    page.js("document.querySelector('[aria-label=\"compare b\"]').click()")
    page.until("document.querySelectorAll('svg.curve polyline').length === 2")
    assert page.js("[...document.querySelectorAll('#settings tbody th')].map((one) => one.innerText)") == [
        "command",
        "success",
        "rounds",
    ]
    page.until(
        "[...document.querySelectorAll('video')].filter((one) => one.readyState > 0 && one.videoWidth === 512).length === 2"
    )
    page.call("Page.reload")
    page.until("typeof runs !== 'undefined' && document.querySelectorAll('svg.curve polyline').length === 2")
    assert page.js("document.title") == "worldrl runs"
    assert page.named("Runtime.exceptionThrown", "Log.entryAdded") == []
    asked = {sent["request"]["url"] for sent in page.named("Network.requestWillBeSent")}
    assert all(url.startswith((f"http://127.0.0.1:{port}/", "about:", "data:")) for url in asked)


def test_a_run_that_works_is_followed_and_films_are_not_started_again(port, page, tmp_path):
    page.call("Page.navigate", url=f"http://127.0.0.1:{port}/?run=a&run=new")
    page.until("document.querySelectorAll('video').length === 1")
    page.js("document.querySelector('video').own = true")
    with RunDirectory.open(tmp_path / "all" / "new", command="collect", config={}, resume_command="x") as run:
        with Progress("collect", 40, unit="episodes") as progress:
            progress.advance(10)
            run.tick(force=True)
            page.until("document.querySelector('#runs tbody').innerText.includes('collect: 10/40 episodes')")
            assert page.js("document.querySelector('progress').value") == 0.25
            progress.advance(10)
            run.tick(force=True)
            page.until("document.querySelector('progress').value === 0.5")
        run.write_result({"success": RATE}, seed=0, device="cpu")
    page.until("document.querySelector('progress') === null")
    assert page.js("document.querySelector('video').own") is True


def test_a_strangers_report_runs_nothing_and_asks_for_nothing(port, page):
    page.call("Page.navigate", url=f"http://127.0.0.1:{port}/file/a/report.html")
    page.until("document.title === 'report' && document.body.innerText.includes('content')")
    page.until("performance.now() > 2000")
    assert page.js("location.pathname") == "/file/a/report.html"
    assert page.js("document.title") == "report"
    asked = {sent["response"]["url"] for sent in page.named("Network.responseReceived")}  # what is blocked has none
    assert asked <= {f"http://127.0.0.1:{port}/file/a/report.html", f"http://127.0.0.1:{port}/favicon.ico"}


def test_nothing_is_wider_than_a_phone(port, page):
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    page.call("Page.navigate", url=f"http://127.0.0.1:{port}/?run=a&run=b")
    page.until("document.querySelectorAll('video').length === 2")
    assert page.js("document.documentElement.scrollWidth") == 390
