"""Items of a list of text on the command line: taken as typed, so paths may hold =, #, brackets and any alphabet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_origin

from worldrl.core.errors import SettingError
from worldrl.usage import bare_hint

_ITEM = r"""(?:'[^']*'|"[^"]*"|[^,'"\s](?:[^,]*[^,\s])?)"""
"""An item: quoted, or as typed up to the next comma."""


def text_items(key: str, text: str) -> list[str]:
    """Split ``[a,b]`` into its items as typed; an item with a comma or a final bracket must be quoted.

    Raises SettingError (no list, an empty item, or a quote that is not closed).
    """
    if not (text.startswith("[") and text.endswith("]")):
        raise SettingError(f"{key} must be list of str, got {text!r}; a list is written '{key}=[{text or 'a'}]'")
    inner = text[1:-1].strip()
    if inner and re.fullmatch(rf"{_ITEM}(?:\s*,\s*{_ITEM})*", inner) is None:
        raise SettingError(
            f"{key}: cannot read the list {text!r}; separate items by commas, leave none empty, and close quotes"
        )
    return [item[1:-1] if item[0] in "'\"" else item for item in re.findall(_ITEM, inner)]


def is_text_list(hint: Any) -> bool:
    """Whether a setting is a list of text or paths."""
    hint = bare_hint(hint)
    return get_origin(hint) in (list, tuple) and get_args(hint)[0] in (str, Path)


def takes_text(hint: Any, *, named: bool) -> bool:
    """Whether a setting, or with ``named`` one value of its mapping, is text or a list of text."""
    return is_text_list(hint) or text_hint(hint, named=named) in (str, Path)


def text_hint(hint: Any, *, named: bool) -> Any:
    """Return a setting's type, or with ``named`` the type of its mapping's values."""
    return bare_hint(get_args(bare_hint(hint))[1] if named else hint)
