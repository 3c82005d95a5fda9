"""A world model behind a websocket: reset to images or recorded starts, then chunks of actions.

The server sends its metadata first (:class:`ServedWorld` under ``worldrl``). Then each message is a map, in the form of
OpenPI's (``policies.remote.packing``), and each answer too; a fault is answered as text, and changes nothing::

    {"reset": {"image", ..., "command", "state", "instruction", "task"}, "seed"}    a start of each row
    {"reset": {"index": [...]}, "seed"}                                            first frames of the server's dataset
    {"step": float32 [B, L, A]}                                                    one chunk of each row

Shapes legend: ``B`` rows, ``L`` control steps and ``F`` frames of a chunk, ``Y X`` pixels of a view, ``A`` numbers of an
action, ``S`` measured numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.core.instructions import MAX_CHARACTERS
from worldrl.core.observation import COMMAND, STATE, images_among, split_views, stack_views
from worldrl.core.rng import stream
from worldrl.core.types import ResetRecord, first_frames
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.policies.remote.packing import FrameError, map_of, pack, shown, unpack, whole_of
from worldrl.policies.remote.policy import OURS
from worldrl.rollout.imagined.reset_store import initial_record, record_at
from worldrl.rollout.serving.server import Turn, logged
from worldrl.rollout.spaces import check_action
from worldrl.world_models.loading import AnyVideoModel

KIND = "world-model"
INSTRUCTION, TASK = "instruction", "task"


@dataclass(frozen=True)
class ServedWorld:
    """What a server says of its world model.

    ``images`` names the cameras' images of ``image`` rows and columns, ``state`` counts measured numbers (0: none).
    ``starts`` counts recorded starts, ``rows`` is the largest ``B``. ``threshold`` and ``debounce`` say when an imagined
    rollout is a success.
    """

    kind: str
    images: tuple[str, ...]
    image: tuple[int, int]
    state: int
    actions: ActionSpec
    chunk_length: int
    frame_stride: int
    threshold: float
    debounce: int
    starts: int
    rows: int
    hash: str

    def metadata(self) -> dict[str, Any]:
        """Return the first message."""
        lists = {"images": list(self.images), "image": list(self.image), "actions": self.actions.to_json()}
        return {OURS: {**vars(self), **lists}}

    @classmethod
    def of(cls, model: AnyVideoModel, identity: str, starts: int, rows: int) -> ServedWorld:
        """Describe a world model; ``identity`` is its hash."""
        observed, outcome = model.observation, model.config.outcome
        camera = next(iter(observed.cameras.values()))
        return cls(
            kind=KIND,
            images=images_among(model.more),
            image=(camera.height, camera.width),
            state=0 if observed.state is None else len(observed.state.names),
            actions=model.embodiment.actions,
            chunk_length=model.chunk_length,
            frame_stride=model.frame_stride,
            threshold=outcome.threshold,
            debounce=outcome.debounce,
            starts=starts,
            rows=rows,
            hash=identity,
        )


class WorldConversation:
    """One client's rollouts, all of which begin together."""

    def __init__(self, model: AnyVideoModel, served: ServedWorld, data: EpisodeDataset | None, turn: Turn) -> None:
        self._model, self._served, self._data, self._turn = model, served, data, turn
        self._records = list[ResetRecord]()
        self._state: Any = None  # the model's; opaque
        self._seed = self._chunks = 0
        self.greeting = pack(served.metadata())

    def answer(self, message: bytes | str) -> bytes | str:
        """Answer one message, or say in a text why not."""
        if isinstance(message, str):
            return logged("message", FrameError("a message is binary MessagePack, this one is text"))
        try:
            request = unpack(message)
            if "step" in request:
                return pack(self._step(request["step"]))
            if "reset" in request:
                return pack(self._reset(map_of(request, "reset"), whole_of(request, "seed")))
            raise FrameError(f"a message holds reset or step, this one {', '.join(map(str, request)) or 'nothing'}")
        except Exception as error:  # the client gets the error; the server continues for others
            return logged("message", error)

    def _reset(self, given: Mapping[str, Any], seed: int) -> dict[str, Any]:
        if not 0 <= seed < 2**63:
            raise FrameError(f"seed: must be from 0 to 2^63 - 1, got {seed}")
        records = self._recorded(given) if "index" in given else self._given(given)
        with self._turn, torch.inference_mode():
            state = self._model.start(records)
        self._records, self._state, self._seed, self._chunks = records, state, seed, 0
        sheets = torch.from_numpy(np.stack([record.memory[-1] for record in records]))
        numbers = {COMMAND: np.stack([record.command for record in records])}
        if self._served.state:
            numbers[STATE] = np.stack([np.asarray(record.state) for record in records])
        words = {INSTRUCTION: [record.instruction for record in records], TASK: [record.task for record in records]}
        return {**self._views(sheets), **numbers, **words}

    def _step(self, action: Any) -> dict[str, Any]:
        if self._state is None:
            raise FrameError("step before reset; a connection that was lost begins again with reset")
        rows, model, began_s = len(self._records), self._model, time.monotonic()
        action = check_action(action, (rows, model.chunk_length), model.embodiment.actions)
        generators = [stream(self._seed, "served", row, self._chunks) for row in range(rows)]
        with self._turn, torch.inference_mode():
            state, imagined = model.imagine(self._state, torch.from_numpy(action), generators=generators)
            sheets = model.decode(imagined.latent, first_frames(self._records))
        self._state, self._chunks = state, self._chunks + 1
        answer: dict[str, Any] = self._views(sheets)
        values = {
            COMMAND: imagined.command,
            "success_prob": imagined.success_prob,
            "uncertainty": imagined.uncertainty,
            STATE: imagined.state,
            "state_deviation": imagined.state_deviation,
        }
        answer |= {name: value.float().cpu().numpy() for name, value in values.items() if value is not None}
        answer["frame_steps"] = list(imagined.frame_steps)
        return {**answer, "server_timing": {"imagine_ms": 1000 * (time.monotonic() - began_s)}}

    def _views(self, sheets: torch.Tensor) -> dict[str, Any]:
        return {name: view.cpu().numpy() for name, view in split_views(sheets, self._model.more).items()}

    def _recorded(self, given: Mapping[str, Any]) -> list[ResetRecord]:
        index, starts = given["index"], self._served.starts
        if self._data is None:
            raise FrameError(
                "reset.index: this server has no recorded starts; start it with data=FOLDER, or send images"
            )
        numbers = index.tolist() if isinstance(index, np.ndarray) else index
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise FrameError(f"reset.index: must be a list of whole numbers, it is {shown(index)}")
        self._require_rows(len(numbers))
        if any(not 0 <= number < starts for number in numbers):
            raise FrameError(f"reset.index: must be from 0 to {starts - 1}, got {numbers}")
        model = self._model
        layout = {"memory_frames": model.memory_frames, "frame_stride": model.frame_stride, "more": model.more}
        return [record_at(self._data[number], 0, source=f"start {number}", **layout) for number in numbers]

    def _given(self, given: Mapping[str, Any]) -> list[ResetRecord]:
        words = given.get(INSTRUCTION)
        words = words if isinstance(words, list) else []
        rows = len(words)
        self._require_rows(rows)
        tasks = given.get(TASK) or [""] * rows
        for name, texts in ((INSTRUCTION, words), (TASK, tasks)):
            lengths = [len(text) if isinstance(text, str) else -1 for text in texts]
            if len(lengths) != rows or not all(0 <= length <= MAX_CHARACTERS for length in lengths):
                raise FrameError(f"reset.{name}: must be {rows} texts of at most {MAX_CHARACTERS} characters")
        image, size = (*self._served.image, 3), self._model.embodiment.actions.size
        views = [_array(given, name, (rows, *image), np.uint8) for name in self._served.images]
        command = _array(given, COMMAND, (rows, size), np.float32)
        state = _array(given, STATE, (rows, self._served.state), np.float32) if self._served.state else None
        sheets = stack_views(views)
        return [
            initial_record(
                sheets[row],
                command[row],
                instruction=words[row],
                task=tasks[row],
                memory_frames=self._model.memory_frames,
                source="client",
                state=None if state is None else state[row],
            )
            for row in range(rows)
        ]

    def _require_rows(self, rows: int) -> None:
        if not 1 <= rows <= self._served.rows:
            raise FrameError(f"reset: from 1 to {self._served.rows} rows begin at once (rows), got {rows}")


def _array(given: Mapping[str, Any], name: str, shape: tuple[int, ...], kind: type[Any]) -> NDArray[Any]:
    """An array of a start; numbers become float32. FrameError for another shape or type, or numbers not finite."""
    value = given.get(name)
    if isinstance(value, np.ndarray) and value.shape == shape:
        with np.errstate(over="ignore"):
            found = value.astype(np.float32) if kind is np.float32 else value
        if found.dtype == kind and np.isfinite(found).all():
            return found
    wanted = f"{np.dtype(kind)} {list(shape)}{'' if kind is np.uint8 else ', finite'}"
    raise FrameError(f"reset.{name}: must be {wanted}; it is {'missing' if value is None else shown(value)}")


def world_conversations(
    model: AnyVideoModel, identity: str, data: EpisodeDataset | None, rows: int
) -> Callable[[Turn], WorldConversation]:
    """Make the conversation of a new client; arguments as of :meth:`ServedWorld.of`, ``data`` of recorded starts."""
    served = ServedWorld.of(model, identity, 0 if data is None else len(data), rows)
    return lambda turn: WorldConversation(model, served, data, turn)
