"""Hook of the documentation's site: Sphinx's roles in docstrings, such as ``:class:`~a.b.C```, become names in code type."""

import re
from typing import Any

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):(<code[^>]*>)(~?)([\w.]+)(</code>)")


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with each page's HTML."""
    return ROLE.sub(lambda match: match[1] + (match[3].rpartition(".")[2] if match[2] else match[3]) + match[4], html)
