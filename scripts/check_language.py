"""Check that documents are written in plain technical English: ``python scripts/check_language.py docs README.md``.

``tests/test_language.py`` holds every document and every message of the program against these rules.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

MAX_WORDS, MAX_LINE, MAX_TABLE_LINE, MAX_PAGE = 30, 120, 240, 1500
REPLACED = re.compile(
    r"\b(?:jur(?:y|ies|ors?)|dream\w*|prolong\w*|harvest\w*|mourn\w*|bur(?:y|ied|ies)|doubt\w*|opinions?|habits?|lasting"
    r"|told|foreign\w*|parting|recollections?|surprise[sd]?|practis\w+|go(?:es|ing)? on|went on|c[ao]me true|came of it"
    r"|arenas?|inert|pictures?|sentences?|judge\w*|judgement|look(?:s|ed)? (?:like|at|through)|two-armed|one-armed"
    r"|has no part|so far as|clumsy|flatter\w*|believe[sd]?|sees? what|abyss|wherewith|whereof)\b",
    re.IGNORECASE,
)
"""Words without an ordinary use in this field, or with a better word in the glossary."""
INTERVAL = re.compile(r"\[\s*[-+−]?[\d.,]+\s*%?\s*,\s*[-+−]?[\d.,]+\s*%?\s*\]")
WORD = re.compile(r"\w[\w'’.,/×%-]*")
FENCE = re.compile(r"^(```|~~~).*?^\1", flags=re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """Drop code blocks, HTML, link targets and the contents of backquotes; a code span counts as one word."""
    text = FENCE.sub("", text)
    text = re.sub(r"``[^`]*``|`[^`]*`", "Code", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"<[^>\n]+>", " ", text)


def sentences(text: str) -> Iterator[str]:
    """Split prose at its full stops; table cells, list items, headings and paragraphs end one, and so do colons."""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.|#+|\|)\s)", prose(text)):
        cells = block.split("|") if block.lstrip().startswith("|") else [block]
        for cell in cells:
            plain = " ".join(cell.split())
            yield from (part for part in re.split(r"(?<=[.!?:;])[)\"*_]*\s+", plain) if part)


def word_count(text: str) -> int:
    """Words of prose."""
    return len(WORD.findall(prose(text)))


def faults_of_prose(text: str) -> list[str]:
    """Statements that are too long or have two intervals, and words that the glossary replaced."""
    faults: list[str] = []
    for sentence in sentences(text):
        words = len(WORD.findall(INTERVAL.sub("interval", sentence)))
        if words > MAX_WORDS:
            faults.append(f"{words} words: {sentence[:90]!r}")
        if len(INTERVAL.findall(sentence)) > 1:
            faults.append(f"two intervals in one sentence or cell: {sentence[:90]!r}")
        faults += [f"replaced word {match[0]!r}: {sentence[:90]!r}" for match in REPLACED.finditer(sentence)]
    return faults


def faults_of_page(text: str) -> list[str]:
    """All faults of one Markdown document."""
    faults = faults_of_prose(text)
    for number, line in enumerate(FENCE.sub(lambda code: "\n" * code[0].count("\n"), text).split("\n"), 1):
        limit = MAX_TABLE_LINE if line.lstrip().startswith("|") else MAX_LINE
        if len(line) > limit and "](" not in line:
            faults.append(f"line {number}: {len(line)} characters, {limit} at most")
    if (words := word_count(text)) > MAX_PAGE:
        faults.append(f"{words} words, {MAX_PAGE} at most")
    return faults


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings and comments of a Python file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def faults_of_source(source: str) -> list[str]:
    """Replaced words in the docstrings and comments of a Python file."""
    return [
        f"line {line}: replaced word {match[0]!r}"
        for line, text in comments(source)
        for match in REPLACED.finditer(prose(text))
    ]


def pages(paths: list[Path]) -> list[Path]:
    """Markdown files among the paths and in their folders; the glossary names the replaced words."""
    found = [page for path in paths for page in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]
    return [page for page in found if page.name != "glossary.md"]


def main() -> int:
    """Print the faults of the given documents."""
    faults = [
        f"{page}: {fault}"
        for page in pages([Path(a) for a in sys.argv[1:]])
        for fault in faults_of_page(page.read_text())
    ]
    print("\n".join(faults) or "no faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
