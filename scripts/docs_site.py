"""Hook of the documentation's site: names of docstrings in code type, and notebooks as pages.

Sphinx's roles in docstrings, such as ``:class:`~a.b.C```, become names. A notebook is a Python file in percent format,
``docs/notebooks/NAME.py``, which Jupyter (jupytext) and editors open; the site shows it as a page.
"""

import re
from pathlib import Path
from typing import Any

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):(<code[^>]*>)(~?)([\w.]+)(</code>)")
CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)
NOTEBOOK = re.compile(r"\]\(((?:notebooks/)?\w+)\.py\)")


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with each page's HTML."""
    return ROLE.sub(lambda match: match[1] + (match[3].rpartition(".")[2] if match[2] else match[3]) + match[4], html)


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs with all files: each notebook becomes a page."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_uri.startswith("notebooks/") and file.src_uri.endswith(".py")]:
        source = Path(file.abs_src_path).read_text(encoding="utf-8")
        files.remove(file)
        files.append(File.generated(config, file.src_uri.removesuffix(".py") + ".md", content=as_page(source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with each page's Markdown: links to notebooks lead to their pages."""
    return NOTEBOOK.sub(r"](\1.md)", markdown)


def as_page(source: str) -> str:
    """Turn a notebook in percent format into Markdown."""
    _, *parts = CELL.split(source)
    cells = zip(parts[::2], parts[1::2], strict=True)
    return "\n\n".join(
        re.sub(r"^# ?", "", text.strip(), flags=re.MULTILINE)
        if "[markdown]" in kind
        else f"```python\n{text.strip()}\n```"
        for kind, text in cells
    )
