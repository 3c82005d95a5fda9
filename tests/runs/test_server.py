"""Unit under test: ``worldrl/runs/server.py``, over real sockets: what is sent, and to whom."""

import json
import os
import re
import urllib.error
import urllib.request
from urllib.parse import quote

import pytest

from worldrl.runs import server as module
from worldrl.runs.server import RunsServer

PAGE = "<html><script>fetch('/api/runs')</script><img src='http://evil.example/x'></html>"


@pytest.fixture
def port(folder, serve_app):
    folder.mkdir()
    with serve_app(RunsServer(folder).app()) as port:
        yield port


def fetch(port, path="/", **headers):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode(), {name.lower(): value for name, value in answer.headers.items()}


def refused(port, path, status, **headers):
    with pytest.raises(urllib.error.HTTPError, match=str(status)) as caught:
        fetch(port, path, **headers)
    return caught.value.read().decode()


def test_the_page_and_what_it_asks_for(port, make_run, write_metrics):
    for path in module.FILES:
        text, headers = fetch(port, path)
        assert len(text) > 1000
        assert not re.search("https?:|//[a-z]", text.replace("http://www.w3.org/2000/svg", ""))
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    write_metrics(make_run("deep/one é", rounds=3), [{"loss": 1.0}])
    found = json.loads(fetch(port, "/api/runs?filter=rounds=3")[0])
    assert [run["name"] for run in found["runs"]] == ["deep/one é"]
    curves = json.loads(fetch(port, f"/api/curves/{quote('deep/one é')}")[0])
    assert curves["curves"] == {"cloning/loss": [[0, 1.0]]}
    assert json.loads(fetch(port, "/api/runs?filter=rounds=4")[0])["of"] == 1


def test_the_filter_of_the_command_line_holds_until_another_is_typed(folder, serve_app, make_run):
    make_run("a", rounds=3)
    make_run("b", rounds=2)
    with serve_app(RunsServer(folder, "rounds=3").app()) as port:
        for query, filter, names in (("", "rounds=3", ["a"]), ("?filter=", "", ["a", "b"])):
            found = json.loads(fetch(port, f"/api/runs{query}")[0])
            assert (found["filter"], sorted(run["name"] for run in found["runs"])) == (filter, names)


def test_files_of_runs_are_sent_with_a_policy_that_lets_them_do_nothing(port, make_run):
    run = make_run("one")
    (run / "report.html").write_text(PAGE)
    text, headers = fetch(port, "/file/one/report.html")
    assert text == PAGE
    policy = headers["content-security-policy"]
    assert "sandbox" in policy
    assert "allow-scripts" not in policy
    assert "allow-same-origin" not in policy
    assert "default-src 'none'" in policy
    assert headers["content-type"].startswith("text/html")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert fetch(port, "/file/one/config.yaml")[1]["content-type"].startswith("text/plain")


def test_films_are_sent_in_the_ranges_that_a_browser_asks_for(port, make_run):
    run = make_run("one")
    (run / "videos").mkdir()
    content = bytes(range(65, 91)) * 9000
    (run / "videos" / "01.mp4").write_bytes(content)
    path = "/file/one/videos/01.mp4"
    before = len(os.listdir("/dev/fd"))
    whole, headers = fetch(port, path)
    assert whole.encode() == content
    assert (headers["accept-ranges"], headers["content-length"]) == ("bytes", str(len(content)))
    for asked, first, last in (
        ("0-1", 0, 1),
        ("70000-190000", 70000, 190000),
        ("-5", len(content) - 5, len(content) - 1),
    ):
        part, headers = fetch(port, path, Range=f"bytes={asked}")
        assert part.encode() == content[first : last + 1]
        assert headers["content-range"] == f"bytes {first}-{last}/{len(content)}"
        assert headers["content-type"] == "video/mp4"
        assert "sandbox" in headers["content-security-policy"]
    refused(port, path, 416, Range=f"bytes={len(content)}-")
    (run / "videos" / "02.mp4").symlink_to(run / "videos" / "01.mp4")
    refused(port, "/file/one/videos/02.mp4", 404, Range="bytes=0-1")
    assert len(os.listdir("/dev/fd")) <= before + 2  # sockets of the last answers, no film


def test_only_known_files_below_the_folder_are_sent(port, make_run, tmp_path):
    run = make_run("one")
    (tmp_path / "secret.json").write_text("secret")
    (run / "out.json").symlink_to(tmp_path / "secret.json")
    (run / "linked").symlink_to(tmp_path)
    (run / "model.safetensors").write_bytes(b"x")
    (run / ".hidden.json").write_text("{}")
    names = (
        "out.json",
        "linked/secret.json",
        "../../secret.json",
        "..%2f..%2fsecret.json",
        "%2e%2e/%2e%2e/secret.json",
    )
    for name in (*names, "model.safetensors", ".hidden.json", "run.lock", "nothing.json", "stages.html", "a%00.json"):
        assert "secret" not in refused(port, f"/file/one/{name}", 404).replace("secret.json", "")
    refused(port, "/file//etc/hostname", 404)
    refused(port, "/api/curves/..", 404)
    refused(port, "/other", 404)


def test_other_hosts_and_what_other_pages_ask_for_are_refused(port):
    refused(port, "/", 400, Host="evil.example")
    for site in ("cross-site", "same-site"):
        refused(port, "/api/runs", 403, Sec_Fetch_Site=site, Sec_Fetch_Mode="cors", Sec_Fetch_Dest="empty")
        refused(port, "/", 403, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="iframe")
        fetch(port, "/", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="document")  # a link
    fetch(port, "/api/runs", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors", Sec_Fetch_Dest="empty")


def test_nothing_can_be_written(port, make_run):
    make_run("one")
    for method in ("POST", "PUT", "DELETE"):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/runs", data=b"{}", method=method)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request, timeout=60)


def test_a_folder_that_is_removed_meanwhile_is_a_message(port, folder):
    folder.rmdir()
    assert "is no folder" in refused(port, "/api/runs", 404)
