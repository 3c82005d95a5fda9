"""What an instruction is: text of at least one word and at most as many as an encoder reads."""

import re
import unicodedata

from worldrl.core.errors import SettingError, WorldrlError

MAX_WORDS = 32
"""Longest instruction, in words. A fixed length keeps an encoding independent of the other instructions of a batch."""

MAX_CHARACTERS = 1024  # Longest instruction, in characters: what is stored per instruction has a largest size

_MARKS = ("Mn", "Mc", "Me")
_JOINERS = dict.fromkeys(map(ord, "\u200c\u200d\u2060\ufe0e\ufe0f"))


def words(instruction: str) -> list[str]:
    """Split an instruction into lower-case words; punctuation separates and is dropped.

    Combining marks belong to their letter (Indic and Thai vowels), text is composed (NFC), joiners are left out.
    """
    lower = instruction.lower()
    if lower.isascii():
        return re.findall(r"\w+", lower)
    spaced: list[str] = []
    inside = False
    for character in unicodedata.normalize("NFC", lower.translate(_JOINERS)):
        # The first half is what the regular expression counts as a letter.
        letter = character.isalnum() or character == "_"
        inside = letter or (inside and unicodedata.category(character) in _MARKS)
        spaced.append(character if inside else " ")
    return [word for word in "".join(spaced).split(" ") if word]


def instruction_words(instruction: str) -> list[str]:
    """Return an instruction's words; SettingError for none, or too many words or characters."""
    if len(instruction) > MAX_CHARACTERS:
        raise SettingError(f"instruction: at most {MAX_CHARACTERS} characters, got {len(instruction)}; shorten it")
    found = words(instruction)
    if not found:
        raise SettingError(f"instruction: must hold at least one word, got {instruction[:80]!r}; say what to do")
    if len(found) > MAX_WORDS:
        raise SettingError(f"instruction: at most {MAX_WORDS} words, got {len(found)}; shorten it")
    return found


def check_text(name: str, value: object, where: str, error: type[WorldrlError]) -> str:
    """Return a value that is text and not empty, and can be stored as UTF-8; else raise ``error``."""
    if not isinstance(value, str) or not value.strip():
        raise error(f"{where}: {name} must be text that is not empty, got {value!r}; give {name}='...'")
    try:
        value.encode()
    except UnicodeEncodeError as reason:
        raise error(f"{where}: {name} is no valid Unicode ({value!r}); decode it as UTF-8 first") from reason
    return value
