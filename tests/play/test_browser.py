"""The page in headless Chromium: drives, undoes, saves, reconnects, and asks nobody else. Skips where there is none."""

import re

from worldrl.data.lerobot.dataset import EpisodeDataset


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
