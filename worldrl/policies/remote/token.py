"""The token of a server: a file that only its owner can read; never on a command line, in a log or in a result."""

import stat
from pathlib import Path

from worldrl.core.errors import SettingError

LEAST = 16  # characters
MAKE = "python -c 'import secrets; print(secrets.token_urlsafe())' > FILE && chmod 600 FILE"


def read_token(file: Path) -> str:
    """Read a token; SettingError where there is none, it is short, or other users can read it."""
    try:
        mode, token = file.stat().st_mode, file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise SettingError(
            f"token_file: {file} cannot be read as text ({type(error).__name__}); make one: {MAKE}"
        ) from None
    if len(token) < LEAST or not token.isprintable() or " " in token:
        raise SettingError(
            f"token_file: {file} must hold one token of at least {LEAST} characters without spaces; make one: {MAKE}"
        )
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingError(f"token_file: other users can read {file}; chmod 600 {file}")
    return token
