"""Every error that worldrl raises on purpose; the command line prints it without a traceback, unlike a bug."""

import difflib
from collections.abc import Collection, Iterable


class WorldrlError(Exception):
    """Base of every deliberate error."""


class SettingError(WorldrlError, ValueError):
    """A setting is unknown, has the wrong type or lies outside its range."""


class ActionError(WorldrlError, ValueError):
    """An action is not finite, or has the wrong shape, dtype or range; no state was changed."""


class ArtefactError(WorldrlError):
    """A policy, world model or dataset folder is missing, damaged or of another schema."""


class RunDirectoryError(WorldrlError):
    """A run directory cannot be written, is in use, or belongs to another configuration."""


class GateError(WorldrlError):
    """A validation gate failed: the message holds the number, its threshold and what to do."""


class ProtocolError(WorldrlError):
    """Two results were measured under different protocols, or an episode identity is wrong."""


class WorkerError(WorldrlError):
    """A simulator worker died or fell silent; the message names worker, task and episode."""


class RemoteError(WorldrlError):
    """A policy or world model of another process cannot be reached, is too slow, or answers wrongly."""


class WorkerEnvironmentError(WorldrlError):
    """A simulator's own Python environment is missing, incomplete or of another version; the message says what to run."""


class NonFiniteError(WorldrlError):
    """A loss, gradient, action or latent became NaN or infinite; training stops with its name and step."""


class LostProcessError(WorldrlError):
    """Another process of the same training ended; the message says how to resume."""


class MissingExtraError(WorldrlError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


def require_at_least_one(settings: object, names: Iterable[str], *, of: str = "") -> None:
    """SettingError for the first of these counts below 1; ``of`` stands before its name, as ``"improvement.grpo"``."""
    for name in names:
        value = getattr(settings, name)
        if value < 1:
            raise SettingError(f"{of}{'.' if of else ''}{name}: must be at least 1, got {value}")


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a clause for a message: ``"; did you mean 'seed'?"``, or the list of valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; valid names: {', '.join(names)}"


def require_value(ok: bool, name: str, rule: str, value: object) -> None:
    """Refuse a setting out of its range: SettingError with setting, rule and value."""
    if not ok:
        raise SettingError(f"{name} must be {rule}, got {value!r}; give {name}=... in that range")


def one_of(name: str, value: str, valid: Collection[str]) -> None:
    """Require one of a few names; SettingError with the nearest."""
    if value not in valid:
        raise SettingError(f"{name}: unknown value {value!r}{nearest(value, valid)}")
