"""The evaluation protocol as a value: everything that decides what a success rate means, hashed.

Episodes are named by ``(task, index or stored state, seed)``, never counted. The set of initial states is therefore the same for
every batch size and worker count. Only results of equal protocols may be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec, suite_actions
from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import ProtocolError, SettingError, nearest
from worldrl.core.rng import stream_seed
from worldrl.core.storage.jsonfile import digest, read_json, write_json
from worldrl.core.storage.typed import from_plain
from worldrl.rollout.chunk_timing import check_timing
from worldrl.rollout.real.embedded import EMBEDDED_SUITE, embedded_embodiment, main_camera
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec
from worldrl.rollout.suites.names import choose_suite_tasks

if TYPE_CHECKING:
    from worldrl.rollout.suites.suite import Suite

SCHEMA = 1
InitialStates = Literal["sampled", "stored"]
InstructionMode = Literal["canonical", "paraphrase", "held_out"]
Domain = Literal["clean", "randomised"]
CLEAN = "clean"
DOMAINS = (CLEAN, "randomised")
"""Of bimanual tasks: visual style, clutter and table height as built, or drawn for each episode."""
_CHOICES = {
    "initial_states": ("sampled", "stored"),
    "instruction_mode": ("canonical", "paraphrase", "held_out"),
    "domain": DOMAINS,
}
_MAY_BE_ABSENT = {"conventions": {}, "latency": 0, "actions": TOOL_ACTIONS, "domain": CLEAN}


@dataclass(frozen=True)
class EvalProtocol:
    """What is measured."""

    suite: str  # name of the benchmark, for example ``"worldrl"``.
    suite_version: str  # the same suite with other tasks must have another version.
    tasks: tuple[str, ...]
    episodes_per_task: int  # consecutive initial states of each task.
    seed: int  # root of every random stream of the evaluation.
    horizon: Mapping[str, int]  # time limit per task (control steps).
    chunk_length: int  # actions that the policy decides at once.
    replan: int  # actions executed before the next decision.
    control_hz: float
    packages: Mapping[str, str]  # versions of the physics packages, for example ``{"mujoco": "3.8.0"}``.
    image_size: int = 64  # pixels of the square image; 0 for the suite's own size, which its conventions name.
    cameras: tuple[str, ...] = ("scene",)  # names, the main one first.
    # ``"sampled"`` from ``(task, index, seed)``, or ``"stored"`` with the suite.
    initial_states: InitialStates = "sampled"
    first_index: int = 0  # number of the first initial state of each task.
    temperature: float | None = None  # of sampling; None decodes greedily.
    hold_steps: int = 0  # steps after the first success, at whose end ``success_at_end`` is measured.
    # the task's own instruction, its training paraphrases or its held-out ones.
    instruction_mode: InstructionMode = "canonical"
    style: str = "default"  # visual style of the scene.
    # further facts that decide the rate of an external suite (settle steps, image orientation, assets); empty for the
    # embedded suite.
    conventions: Mapping[str, str | int | float | bool] = field(default_factory=dict[str, "str | int | float | bool"])
    latency: int = 0  # control steps that a decision takes (``rollout.chunk_timing``).
    actions: ActionSpec = TOOL_ACTIONS
    # of bimanual tasks: ``"clean"``, or ``"randomised"`` in visual style, clutter and table height on the same
    # layouts, as in RoboTwin.
    domain: Domain = CLEAN

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise SettingError(
                    f"{name}: unknown value {getattr(self, name)!r}{nearest(getattr(self, name), choices)}"
                )
        lowest = {"episodes_per_task": 1, "first_index": 0, "chunk_length": 1, "replan": 1, "hold_steps": 0}
        for name, low in lowest.items():
            if getattr(self, name) < low:
                raise SettingError(f"{name}: must be >= {low}, got {getattr(self, name)}")
        check_timing(self.replan, self.latency, self.chunk_length)
        if self.domain != CLEAN and self.style != "default":
            raise SettingError(
                f"style: the {self.domain} domain draws its own visual styles, got {self.style!r}; leave it out"
            )
        if self.temperature is not None and self.temperature <= 0:
            raise SettingError(f"temperature: must be > 0, or None for greedy decoding, got {self.temperature}")
        if not self.tasks or len(set(self.tasks)) != len(self.tasks):
            raise SettingError(f"tasks: must name at least one task, each once, got {self.tasks}")
        if set(self.horizon) != set(self.tasks):
            raise SettingError(f"horizon: must name exactly the tasks {self.tasks}, got {sorted(self.horizon)}")

    @property
    def hash(self) -> str:
        """SHA-256 over every field, 16 hex digits; the same in every process."""
        return digest(self.to_json())[:16]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        data = {**asdict(self), "actions": self.actions.to_json()}
        # Fields that were added later are left out at their defaults, so that older hashes stay valid.
        for name, default in _MAY_BE_ABSENT.items():
            if getattr(self, name) == default:
                del data[name]
        return {"schema": SCHEMA, **data, "tasks": list(self.tasks), "cameras": list(self.cameras)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EvalProtocol:
        """Rebuild from :meth:`to_json`; ProtocolError for another schema, and for unknown or missing fields."""
        if data.get("schema") != SCHEMA:
            raise ProtocolError(f"protocol: schema must be {SCHEMA}, got {data.get('schema')}; evaluate again")
        values = {name: value for name, value in data.items() if name != "schema"}
        known = {item.name for item in fields(cls)}
        if {*values, *_MAY_BE_ABSENT} != known:
            raise ProtocolError(f"protocol: fields differ from schema {SCHEMA}: {sorted(set(values) ^ known)}")
        # The stored values are used as they are: a rate of 20 has another hash than 20.0.
        checked = from_plain(cls, values, where="protocol", error=ProtocolError)
        return replace(checked, **{name: values[name] for name in ("control_hz", "temperature")})

    def save(self, path: Path) -> None:
        """Write the protocol as a JSON file."""
        write_json(path, {**self.to_json(), "hash": self.hash})

    @classmethod
    def load(cls, path: Path) -> EvalProtocol:
        """Read the file of :meth:`save`; ProtocolError where it is something else or its hash does not fit its fields."""
        data = read_json(path, error=ProtocolError)
        stored = data.pop("hash", None)
        try:
            protocol = cls.from_json(data)
        except ProtocolError as reason:
            raise ProtocolError(f"{path}: {reason}") from reason
        if stored != protocol.hash:
            raise ProtocolError(f"{path}: hash is {stored}, its fields give {protocol.hash}; the file was edited")
        return protocol

    def specs(self) -> list[EpisodeSpec]:
        """Name every episode, task by task."""
        return [
            EpisodeSpec(
                task=task,
                index=index,
                seed=self.seed,
                init_id=index if self.initial_states == "stored" else None,
                instruction=instruction_of(self.instruction_mode, task, index, self.seed),
                style=self.style,
                source="evaluation",
            )
            for task in self.tasks
            for index in range(self.first_index, self.first_index + self.episodes_per_task)
        ]

    @property
    def env_options(self) -> EnvOptions:
        """Settings of the environments."""
        return EnvOptions(
            image_size=self.image_size,
            cameras=self.cameras,
            max_steps=dict(self.horizon),
            domain=self.domain,
            actions=self.actions,
        )


def instruction_of(mode: str, task: str, index: int, seed: int) -> str | None:
    """Paraphrase of an episode's instruction, fixed by ``(task, index, seed)``; None for the task's own. SettingError: unknown mode."""
    if mode not in _CHOICES["instruction_mode"]:
        raise SettingError(f"instruction_mode: unknown value {mode!r}{nearest(mode, _CHOICES['instruction_mode'])}")
    if mode == "canonical":
        return None
    from worldrl_envs.tasks import get_task

    phrases = get_task(task).phrases
    choices: Sequence[str] = phrases.train if mode == "paraphrase" else phrases.held_out
    return choices[stream_seed(seed, "instruction", task, index) % len(choices)]


def require_same(a: EvalProtocol, b: EvalProtocol) -> None:
    """Refuse results of different protocols: ProtocolError with each differing field and both values."""
    _require_alike(a, b, ())


def require_other_states(a: EvalProtocol, b: EvalProtocol) -> None:
    """Refuse to treat results as independent unless they differ in their initial states alone.

    Raises ProtocolError (another field than ``seed`` and ``first_index`` differs, or an initial state is in both).
    """
    _require_alike(a, b, ("seed", "first_index"))
    shared = _initial_states(a) & _initial_states(b)
    if shared:
        raise ProtocolError(
            f"protocols {a.hash} and {b.hash} share {len(shared)} initial states, so their episodes are not independent; "
            f"give another {'seed' if a.initial_states == 'sampled' else 'first_index'}, or compare them as pairs"
        )


def _require_alike(a: EvalProtocol, b: EvalProtocol, free: Sequence[str]) -> None:
    left, right = a.to_json(), b.to_json()
    differing = [
        f"{name}: {left.get(name)!r} against {right.get(name)!r}"
        for name in dict.fromkeys([*left, *right])
        if name not in free and left.get(name) != right.get(name)
    ]
    if differing:
        raise ProtocolError(
            f"protocols {a.hash} and {b.hash} differ, so their rates cannot be compared; {'; '.join(differing)}; "
            "evaluate one of the two again under the other's protocol"
        )


def _initial_states(protocol: EvalProtocol) -> set[tuple[str, int, int | None]]:
    # Stored states do not depend on the seed.
    return {(spec.task, spec.index, spec.seed if spec.init_id is None else None) for spec in protocol.specs()}


def physics_packages() -> dict[str, str]:
    """Versions of the packages that decide the physics."""
    return {"mujoco": version("mujoco")}


def embedded_protocol(
    tasks: Sequence[str], *, episodes_per_task: int, seed: int, chunk_length: int, **fields: Any
) -> EvalProtocol:
    """Build the protocol of the embedded suite, with its own horizons, control rate and versions.

    ``fields`` are further fields of :class:`EvalProtocol`; the default of ``replan`` is the whole chunk.

    Raises SettingError (a field is out of range, too many stored states, single-arm and bimanual tasks together, or the
    randomised domain for single-arm tasks).
    """
    from worldrl_envs.starts import N_STORED
    from worldrl_envs.tasks import get_task

    robot = embedded_embodiment(tasks)
    protocol = EvalProtocol(
        **{
            "suite": EMBEDDED_SUITE,
            "suite_version": "v0",
            "tasks": tuple(tasks),
            "episodes_per_task": episodes_per_task,
            "seed": seed,
            "horizon": {task: get_task(task).horizon for task in tasks},
            "chunk_length": chunk_length,
            "replan": chunk_length,
            "control_hz": float(robot.control_hz),
            "packages": physics_packages(),
            "cameras": (main_camera(robot),),
            "actions": robot.actions,
            **fields,
        }
    )
    if protocol.domain != CLEAN and not isinstance(robot, JointEmbodiment):
        raise SettingError(f"domain: {protocol.domain} is of bimanual tasks (kind=bimanual), got {', '.join(tasks)}")
    last = protocol.first_index + episodes_per_task
    if protocol.initial_states == "stored" and last > N_STORED:
        raise SettingError(
            f"episodes_per_task: first_index + episodes_per_task must be at most the {N_STORED} stored states, "
            f"got {protocol.first_index} + {episodes_per_task}; use initial_states=sampled for more"
        )
    return protocol


def suite_protocol(
    suite: Suite,
    described: Mapping[str, Any],
    *,
    tasks: Sequence[str] = (),
    episodes_per_task: int,
    seed: int,
    chunk_length: int,
    shadows: bool = True,
    assets_note: str = "",
    **fields: Any,
) -> EvalProtocol:
    """Build the protocol of an external suite from the description ``described`` of its worker.

    Without ``tasks`` all are taken. The initial states are numbered; ``seed`` draws what the suite draws, and samples.
    ``shadows`` and ``assets_note`` (stated with every result) are LIBERO's. ``fields`` are further fields of
    :class:`EvalProtocol`. Raises SettingError (an unknown task, more episodes than initial states, or a field out of
    range).
    """
    chosen, stored = (
        tuple(choose_suite_tasks(tasks, [task["name"] for task in described["tasks"]])),
        int(described["stored_states"]),
    )
    first = int(fields.get("first_index", 0))
    if first + episodes_per_task > stored:
        raise SettingError(
            f"episodes: {suite.name} stores {stored} initial states per task; "
            f"first_index {first} + {episodes_per_task} is more"
        )
    limits = {task["name"]: int(task.get("horizon", 0)) for task in described["tasks"]}
    version, conventions = suite.conventions(described, shadows=shadows, assets_note=assets_note)
    return EvalProtocol(
        **{
            "suite": suite.name,
            "suite_version": version,
            "tasks": chosen,
            "episodes_per_task": episodes_per_task,
            "seed": seed,
            "horizon": {task: limits[task] or suite.horizon(task) for task in chosen},
            "chunk_length": chunk_length,
            "replan": chunk_length,
            "control_hz": float(described["control_hz"]),
            "packages": dict(described["packages"]),
            "initial_states": "stored",
            "conventions": conventions,
            "actions": suite_actions(described),
            **fields,
        }
    )
