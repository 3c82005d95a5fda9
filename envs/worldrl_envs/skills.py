"""The expert's skills: from the present scene to where the gripper should go next.

A skill is a function (sim, command, memory, *names) -> Goal. It reads true poses; what it must remember is in `Memory`.
Lengths are metres, angles rad, times control steps. A blind skill does its motion once, by the commanded pose, and goes
on whatever became of it: a near miss then seems a success until the thing itself shows it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import worldrl_envs.predicates as predicates
from worldrl_envs.control import PANDA
from worldrl_envs.scene import OBJECTS
from worldrl_envs.simulation import Simulation

OPEN, CLOSED = -1.0, 1.0
HOVER = 0.09  # height of the tool above a grasp point from which a descent starts
GRASP_HEIGHT = 0.02  # of the tool above the table: finger tips 1.1 cm up, palm 6.4 cm up
CARRY_HEIGHT = 0.145  # a carried cube clears the 5 cm rim of bin and drawer by 4 cm
CLOSING_TIME = 8  # after so many steps without a grip the grasp has missed
BIN_SPOT = 0.034  # two 5.2 cm cubes side by side in a 14.8 cm bin
OPEN_ENOUGH = 0.105
KNOB_REACH = 0.0355  # from the handle's stem to its front, and half a finger's depth
PUSH_STANDOFF = 0.062  # half diagonal of the cube, half the closed fingers, and 1 cm
PUSH_HEIGHT = 0.022
MAX_YAW = 0.45  # rad; the commanded rotation is limited to 0.5
PUSH_CONTACT = 0.041  # half the cube and half the closed fingers
PULL_LAG, PRESS = 0.015, 0.02  # a hand that pulls or presses stays that far behind its command
# A pick forgives an error of about 1.3 cm, a container 5 to 7, a zone 3.4, a drawer's end 2 to 3: a blind
# skill's error is so many times larger there, so that about as many of its attempts are near misses.
BLIND_PLACE, BLIND_PUSH, BLIND_SLIDE = 3.0, 2.0, 2.0
FUNNEL_FREE, FUNNEL_SLOPE = 0.006, 3.0


@dataclass(frozen=True)
class Goal:
    """Where the gripper should go now."""

    position: NDArray[np.float64]  # Of the tool centre point, float64[3]
    yaw: float = 0.0  # Turn about the vertical, rad
    gripper: float = OPEN  # -1 open, +1 closed
    speed: float = 1.0  # Largest position component of the action, in (0, 1]
    reached: bool = False  # The skill has finished; the next one may begin
    failed: bool = False  # The skill cannot finish; the one before it must be repeated


@dataclass
class Memory:
    """What a skill remembers between control steps."""

    generator: np.random.Generator  # Draws the aiming error
    offset_std: float = 0.0  # Standard deviation of the aiming error
    timer: int = 0  # Control steps spent in the present phase
    phase: str = ""  # Name of the present phase
    # Every skill is tried once. A pick closes and lifts, whether or not it holds the object; what is carried is let go
    # over a misplaced spot; pushes and pulls end at a misplaced point. A seeing expert lifts only what it holds, so
    # from its episodes a world model learns that lifting proves a grasp, and imagines success for every policy that
    # lifts.
    blind: bool = False
    offset: NDArray[np.float64] = field(init=False)  # This attempt's aiming error in the plane

    def __post_init__(self) -> None:
        """Draw the first aiming error."""
        self.offset = self.offset_std * self.generator.standard_normal(2)

    def missed(self) -> None:
        """Aim again, with half the error."""
        self.offset_std /= 2
        self.offset = self.offset_std * self.generator.standard_normal(2)
        self.enter("")

    def enter(self, phase: str) -> None:
        """Start a phase."""
        self.phase, self.timer = phase, 0

    def tick(self, phase: str) -> int:
        """Control steps spent in `phase` so far, counting this one."""
        if phase != self.phase:
            self.enter(phase)
        self.timer += 1
        return self.timer


def pick(sim: Simulation, command: NDArray[np.float32], memory: Memory, name: str) -> Goal:
    """Grasp an object from above and lift it."""
    if memory.phase == "lift" or (not memory.blind and predicates.held(sim, name)):
        memory.enter("lift" if memory.blind else "")
        return _lift(sim, command, name, memory.blind)
    height = min(GRASP_HEIGHT, OBJECTS[name].rest_height)
    return _grasp(sim, command, memory, np.array([*sim.position(name)[:2], height]), _grasp_yaw(sim, name))


def _grasp(
    sim: Simulation, command: NDArray[np.float32], memory: Memory, point: NDArray[np.float64], yaw: float = 0.0
) -> Goal:
    return grasp(bool(sim.fingers.sum() > 0.07), command, memory, point, yaw)


def grasp(
    fingers_open: bool,
    command: NDArray[np.floating],
    memory: Memory,
    point: NDArray[np.float64],
    yaw: float = 0.0,
    closing_time: int = CLOSING_TIME,
) -> Goal:
    """Go around `point` with open fingers and close them; after a miss rise, open, aim again."""
    target = point[:2] + memory.offset
    error = float(np.linalg.norm(target - command[:2]))
    arrived = error < 0.006 and command[2] < point[2] + 0.006
    if memory.phase == "close" or (arrived and fingers_open):
        if memory.tick("close") > closing_time:
            if memory.blind:
                memory.enter("lift")
            else:
                memory.missed()
        return Goal(np.array([*target, point[2]]), yaw, CLOSED)
    if not fingers_open and command[2] < point[2] + HOVER:
        return Goal(np.array([*command[:2], point[2] + HOVER + 0.02]), yaw, OPEN)
    return Goal(np.array([*target, point[2] + funnel(error)]), yaw, OPEN)


def _lift(sim: Simulation, command: NDArray[np.float32], name: str, blind: bool) -> Goal:
    # Straight up, from where the object was gripped; reached once it is well clear, blindly once the hand is.
    up = np.array([*command[:2], CARRY_HEIGHT])
    clear = command[2] > CARRY_HEIGHT - 0.01 if blind else sim.height(name) > predicates.LIFT_HEIGHT
    return Goal(up, float(command[5]), CLOSED, reached=bool(clear))


def funnel(error: float) -> float:
    """Height to keep above the grasp while still `error` off: the fingers descend in a funnel."""
    return float(np.clip(FUNNEL_SLOPE * (error - FUNNEL_FREE), 0.0, HOVER))


def _grasp_yaw(sim: Simulation, name: str) -> float:
    """Turn of the fingers that meets two faces of the object; none for an upright cylinder."""
    shape = OBJECTS[name]
    axis = sim.axis(name)
    if shape.shape == "cylinder":
        # A fallen one is 5.2 cm across and 5.5 cm along, so either way fits the hand.
        return 0.0 if abs(axis[2]) > 0.7 else _fold(float(np.arctan2(axis[1], axis[0])), np.pi / 2)
    return _fold(sim.yaw(name), np.pi / 2)


def _fold(yaw: float, period: float) -> float:
    """The equivalent turn nearest to none, within what the hand may turn."""
    return float(np.clip(yaw - period * np.round(yaw / period), -MAX_YAW, MAX_YAW))


def place(sim: Simulation, command: NDArray[np.float32], memory: Memory, name: str, container: str) -> Goal:
    """Carry the object over the container and let go; failed if it falls beside."""
    held, inside = predicates.held(sim, name), predicates.inside(sim, name, container)
    if memory.phase == "release":
        time = memory.tick("release")
        rise = np.array([*command[:2], command[2] if time < 4 else CARRY_HEIGHT])
        over = time > 8 and (memory.blind or not held)
        fits = memory.blind or inside
        return Goal(rise, float(command[5]), OPEN, reached=over and fits, failed=over and not fits)
    if not memory.blind and not held and memory.tick("dropped") > CLOSING_TIME:
        return Goal(command[:3].astype(np.float64), gripper=OPEN, failed=True)
    target = _aim(memory, _opening_centre(sim, container), BLIND_PLACE)
    error = float(np.linalg.norm(target - command[:2]))
    if error < 0.008 and command[2] < 0.095:
        memory.enter("release")
    height = 0.085 if error < 0.03 else CARRY_HEIGHT
    return Goal(np.array([*target, height]), float(command[5]), CLOSED)


def _aim(memory: Memory, point: NDArray[np.float64], blind_share: float) -> NDArray[np.float64]:
    """Where a thing is brought instead of to `point`; a blind hand never aims beyond where it can go."""
    if not memory.blind:
        return point + memory.offset
    return np.clip(point + blind_share * memory.offset, PANDA.workspace_low[:2], PANDA.workspace_high[:2])


def _opening_centre(sim: Simulation, container: str) -> NDArray[np.float64]:
    if container == "drawer":
        # Middle of what sticks out of the cabinet, whose front is 7 cm before its centre.
        front = sim.position("cabinet")[0] + 0.07
        return np.array([(front + sim.position("drawer")[0] + 0.064) / 2, sim.position("drawer")[1]])
    yaw = sim.yaw("bin")
    return sim.position("bin")[:2] + _bin_spot(sim) * np.array([np.cos(yaw), np.sin(yaw)])


def _bin_spot(sim: Simulation) -> float:
    """Where along the bin's long side to drop: its middle for one cube, beside the first for two."""
    if len(sim.objects) == 1:
        return 0.0
    lying = [sim.local(name, "bin")[0] for name in sim.objects if predicates.inside(sim, name, "bin")]
    return BIN_SPOT if not lying or lying[0] < 0 else -BIN_SPOT


def open_drawer(sim: Simulation, command: NDArray[np.float32], memory: Memory) -> Goal:
    """Grasp the knob from above and pull it toward +x, then let go and rise."""
    if memory.phase == "release" or (not memory.blind and sim.opening > OPEN_ENOUGH):
        time = memory.tick("release")
        height = command[2] if time < 4 else CARRY_HEIGHT
        return Goal(np.array([*command[:2], height]), gripper=OPEN, reached=time > 4 and command[2] > 0.12)
    if memory.blind and memory.phase == "lift":
        return _pull(sim, command, memory)
    if not memory.blind and _hooked(sim):
        memory.enter("")
        return Goal(np.array([command[0] + 0.02, *sim.knob[1:]]), gripper=CLOSED)
    return _grasp(sim, command, memory, sim.knob)


def _pull(sim: Simulation, command: NDArray[np.float32], memory: Memory) -> Goal:
    """Pull what the fingers closed on, if anything, to where the drawer would be open."""
    end = _shut_knob(sim) + OPEN_ENOUGH + PULL_LAG + BLIND_SLIDE * memory.offset[0]
    if command[0] > min(end, PANDA.workspace_high[0] - 0.005):
        memory.enter("release")
    return Goal(np.array([command[0] + 0.02, *sim.knob[1:]]), gripper=CLOSED)


def _shut_knob(sim: Simulation) -> float:
    """Where along x the knob is when the drawer is shut; the cabinet does not move."""
    return float(sim.knob[0] - sim.opening)


def _hooked(sim: Simulation) -> bool:
    """The fingers are closed around the stem of the handle, behind its tip."""
    off = np.abs(sim.tcp - sim.knob)
    return bool(sim.fingers.sum() < 0.04 and np.all(off < (0.02, 0.012, 0.025)))


def close_drawer(sim: Simulation, command: NDArray[np.float32], memory: Memory) -> Goal:
    """Push the knob toward -x with closed fingers."""
    if memory.phase == "press":
        return _press(sim, command, memory)
    if not memory.blind and sim.opening < 0.004:
        return Goal(np.array([*command[:2], CARRY_HEIGHT]), gripper=CLOSED, reached=True)
    knob = sim.knob
    before = np.array([knob[0] + KNOB_REACH + 0.02, knob[1] + memory.offset[1]])
    aligned = abs(command[1] - before[1]) < 0.012 and command[0] > knob[0] + 0.5 * KNOB_REACH
    if aligned and command[2] < knob[2] + 0.01:
        if memory.blind:
            memory.enter("press")
        return Goal(np.array([command[0] - 0.02, before[1], knob[2]]), gripper=CLOSED)
    error = float(np.linalg.norm(before - command[:2]))
    return Goal(np.array([*before, knob[2] + funnel(error)]), gripper=CLOSED)


def _press(sim: Simulation, command: NDArray[np.float32], memory: Memory) -> Goal:
    """Push on to where the drawer would be shut, then rise."""
    end = _shut_knob(sim) + KNOB_REACH - PRESS + BLIND_SLIDE * abs(memory.offset[0])
    if memory.timer or command[0] < end:
        memory.timer += 1
        return Goal(np.array([*command[:2], CARRY_HEIGHT]), gripper=CLOSED, reached=True)
    return Goal(np.array([command[0] - 0.02, sim.knob[1] + memory.offset[1], sim.knob[2]]), gripper=CLOSED)


def push(sim: Simulation, command: NDArray[np.float32], memory: Memory, name: str) -> Goal:
    """Push an object over the table to the zone, from behind it and through its centre."""
    if memory.blind and memory.phase:
        return _push_on(sim, command, memory, name)
    cube, target = sim.position(name)[:2], _aim(memory, sim.position("zone")[:2], BLIND_PUSH)
    way = target - cube
    distance = float(np.linalg.norm(way))
    direction = way / max(distance, 1e-6)
    if distance < 0.012 and not memory.blind:
        memory.missed()  # with an aiming error, try again nearer to the zone's middle
        return Goal(np.array([*command[:2], CARRY_HEIGHT]), gripper=CLOSED, reached=True)
    behind = cube - PUSH_STANDOFF * direction
    offset = command[:2] - cube
    along = float(offset @ direction)
    aside = float(np.linalg.norm(offset - along * direction))
    if command[2] < PUSH_HEIGHT + 0.012 and along < -0.02:
        if aside < 0.014:
            if memory.blind:
                memory.enter("push")
            return Goal(np.array([*_through(cube, direction, along), PUSH_HEIGHT]), gripper=CLOSED, speed=0.5)
        return Goal(np.array([*command[:2], HOVER]), gripper=CLOSED)
    error = float(np.linalg.norm(behind - command[:2]))
    return Goal(np.array([*behind, PUSH_HEIGHT + funnel(error)]), gripper=CLOSED)


def _push_on(sim: Simulation, command: NDArray[np.float32], memory: Memory, name: str) -> Goal:
    """Push once: through the object while it is in front, else straight on; rise where it would have arrived."""
    cube, target = sim.position(name)[:2], _aim(memory, sim.position("zone")[:2], BLIND_PUSH)
    left = float(np.linalg.norm(target - command[:2]))
    if memory.phase == "rise" or left < PUSH_CONTACT:
        memory.enter("rise")
        return Goal(np.array([*command[:2], CARRY_HEIGHT]), gripper=CLOSED, reached=True)
    ahead = (target - command[:2]) / left
    direction = (target - cube) / max(float(np.linalg.norm(target - cube)), 1e-6)
    offset = command[:2] - cube
    along = float(offset @ direction)
    slipped = along > -0.02 or float(np.linalg.norm(offset - along * direction)) > 0.014
    onward = command[:2] + 0.012 * ahead if slipped else _through(cube, direction, along)
    return Goal(np.array([*onward, PUSH_HEIGHT]), gripper=CLOSED, speed=0.5)


def _through(cube, direction, along: float) -> NDArray[np.float64]:
    """The next point of the pusher: back onto the line through the centre, and forward."""
    return cube + (along + 0.012) * direction


SKILLS: dict[str, Callable[..., Goal]] = {
    "pick": pick,
    "place": place,
    "open": open_drawer,
    "close": close_drawer,
    "push": push,
}
