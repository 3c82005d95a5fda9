"""The effects of ``worldrl reproduce``: summary, cost and module of each."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

from worldrl.core.errors import SettingError, nearest
from worldrl.core.storage.capacity import require_memory
from worldrl.reproductions.findings import Findings

SCALES = ("tiny", "quick", "full", "paper")


@dataclass(frozen=True)
class Cell:
    """One run of one method with one seed: the content of a stage."""

    method: str
    seed: int


@dataclass(frozen=True)
class Task:
    """A cell of an effect at a scale, with changed settings; plain values, so another process can compute it."""

    name: str
    scale: str
    change: Mapping[str, float | str]
    cell: Cell

    @property
    def label(self) -> str:
        """Method and seed."""
        return f"{self.cell.method}, seed {self.cell.seed}"

    def compute(self, folder: Path) -> dict[str, Any]:
        """Run the method."""
        effect = find(self.name).load()
        return effect.run(changed(effect.SETTINGS[self.scale], self.change), self.cell, folder)


class Reproduction(Protocol):
    """An effect's module; settings are a frozen dataclass with ``seeds``. It may have ``numbers_read`` (below), too."""

    SETTINGS: Mapping[str, Any]
    METHODS: Sequence[str]
    run: Callable[[Any, Cell, Path], dict[str, Any]]
    conclude: Callable[[Any, Mapping[str, Sequence[dict[str, Any]]]], Findings]


@dataclass(frozen=True)
class Entry:
    """One effect; ``module`` is below ``worldrl.reproductions``, ``cost`` is of the quick, the full and the paper's scale."""

    name: str
    module: str
    summary: str
    cost: str

    def load(self) -> Reproduction:
        """Import its module."""
        module: Any = importlib.import_module(f"worldrl.reproductions.{self.module}")
        return module


CATALOGUE = {
    entry.name: entry
    for entry in (
        Entry(
            "edge-of-reach-2d",
            "edge_of_reach.plane_agents",
            "with true dynamics a penalised method is the base method and fails; RAVL and oracle patching do not",
            "quick 6 CPU min for five seeds; full some 4 min of one core per seed; paper not timed",
        ),
        Entry(
            "neubay-bandit",
            "neubay.bandit",
            "a penalty commits to the arm that the data show; neutral Bayes tries the other and keeps the better",
            "quick 2 min (20 CPU s per stage); full 19 CPU min for five seeds; paper not timed",
        ),
        Entry(
            "neubay-horizon",
            "neubay.horizon",
            "over-estimation falls as the rollout horizon grows (a pendulum)",
            "quick 22 CPU min for three seeds; full an hour of one core for ten; paper not timed",
        ),
        Entry(
            "edge-of-reach",
            "edge_of_reach.mujoco",
            "the same with the simulator of a MuJoCo task as the model: base collapses, RAVL does not",
            "quick 12 CPU min for three seeds; full 28 CPU min for ten; paper extrapolated, 7 h of one core per seed",
        ),
        Entry(
            "pgd",
            "pgd.reproduction",
            "policy-guided diffusion: smaller dynamics error than the ensemble, better TD3+BC and IQL",
            "quick 8 min of one core; full 17 to 31 min of one core for each of ten seeds; paper not timed",
        ),
        Entry(
            "offline-video",
            "offline_video.reproduction",
            "RAVL, NEUBAY and policy-guided diffusion on video latents, against behaviour cloning in the simulator",
            "quick 12 min on two cores for three seeds; full 69 CPU min for five seeds; paper not timed",
        ),
        Entry(
            "eva",
            "eva.reproduction",
            "two arms: a reward by inverse dynamics makes a video model's decoded plans executable",
            "quick about an hour of a shared core for each of three seeds; full 40 min of one core per seed; paper not timed",
        ),
        Entry(
            "wovr",
            "mechanisms.wovr",
            "keyframe starts, masks and co-evolution raise real success; an anchor and noise on the memory lessen drift",
            "quick extrapolated: half an hour of one core for each of 3 seeds and 6 arms; full, paper not timed",
        ),
        Entry(
            "sword",
            "mechanisms.sword",
            "training on own frames and a buffer of latents lessen drift; augmented styles carry over to unseen ones",
            "quick extrapolated: an hour of one core for each of 3 seeds; full, paper not timed",
        ),
        Entry(
            "world-vla-loop",
            "mechanisms.world_vla_loop",
            "near-success data and the closed loop raise real success; a joint loss predicts outcomes better",
            "quick extrapolated: half an hour of one core for each of 3 seeds and 6 arms; full, paper not timed",
        ),
        Entry(
            "methods",
            "yardstick.reproduction",
            "parts of GRPO on the same imagined groups: variance of the gradient, and cosine to a large-batch gradient",
            "quick 3 CPU min for each start policy and seed, extrapolated from 1 min for 24 groups; full, paper not timed",
        ),
    )
}


BUFFER, LAYERS = ("starts", "horizon", "generations"), ("hidden", "hidden")
HELD: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "edge-of-reach-2d": (BUFFER, LAYERS, ("batch", "hidden")),
    "neubay-bandit": (LAYERS, ("width", "width"), ("batch", "states")),
    "neubay-horizon": (LAYERS, ("model_width", "model_width", "members"), ("rows", "states")),
    "edge-of-reach": (BUFFER, LAYERS, ("behaviour_hidden", "behaviour_hidden"), ("batch", "hidden")),
    "pgd": (LAYERS, ("trajectories", "length"), ("model_width", "model_width", "members"), ("features", "features")),
    "offline-video": (BUFFER, LAYERS, ("trajectories", "window"), ("features", "features"), ("batch", "hidden")),
    "eva": (("image_size", "image_size", "prompts", "explored"), ("batch", "image_size", "image_size"),
            ("codec_width", "codec_width"), ("width", "width", "depth")),
    "wovr": (("world_batch", "horizon"),),
    "sword": (("world_batch", "horizon"),),
    "world-vla-loop": (("world_batch", "horizon"),),
    "methods": (("groups", "group_size"), ("batch_groups", "group_size")),
}  # fmt: skip
"""Effect to the numbers whose product it holds in memory at once."""
HELD_BYTES = 4  # Least bytes of each: a number in float32


def require_room(name: str, sizes: Any) -> None:
    """Refuse an effect whose numbers need more than the available memory; SettingError with their least size."""
    for fields_ in HELD[name]:
        count = prod(getattr(sizes, field) for field in fields_)
        named = ", ".join(f"change.{field}={getattr(sizes, field)}" for field in dict.fromkeys(fields_))
        require_memory(HELD_BYTES * count, f"{named}: {count:,} numbers are held at once")


def methods_of(effect: Reproduction, settings: Any) -> Sequence[str]:
    """Methods to run: all of the effect, or the ``methods`` of its settings."""
    return getattr(settings, "methods", effect.METHODS)


def numbers_read(effect: Reproduction, settings: Any, method: str) -> Sequence[str]:
    """Names that an effect reads from a method's finished stage, dotted where nested; none where it defines none."""
    return getattr(effect, "numbers_read", lambda settings, method: ())(settings, method)


def find(name: str) -> Entry:
    """Return an effect's entry; SettingError with the nearest name where it is unknown."""
    if name not in CATALOGUE:
        raise SettingError(f"name: unknown effect {name!r}{nearest(name, CATALOGUE)} (worldrl reproduce lists all)")
    return CATALOGUE[name]


def changed(settings: Any, change: Mapping[str, float | str]) -> Any:
    """Return settings with new values of some fields; SettingError for an unknown field or an impossible value."""
    kinds = {item.name: type(getattr(settings, item.name)) for item in fields(settings)}
    return replace(settings, **{name: new_value(name, value, kinds) for name, value in change.items()})


def new_value(name: str, value: float | str, kinds: Mapping[str, type]) -> Any:
    """Return a new value as its field's type; raises as :func:`changed`."""
    if name not in kinds:
        raise SettingError(f"change.{name}: no such setting of this effect{nearest(name, kinds)}")
    if isinstance(value, str) != (kinds[name] is str):
        raise SettingError(f"change.{name}: must be a {'name' if kinds[name] is str else 'number'}, got {value}")
    if kinds[name] is int and not float(value).is_integer():
        raise SettingError(f"change.{name}: must be a whole number, got {value}")
    return kinds[name](value)
