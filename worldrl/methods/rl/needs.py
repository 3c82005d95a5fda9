"""What a part needs of the method that it is put into, and the refusal where the method does not have it.

A part says its needs by a decorator, ``@needs(MATES)``; parts of other packages that say nothing need nothing. A method
says what it lacks, and how to mend that: ``{MATES: "group_size=1 gives none; give group_size=2"}``.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from worldrl.core.errors import SettingError

P = TypeVar("P", bound=Callable[..., Any])
T = TypeVar("T")
MATES, SUCCESS, PROBABILITY, SURPRISE, IMAGES, TREE, AVERAGE, BEGINNING, POLICY, DEMONSTRATIONS = (
    "several rollouts of one start",
    "rollouts that succeed or fail",
    "the success probability after each decision",
    "the log-probability of each decision",
    "the images before and after each decision",
    "rollouts that share their beginnings",
    "an average of the policy's weights",
    "the policy's weights of the iteration's beginning",
    "a policy that acts in imagination",
    "demonstrations in each gradient step",
)


def needs(*what: str) -> Callable[[P], P]:
    """Note what a part needs."""

    def note(part: P) -> P:
        part.needs = what  # type: ignore[attr-defined]
        return part

    return note


def needs_of(part: Any) -> tuple[str, ...]:
    """Return what a part needs; nothing where it does not say."""
    return getattr(part, "needs", ())


def lacking(part: Any, lacks: Mapping[str, str]) -> list[str]:
    """Return those of a part's needs that a method lacks."""
    return [need for need in needs_of(part) if need in lacks]


def given(value: T | None, need: str, part: str) -> T:
    """Return what a trace holds; SettingError where it does not."""
    if value is None:
        raise SettingError(f"parts: {part} needs {need}, and these rollouts have none; leave it out")
    return value
