"""Checks of what `reset` is given: types and ranges, before anything changes."""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl_envs.errors import OptionError, check_name
from worldrl_envs.instruction_space import InstructionSpace
from worldrl_envs.starts import check_stored
from worldrl_envs.task_spec import TaskSpec

OPTIONS = ("init_id", "index", "state", "instruction", "paraphrase")
ALTERNATIVES = (("init_id", "index", "state"), ("instruction", "paraphrase", "state"))
"""Of each group at most one may be given: where an episode starts, and what its instruction is."""

_SPACE = InstructionSpace()


def whole_number(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return `value` if it is an integer in `low`..`high`, else raise OptionError."""
    rule = f"of at least {low}" if high is None else f"in {low}..{high}"
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        raise OptionError(f"{name}: must be an integer {rule}, got {value!r:.80}")
    return number


def instruction_text(name: str, value: object) -> str:
    """Return `value` if the observation space holds it; else raise OptionError."""
    if refusal := _SPACE.refusal(value):
        raise OptionError(f"{name}: {refusal}")
    return str(value)


def check_seed(seed: object) -> int | None:
    """Return a seed, an integer of at least 0 or None; else raise OptionError."""
    return None if seed is None else whole_number("seed", seed, 0)


def check_options(options: object, seed: int | None, task: TaskSpec) -> dict[str, Any]:
    """Return options that can be used (`state` is checked later); UnknownNameError or OptionError for others."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise OptionError(f"options: must be a dictionary or None, got {type(options).__name__}")
    for key in options:
        check_name("options", key, OPTIONS)
    for group in ALTERNATIVES:
        if len(given := [key for key in group if key in options]) > 1:
            raise OptionError(f"options: at most one of {group} may be given, got {given}")
    checked = dict(options)
    if "index" in options:
        checked["index"] = whole_number("options['index']", options["index"], 0)
        if seed is None:
            raise OptionError("options['index']: needs a seed too, as in reset(seed=0, options={'index': 3})")
    if "init_id" in options:
        checked["init_id"] = whole_number("options['init_id']", options["init_id"], 0)
        check_stored(task.name, checked["init_id"])
    if "paraphrase" in options:
        most = len(task.paraphrases) - 1
        checked["paraphrase"] = whole_number("options['paraphrase']", options["paraphrase"], 0, most)
    if "instruction" in options:
        checked["instruction"] = instruction_text("options['instruction']", options["instruction"])
    return checked


def check_state(state: object, like: Mapping[str, Any], task: TaskSpec) -> dict[str, Any]:
    """Return a state with the keys, shapes and dtypes of `like`, the environment's own now; else OptionError."""
    if not isinstance(state, Mapping):
        raise OptionError(f"state: must be a dictionary from get_state, got {type(state).__name__}")
    if missing := [name for name in like if name not in state]:
        raise OptionError(f"state: lacks {', '.join(map(repr, missing))}; take it from get_state")
    for name in state:
        check_name("state", name, like)
    for name in ("task", "domain"):
        if name in like and state[name] != like[name]:
            raise OptionError(f"state[{name!r}]: must be {like[name]!r}, got {state[name]!r}")
    for name, own in like.items():
        if isinstance(own, np.ndarray):
            _check_array(f"state[{name!r}]", state[name], own)
    for name, low in (("step", 0), ("init_id", -1), ("domain_seed", 0)):
        if name in like:
            whole_number(f"state[{name!r}]", state[name], low)
    whole_number("state['stage']", state["stage"], 0, len(task.stages))
    instruction_text("state['instruction']", state["instruction"])
    _check_generator(state["rng"], like["rng"])
    return dict(state)


def _check_array(name: str, value: object, like: NDArray[Any]) -> None:
    if not isinstance(value, np.ndarray) or value.shape != like.shape or value.dtype != like.dtype:
        got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise OptionError(f"{name}: must hold {like.size} numbers, {like.dtype} {like.shape}, got {got}")
    if not np.isfinite(value).all():
        raise OptionError(f"{name}: must be finite, got {value[~np.isfinite(value)][0]}")


def _check_generator(state: object, like: Mapping[str, Any]) -> None:
    kind = getattr(np.random, str(like["bit_generator"]))
    try:
        kind().state = state
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise OptionError(f"state['rng']: is no state of {kind.__name__}; take it from get_state") from error
