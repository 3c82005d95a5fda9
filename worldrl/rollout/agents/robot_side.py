"""Between a real robot and a policy trained on its recordings: numbers and images of one in those of the other.

The policy's inputs and outputs are what worldrl made of the recordings: grippers 0 closed and 1 open (LIBERO's -1 and
1), images turned and resized. :class:`RobotSide` repeats that for observations and undoes it for actions::

    side, policy = RobotSide.of(folder), load_policy(folder, "cpu")
    obs = PolicyObs(image, command, instruction)                # from side.image(...) and side.numbers(...)
    chunk = policy.act(obs, generators=None)
    targets = side.targets(chunk.action[0].numpy())             # in the robot's own numbers

Shapes legend: ``L`` actions of a chunk, ``A`` numbers of an action, ``Y X`` pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.image_fit import Fit
from worldrl.core.storage.typed import from_plain
from worldrl.data.lerobot.external.gripper import Ends, in_robots_numbers
from worldrl.data.lerobot.external.images import TURNS, fitted
from worldrl.rollout.agents.policy_folder import policy_facts

RECORDED = "recorded"
"""Key of what a policy was trained on: how external recordings were turned into the robot's numbers."""


@dataclass(frozen=True)
class _Ends:
    """Recorded numbers of one gripper."""

    open: float
    closed: float


@dataclass(frozen=True)
class _Recorded:
    """One external dataset, as ``evaluation.policy.trained_on`` writes it."""

    folder: str
    gripper: dict[str, _Ends] | None
    cameras: dict[str, str]
    pictures: str
    image_sizes: tuple[tuple[int, int], ...]
    image_size: tuple[int, int]
    fit: Fit = Fit.stretch


@dataclass(frozen=True)
class RobotSide:
    """How a robot's numbers and images become a policy's, and back.

    ``ends`` holds the robot's numbers for open and closed of each gripper, None where the policy's are the robot's.
    ``pictures`` names the turn of images, ``image_size`` their rows and columns afterwards (pixels), ``fit`` how they
    get them.
    """

    actions: ActionSpec
    ends: Ends | None
    pictures: str
    image_size: tuple[int, int]
    fit: Fit

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read a policy's folder.

        Raises SettingError (it was not trained on external recordings, or they differ in their numbers). Raises
        ArtefactError (its record of them is damaged).
        """
        facts = policy_facts(folder)
        recorded = (facts.trained_on or {}).get(RECORDED) or []
        if not recorded:
            raise SettingError(
                f"{folder}: the policy keeps nothing of a recorded robot; train it again from the robot's recordings, "
                "or send its numbers as they are"
            )
        sides = list(dict.fromkeys(cls._of(facts.actions, entry, folder) for entry in recorded))
        if len(sides) > 1:
            names = [str(entry.get("folder")) for entry in recorded]
            raise SettingError(
                f"{folder}: its recordings differ in gripper, turn or size of images ({', '.join(names)}); train one "
                "policy for each of the robots"
            )
        return sides[0]

    @classmethod
    def served(cls, folder: Path, fit: Fit | None = None) -> Self:
        """Of a policy that acts for a client: of its recordings, else in the policy's own numbers.

        ``fit`` replaces how images get the policy's size; without any they are stretched. Raises as :meth:`of`.
        """
        facts = policy_facts(folder)
        own = Fit.stretch if facts.fit is Fit.refuse else facts.fit
        plain = cls(facts.actions, None, next(iter(TURNS)), facts.picture, own)
        side = cls.of(folder) if (facts.trained_on or {}).get(RECORDED) else plain
        return replace(side, image_size=facts.picture, fit=fit or side.fit)

    @classmethod
    def _of(cls, actions: ActionSpec, entry: Any, folder: Path) -> Self:
        stored = from_plain(_Recorded, entry, where=f"{folder}: trained_on.{RECORDED}", error=ArtefactError)
        names = [actions.names[place] for place in actions.grippers]
        if stored.pictures not in TURNS or (stored.gripper is not None and set(stored.gripper) != set(names)):
            raise ArtefactError(
                f"{folder}: trained_on.{RECORDED}: grippers {stored.gripper} of {names}, images {stored.pictures!r}; train again"
            )
        found = stored.gripper
        ends = None if found is None else tuple((found[name].open, found[name].closed) for name in names)
        return cls(actions, ends, stored.pictures, stored.image_size, stored.fit)

    def image(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Turn and resize a camera's image ``[Y, X, 3]`` as in training."""
        return fitted(image, turn=self.pictures, size=self.image_size, fit=self.fit)

    def numbers(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map measured or commanded numbers ``[..., A]`` of the robot to the policy's."""
        return in_robots_numbers(values, self.ends, self.actions)

    def targets(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map a policy's actions ``[L, A]`` to the robot's numbers."""
        if self.ends is None:
            return action
        mapped, spec, grippers = action.copy(), self.actions, list(self.actions.grippers)
        opened, closed = np.array(self.ends, np.float32).T
        share = (action[..., grippers] - spec.gripper_open) / (spec.gripper_closed - spec.gripper_open)
        mapped[..., grippers] = opened + share * (closed - opened)
        return mapped
