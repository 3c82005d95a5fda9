"""Filmstrips and videos as HTML, embedded as data URIs."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from worldrl.evaluation.report.filmstrip import row_png
from worldrl.evaluation.report.markup import Html, element, join
from worldrl.evaluation.report.model import Filmstrip, Frames, ReportData, Video

MAX_VIDEO = 2_000_000
"""Largest embedded mp4 in bytes."""
MAX_VIDEOS = 20_000_000
"""Largest sum of embedded mp4s in bytes; a page beyond that opens slowly and cannot be mailed."""


def data_uri(mime: str, data: bytes) -> str:
    """Return ``data:<mime>;base64,…``."""
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"


def video_path(index: int) -> str:
    """Return where video ``index`` (from 1) lies beside the page."""
    return f"videos/{index:02d}.mp4"


def filmstrips(data: ReportData) -> Html:
    """Every strip in a card: rows aligned in time, labels under them."""
    if not data.filmstrips:
        return element("p", "Not recorded: filmstrips.", class_="missing")
    return join(_strip(strip) for strip in data.filmstrips)


def _strip(strip: Filmstrip) -> Html:
    steps = len(strip.labels)
    rows = [_row(strip, name, frames) for name, frames in strip.rows.items()]
    labels = element("ol", *(element("li", label) for label in strip.labels))
    # A strip wider than the screen scrolls; tabindex lets the keyboard scroll it too.
    frames = element(
        "div",
        element("div", *rows, labels, class_="frames", style=f"--steps:{steps}"),
        class_="strip",
        tabindex="0",
        role="group",
        aria_label=f"Frames of {strip.title}",
    )
    return element("figure", element("figcaption", element("h3", strip.title), strip.caption), frames, class_="card")


def _row(strip: Filmstrip, name: str, frames: Frames) -> Html:
    kind = next((kind for kind in ("imagined", "real") if kind in name.lower()), "other")
    words = (
        f"{strip.title}, {name}: {len(frames)} frames, {strip.labels[0]} to {strip.labels[len(frames) - 1]}"
        if len(frames)
        else f"{strip.title}, {name}: no frames"
    )
    image = element("img", src=data_uri("image/png", row_png(frames, len(strip.labels))), alt=words)
    return join([element("span", name, class_=f"row {kind}"), image])


def videos(data: ReportData) -> Html:
    """Every video in a card; those too large to embed are linked beside the page."""
    if not data.videos:
        return element("p", "Not recorded: videos.", class_="missing")
    embedded = embeddable(data.videos)
    return element("div", *(_video(i, v, i in embedded) for i, v in enumerate(data.videos, 1)), class_="charts")


def embeddable(given: Sequence[Video]) -> set[int]:
    """Return the numbers (from 1) of the videos that are embedded, in order until the page is full."""
    chosen: set[int] = set()
    total = 0
    for index, video in enumerate(given, 1):
        if len(video.mp4) <= MAX_VIDEO and total + len(video.mp4) <= MAX_VIDEOS:
            chosen.add(index)
            total += len(video.mp4)
    return chosen


def _video(index: int, video: Video, embed: bool) -> Html:
    heading = element("figcaption", element("h3", video.title), video.caption)
    if not embed:
        size = f"{len(video.mp4) / 1e6:.1f} MB, too large to embed: "
        link = element("p", size, element("a", video_path(index), href=video_path(index)))
        return element("figure", heading, link, class_="card")
    player = element(
        "video",
        src=data_uri("video/mp4", video.mp4),
        controls=True,
        loop=True,
        muted=True,
        playsinline=True,
        preload="metadata",
        aria_label=f"{video.title}. {video.caption}",
    )
    return element("figure", heading, player, class_="card")
