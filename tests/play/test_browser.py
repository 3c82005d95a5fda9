"""The page in headless Chromium: drives, undoes, saves, reconnects, and asks nobody else. Skips where there is none."""

import json
import re
import shutil
import subprocess
import time
import urllib.request

import pytest

from worldrl.data.lerobot.dataset import EpisodeDataset

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the path")
WAIT_S = 180


class Page:
    """One page of a browser, over the Chrome DevTools protocol."""

    def __init__(self, socket):
        self._socket, self._number, self.events = socket, 0, []

    def call(self, method, **parameters):
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(timeout=WAIT_S))).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def js(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def until(self, expression):
        end_s = time.monotonic() + WAIT_S
        while self.js(expression) is not True:
            assert time.monotonic() < end_s, f"{expression} never came true: {self.js('document.body.innerText')}"
            time.sleep(0.1)

    def key(self, code, key):
        self.call("Input.dispatchKeyEvent", type="keyDown", code=code, key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", code=code, key=key)

    def named(self, *methods):
        return [event["params"] for event in self.events if event["method"] in methods]


@pytest.fixture
def page(tmp_path):
    """An empty page of a browser that ends with the test."""
    connect = pytest.importorskip("websockets.sync.client", reason="the extra play brings it").connect
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
    words = [CHROMIUM, *words, f"--user-data-dir={tmp_path / 'browser'}", "about:blank"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            told, end_s = tmp_path / "browser" / "DevToolsActivePort", time.monotonic() + WAIT_S
            while not told.is_file() or "\n" not in told.read_text():
                assert time.monotonic() < end_s
                time.sleep(0.1)
            port = told.read_text().split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=WAIT_S) as listed:
                (target,) = [one for one in json.load(listed) if one["type"] == "page"]
            with connect(target["webSocketDebuggerUrl"], max_size=None, close_timeout=5) as socket:
                found = Page(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    found.call(f"{domain}.enable")
                yield found
        finally:
            process.kill()


def test_a_person_drives_undoes_saves_and_reconnects_by_keyboard(serve, page, tmp_path):
    with serve() as port:
        page.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
        page.until("typeof frames !== 'undefined' && frames.length === 1")
        page.key("KeyA", "a")
        page.until("frames.length === 3 && at === 2 && !waiting")
        page.key("Space", " ")
        page.until("frames.length === 5 && at === 4 && !waiting")
        assert page.js("frames.map((frame) => frame.gripper)") == [None, -1, -1, 1, 1]
        assert page.js("frames[1].imagined.data.some((value, k) => value !== frames[3].imagined.data[k])")
        assert "ms" in page.js("document.getElementById('latency').textContent")
        page.key("Backspace", "Backspace")
        page.until("frames.length === 3 && !waiting")
        assert page.js("gripper()") == -1  # as it was commanded there
        page.key("KeyD", "d")
        page.until("frames.length === 5 && !waiting")
        page.js("$('time').value = 1; $('time').oninput()")
        assert page.js("$('where').textContent + $('past').innerText").startswith("0.1 s, driven by hand.")
        page.key("KeyW", "w")  # from a frame of the first chunk: both chunks are undone
        page.until("frames.length === 3 && !waiting && following")
        page.js("$('save').click()")
        page.until("$('message').textContent.includes('4 control steps are saved')")
        address = page.js("location.search")
        assert re.fullmatch(r"\?session=[\w-]{20,}", address)
        page.js("socket.close()")
        page.until("$('status').textContent === 'connected' && frames.length === 3 && socket.readyState === 1")
        page.call("Page.reload")
        page.until("typeof frames !== 'undefined' && frames.length === 3 && following && at === 2")
        assert page.js("location.search") == address
        assert page.named("Runtime.exceptionThrown", "Log.entryAdded") == []
        asked = {sent["request"]["url"] for sent in page.named("Network.requestWillBeSent")}
        assert all(url.startswith((f"http://127.0.0.1:{port}/", "about:", "data:")) for url in asked)
    page.until("$('status').textContent === 'connecting again'")
    assert [len(episode) for episode in EpisodeDataset.open(tmp_path / "run" / "real")] == [4]


def test_nothing_is_wider_than_a_phone(serve, page):
    with serve() as port:
        page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
        page.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
        page.until("typeof frames !== 'undefined' && frames.length === 1")
        page.js("document.querySelector('[data-key=KeyE]').click()")
        page.until("frames.length === 3")
        assert page.js("document.documentElement.scrollWidth") == 390
        assert page.js("[...document.querySelectorAll('.pad button')].every((one) => one.offsetHeight >= 44)")
