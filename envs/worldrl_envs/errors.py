"""Errors that name the field, the rule, what was received and the nearest valid name."""

from collections.abc import Iterable
from difflib import get_close_matches


class EnvsError(Exception):
    """Base of every deliberate error of this package."""


class ActionError(EnvsError, ValueError):
    """An action whose dtype, shape or numbers are not those of the action space."""


class UnknownNameError(EnvsError, ValueError):
    """A name (task, kind, style, camera, option) that does not exist."""


class OptionError(EnvsError, ValueError):
    """A `reset` option, a state or an argument whose value cannot be used."""


class RenderingError(EnvsError, RuntimeError):
    """Nothing can be drawn here; the message says what to install or how to start the process."""


def unknown_name(field: str, received: object, valid: Iterable[str]) -> UnknownNameError:
    """Build the error for an unknown name, with the nearest valid ones first."""
    names = sorted(valid)
    near = get_close_matches(str(received), names, n=1, cutoff=0.4)
    hint = f"nearest is {near[0]!r}; " if near else ""
    return UnknownNameError(f"{field}: unknown name {received!r}; {hint}valid: {', '.join(names)}")


def check_name(field: str, received: object, valid: Iterable[str]) -> None:
    """Raise `UnknownNameError` unless `received` is one of `valid`."""
    valid = tuple(valid)
    if received not in valid:
        raise unknown_name(field, received, valid)
