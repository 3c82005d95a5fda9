"""Text of strangers on a terminal: names of files and tasks, instructions."""

from unicodedata import category

JOINERS = "\u200c\u200d"  # They choose shapes of letters, and belong to the writing of many languages


def visible(text: str) -> str:
    """Write characters that steer a terminal or turn the direction of text as escapes; newlines and tabs stay."""
    if text.isprintable():
        return text
    kept = f"\n\t{JOINERS}"
    return "".join(c if c in kept or category(c) not in ("Cc", "Cf") else ascii(c)[1:-1] for c in text)
