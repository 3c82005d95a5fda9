"""HTML that is escaped by construction: text is escaped unless it was built here.

``element("p", user_text)`` is safe whatever ``user_text`` holds; only :class:`Html` passes unescaped, and only
:func:`element` and :func:`join` make it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

VOID = frozenset({"br", "img", "meta", "hr", "col"})
"""HTML elements without an end tag."""
SHAPES = frozenset({"line", "circle", "rect", "path", "polyline", "polygon"})
"""SVG elements that close themselves where they hold nothing."""


class Html(str):
    """Markup that is already escaped."""

    __slots__ = ()


Child = str | Html | None


def text(value: Child) -> Html:
    """Escape plain text; pass markup; None is nothing."""
    if value is None:
        return Html("")
    return value if isinstance(value, Html) else Html(escape(value, quote=False))


def join(children: Iterable[Child]) -> Html:
    """Concatenate children, escaping the plain ones."""
    return Html("".join(text(child) for child in children))


def breakable(value: str) -> Html:
    """Escape a name and let it break after ``_``, ``/`` and ``.`` and before an inner capital, not inside a word."""
    return Html(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[_/.])(?=\w)", "<wbr>", escape(value, quote=False)))


def element(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Build one element.

    Args:
        name: tag name.
        *children: text (escaped) or markup.
        **attributes: ``class_`` is ``class``; other underscores become hyphens (``aria_label``); True writes a bare
            attribute, None and False leave it out; floats are written with at most two decimals.

    Returns:
        The element's markup.
    """
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{opening}>")
    if name in SHAPES and not children:
        return Html(f"<{opening}/>")
    return Html(f"<{opening}>{join(children)}</{name}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    if isinstance(value, float):
        value = f"{value:.2f}".rstrip("0").rstrip(".")
    return f' {name}="{escape(str(value), quote=True)}"'
