"""Fixtures that several rooms share: a small pushed-square world, a tiny world model, a scripted one, real processes."""

import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from worldrl.core.embodiment import Embodiment, integrate_commands, next_command
from worldrl.core.rng import initial_weights, numpy_stream, row_noise
from worldrl.core.types import Episode, Imagined, ResetRecord
from worldrl.world_models.wan.geometries import TINY as WAN

# One process per core runs the suite (-n 2), and what it starts inherits this: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
# Some of torch's warnings come once per process: which test they fail would depend on the order.
torch.set_warn_always(True)

# A shell that starts the suite in the background has SIGINT ignored, children inherit that, and no Ctrl-C test could pass.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROBOT = Embodiment(0.02, 0.1, (0.34, -0.22, 0.012), (0.66, 0.22, 0.24), 0.5, 20.0)
HOME = torch.tensor([0.48, 0.0, 0.14, 0.0, 0.0, 0.0, -1.0])
COLOURS = {"PickRedCube": (230, 30, 30), "PickGreenCylinder": (30, 200, 30)}
SENTENCES = {"PickRedCube": "pick up the red cube", "PickGreenCylinder": "pick up the green cylinder"}


@pytest.fixture(autouse=True)
def _same_process() -> Iterator[None]:
    """Undo what a test did to its process: threads change sums, and a real-time priority starves everything else."""
    threads, policy = torch.get_num_threads(), os.sched_getscheduler(0)
    yield
    torch.set_num_threads(threads)
    if os.sched_getscheduler(0) != policy:
        os.sched_setscheduler(0, policy, os.sched_param(0))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a file of ``scripts/`` by name, those that it imports beside it included."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    return importlib.import_module


@pytest.fixture(scope="session")
def robot() -> Embodiment:
    """The embedded suite's constants, in numbers of its own so that no simulator is imported."""
    return ROBOT


def _image(place: np.ndarray, size: int, colour: tuple[int, int, int]) -> np.ndarray:
    picture = np.full((size, size, 3), 90, np.uint8)
    side = max(size // 4, 3)
    x, y = (place * (size - side)).round().astype(int)
    picture[y : y + side, x : x + side] = colour
    return picture


def _push(
    number: int = 0,
    steps: int = 16,
    *,
    size: int = 16,
    task: str = "PickRedCube",
    close_at: int | None = 8,
    **over: Any,
) -> Episode:
    draw = numpy_stream(number, "pushed-square")
    action = np.tile(ROBOT.actions.hold(HOME.numpy()), (steps, 1))
    action[:, :2] = np.repeat(draw.uniform(-1, 1, (-(-steps // 4), 2)), 4, axis=0)[:steps]
    if close_at is not None:
        action[close_at - 1 :, 6] = 1
    place, command = np.array([0.5, 0.5]), HOME
    places, commands = [place], [command]
    for step in action:
        place = np.clip(place + 0.08 * step[:2], 0, 1)
        command = next_command(ROBOT, command, torch.from_numpy(step))
        places.append(place)
        commands.append(command)
    reward = (np.stack(places)[1:, 0] > 0.7).astype(np.float32)
    success = bool(reward.any())
    fields = {
        "frames": np.stack([_image(place, size, COLOURS[task]) for place in places])[:, None],
        "state": np.zeros((steps + 1, 8), np.float32),
        "command": torch.stack(commands).numpy(),
        "action": action,
        "reward": reward,
        "contact": np.zeros(steps + 1, bool),
        "terminated": success,
        "truncated": not success,
        "instruction": SENTENCES[task],
        "task": task,
        "meta": {"seed": 0, "index": number, "source": "test"},
    }
    return Episode(**(fields | over))


@pytest.fixture(scope="session")
def push_episode() -> Callable[..., Episode]:
    """Make episode ``number`` of a square that actions push over a grey table; success is the right border."""
    return _push


@pytest.fixture(scope="session")
def lit_episode() -> Callable[[int], Episode]:
    """Make episode ``number`` as a plain grey image that is brighter where it has succeeded."""

    def make(number: int) -> Episode:
        episode = _push(number, close_at=None)
        done = np.concatenate([[False], episode.reward > 0])[:, None, None, None, None]
        light = np.where(done, 200, 90).astype(np.uint8)
        return replace(episode, frames=np.broadcast_to(light, episode.frames.shape).copy())

    return make


@pytest.fixture(scope="session")
def push_episodes() -> list[Episode]:
    """Eight of them, two tasks in turn."""
    return [_push(n, 12 + n, task=list(COLOURS)[n % 2]) for n in range(8)]


@pytest.fixture(scope="session")
def make_world_model() -> Callable[..., Any]:
    """Build a tiny video world model; ``spread`` > 0 shakes its weights, so that noise and actions matter."""
    from worldrl.world_models.video.config import (
        CodecConfig,
        DynamicsConfig,
        RestorerConfig,
        SuccessHeadConfig,
        UNetConfig,
        VideoWorldModelConfig,
    )
    from worldrl.world_models.video.model import VideoWorldModel

    def make(
        *,
        size: int = 16,
        spread: float = 0.2,
        seed: int = 0,
        codec: dict | None = None,
        restorer: int = 0,
        robot: Any = ROBOT,
        **dynamics: Any,
    ) -> Any:
        small = {"width": 16, "depth": 1, "heads": 2}
        unet = UNetConfig(channels=8, levels=2, blocks=1, condition=16, heads=2)
        config = VideoWorldModelConfig(
            CodecConfig(**({"image_size": size, "patch": 8, "channels": 4} | small | (codec or {}))),
            DynamicsConfig(
                **({"chunk_length": 4, "frame_stride": 2, "memory_frames": 2, "unet": unet} | small | dynamics)
            ),
            SuccessHeadConfig(),
            restorer=RestorerConfig(width=restorer),
        )
        with initial_weights(seed, "world-model"):
            model = VideoWorldModel(config, robot).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(spread * torch.randn_like(parameter))
        return model

    return make


@pytest.fixture(scope="session")
def world_model(make_world_model) -> Any:
    """A tiny world model that nobody may change."""
    return make_world_model()


@dataclass(frozen=True)
class PushState:
    """Rows of :class:`PushSimulator`."""

    place: np.ndarray
    colour: list[tuple[int, int, int]]


class PushSimulator:
    """The true world of the pushed square, in the shape of a world model.

    Args:
        blind: it ignores the actions.
        certainty: success probability where the square is at the right border; elsewhere ``uncertainty``.
        uncertainty: see ``certainty``.
        error: added to every decoded pixel.
    """

    embodiment, chunk_length, memory_frames, frame_stride, more = ROBOT, 4, 2, 2, ()
    device = torch.device("cpu")

    def __init__(
        self, *, blind: bool = False, certainty: float = 0.9, uncertainty: float = 0.1, error: int = 0
    ) -> None:
        self.blind, self.certainty, self.uncertainty, self.error = blind, certainty, uncertainty, error

    def start(self, records: list[ResetRecord]) -> PushState:
        return PushState(np.full((len(records), 2), 0.5), [COLOURS[record.task] for record in records])

    def imagine(self, state: PushState, action: torch.Tensor, *, generators: list[torch.Generator]) -> Any:
        place, frames, probability = state.place, [], []
        for step in range(4):
            place = np.clip(place + 0.08 * (not self.blind) * action[:, step, :2].numpy(), 0, 1)
            if step % 2:
                pictures = [_image(p, 16, colour) for p, colour in zip(place, state.colour, strict=True)]
                frames.append(torch.from_numpy(np.stack(pictures)))
                probability.append(np.where(place[:, 0] > 0.7, self.certainty, self.uncertainty))
        success = torch.from_numpy(np.stack(probability, axis=1).astype(np.float32))
        latent = torch.stack(frames, dim=1)
        return PushState(place, state.colour), Imagined(latent, (2, 4), torch.zeros(len(action), 4, 7), success)

    def decode(self, latent: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        return (latent.int() + self.error).clamp(max=255).byte()


@pytest.fixture(scope="session")
def push_simulator() -> type[PushSimulator]:
    """Class of a world model that is right, and may be made wrong on purpose."""
    return PushSimulator


@dataclass(frozen=True)
class ScriptedState:
    """Rows of :class:`ScriptedWorld`."""

    command: torch.Tensor
    value: torch.Tensor

    @property
    def rows(self) -> int:
        return len(self.value)

    def select(self, index: torch.Tensor) -> "ScriptedState":
        return ScriptedState(self.command[index], self.value[index])

    def state_dict(self) -> dict[str, Any]:
        return {"command": self.command, "value": self.value}


class ScriptedWorld:
    """A world whose success probability is what the actions say, and whose image is a random walk.

    Frame ``f`` shows control step ``2 (f + 1)``; its success probability is that step's first action, 0 if negative.
    """

    embodiment, chunk_length, memory_frames, frame_stride, more = ROBOT, 4, 2, 2, ()

    def __init__(self) -> None:
        self.rows_simulated: list[int] = []

    def start(self, records: list[ResetRecord]) -> ScriptedState:
        command = torch.from_numpy(np.stack([record.command for record in records]))
        value = torch.tensor([float(record.reference.mean()) for record in records])
        return ScriptedState(command, value)

    def imagine(self, state: ScriptedState, action: torch.Tensor, *, generators: list[torch.Generator]) -> Any:
        self.rows_simulated.append(state.rows)
        value = state.value + 10 * row_noise(generators, ()) + action[:, :, 1].sum(dim=1)
        command = integrate_commands(self.embodiment, state.command, action)
        probability = action[:, 1::2, 0].clamp_min(0)
        after = ScriptedState(command[:, -1], value)
        return after, Imagined(value[:, None, None, None, None], (2, 4), command, probability)

    def restore(self, data: dict[str, torch.Tensor]) -> ScriptedState:
        return ScriptedState(**data)

    def decode_newest(self, state: ScriptedState, count: int) -> torch.Tensor:
        assert count == 1  # its state has no memory
        return (state.value.abs() % 256).to(torch.uint8)[:, None, None, None, None].expand(-1, 1, 16, 16, 3).clone()


@pytest.fixture
def scripted_world() -> ScriptedWorld:
    return ScriptedWorld()


@pytest.fixture(scope="session")
def make_record() -> Callable[..., ResetRecord]:
    """Make a start state; its image is all of one grey."""

    def make(grey: int = 10, *, task: str = "PickRedCube", step: int = 0, **over: Any) -> ResetRecord:
        picture = np.full((16, 16, 3), grey, np.uint8)
        record = ResetRecord(
            reference=picture,
            memory=np.repeat(picture[None], 2, axis=0),
            command=HOME.numpy().copy(),
            instruction=SENTENCES[task],
            task=task,
            step=step,
            source=f"grey {grey}",
        )
        return replace(record, **over)

    return make


@pytest.fixture(scope="session")
def tiny_policy() -> Callable[..., Any]:
    """Build a tiny policy for 16-pixel images and chunks of four."""
    from worldrl.policies.statistics import PolicyStatistics
    from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig

    def make(*, seed: int = 0, **over: Any) -> TokenPolicy:
        small = {"image_size": 16, "chunk_length": 4, "bins": 5, "width": 8, "blocks": 1, "keypoints": 2}
        config = TokenPolicyConfig(**(small | {"text_width": 8, "hidden": 16} | over))
        ones = torch.ones(7)
        with initial_weights(seed, "policy"):
            return TokenPolicy(config, PolicyStatistics(-ones, ones, 0 * ones, ones)).eval()

    return make


@pytest.fixture(scope="session")
def planning_folder(
    tmp_path_factory: pytest.TempPathFactory, tiny_policy: Callable[..., Any], make_world_model: Callable[..., Any]
) -> Path:
    """A folder of a tiny ``policy`` and of a ``world_model`` that it can plan in; tests only read it."""
    folder = tmp_path_factory.mktemp("planning")
    tiny_policy().save(folder / "policy")
    make_world_model().save(folder / "world_model")
    return folder


@pytest.fixture
def run_python() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run Python in a process of its own, from a directory of one's choice; never fails by itself."""

    def run(*arguments: object, cwd: Path, timeout: float = 300, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MUJOCO_GL": "egl", **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def same_tree() -> Callable[[Any, Any], None]:
    """Compare nested dicts, lists, records, arrays and tensors bit for bit."""

    def check(a: Any, b: Any, where: str = "") -> None:
        assert type(a) is type(b), where
        if isinstance(a, dict):
            assert a.keys() == b.keys(), where
            for key in a:
                check(a[key], b[key], f"{where}.{key}")
        elif isinstance(a, list | tuple):
            assert len(a) == len(b), where
            for number, (x, y) in enumerate(zip(a, b, strict=True)):
                check(x, y, f"{where}[{number}]")
        elif isinstance(a, torch.Tensor | np.ndarray):
            x, y = np.asarray(a), np.asarray(b)
            assert x.dtype == y.dtype, where
            assert x.shape == y.shape, where
            assert x.tobytes() == y.tobytes(), where
        elif is_dataclass(a):
            check(vars(a), vars(b), where)
        else:
            assert a == b, where

    return check


# -- published Wan weights, tiny ---------------------------------------------------------------------------------------


def _publish_wan(folder: Path, *, transformer: dict[str, Any], vae: dict[str, Any], seed: int) -> Path:
    import diffusers

    with initial_weights(seed, "published wan"):
        dit = diffusers.WanTransformer3DModel(**(WAN["transformer"] | transformer))
        autoencoder = diffusers.AutoencoderKLWan(**(WAN["vae"] | vae))
    half = sum(p.numel() * p.element_size() for p in dit.parameters()) * 6 // 10
    dit.save_pretrained(folder / "transformer", max_shard_size=half)
    autoencoder.save_pretrained(folder / "vae")
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0
    )
    scheduler.save_pretrained(folder / "scheduler")
    return folder


@pytest.fixture(scope="session")
def publish_wan() -> Callable[..., Path]:
    """Write tiny random Wan weights in the published layout into a new folder."""
    pytest.importorskip("diffusers")

    def publish(folder: Path, *, transformer: Any = None, vae: Any = None, seed: int = 0) -> Path:
        return _publish_wan(folder, transformer=transformer or {}, vae=vae or {}, seed=seed)

    return publish


@pytest.fixture(scope="session")
def wan_base(publish_wan: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny published weights that nobody may change."""
    return publish_wan(tmp_path_factory.mktemp("published") / "Wan2.2-TI2V-5B-Diffusers")


@pytest.fixture(scope="session")
def wan_config() -> Callable[..., Any]:
    """Make a Wan configuration for 16-pixel images and chunks of four."""
    from worldrl.world_models.wan.config import (
        WanCodecConfig,
        WanConfig,
        WanDynamicsConfig,
        WanOutcomeConfig,
        WanSuccessConfig,
    )

    def make(
        *,
        size: int = 16,
        ensemble_size: int = 0,
        cameras: tuple[str, ...] = ("image",),
        state: str = "none",
        **dynamics: Any,
    ) -> WanConfig:
        small = {"chunk_length": 4, "sampling_steps": 2, "lora_rank": 2, "lora_alpha": 4.0}
        return WanConfig(
            WanCodecConfig(image_size=size, rows=3),
            WanDynamicsConfig(**(small | dynamics)),
            WanSuccessConfig(width=16, heads=2),
            WanOutcomeConfig(ensemble_size=ensemble_size, width=8),
            cameras=list(cameras),
            state=state,
        )

    return make


@pytest.fixture(scope="session")
def make_wan(wan_base: Path, wan_config: Callable[..., Any]) -> Callable[..., Any]:
    """Build a tiny Wan world model; ``spread`` shakes what is trained, so that no channel is zero."""
    pytest.importorskip("peft")
    from worldrl.world_models.wan.model import WanWorldModel

    def make(*, spread: float = 0.2, base: Path | None = None, seed: int = 0, **over: Any) -> WanWorldModel:
        model = WanWorldModel.from_base(base or wan_base, wan_config(**over), ROBOT, seed=seed)
        with initial_weights(seed, "spread"), torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(spread * torch.randn_like(parameter))
        return model

    return make


@pytest.fixture(scope="session")
def wan_model(make_wan: Callable[..., Any]) -> Any:
    """A tiny Wan world model that nobody may change."""
    return make_wan()


@pytest.fixture(scope="session")
def wan_record(make_record: Callable[..., ResetRecord]) -> Callable[..., ResetRecord]:
    """Make a start state with four images of memory."""

    def make(grey: int = 10, **over: Any) -> ResetRecord:
        picture = np.full((16, 16, 3), grey, np.uint8)
        return make_record(grey, **({"memory": np.repeat(picture[None], 4, axis=0)} | over))

    return make


def _libero_rows(rows: int, size: int, draw: np.random.Generator, *, after: bool) -> dict[str, np.ndarray]:
    action = np.round(draw.uniform(-1, 1, (rows, 7)), 3)
    action[:, 6] = np.where(np.arange(rows) < rows // 2, -1, 1)
    place = np.cumsum(np.vstack([[0.1, 0.0, 1.0], 0.01 * action[:, :3]]), axis=0)  # before and after each action
    joint = np.tile(place[:, :1], 7) * np.arange(1, 8)
    seen = slice(1, None) if after else slice(None, -1)
    states = np.zeros((rows, 20))
    states[:, 1:8] = joint[:-1]
    return {
        "actions": action,
        "rewards": (np.arange(rows) == rows - 1).astype(np.uint8),
        "dones": (np.arange(rows) == rows - 1).astype(np.uint8),
        "states": states,
        "obs/ee_pos": place[seen],
        "obs/ee_ori": np.tile([3.1, 0.2, -0.1], (rows, 1)),
        "obs/gripper_states": np.tile([0.04, -0.04], (rows, 1)),
        "obs/joint_states": joint[seen],
        "obs/agentview_rgb": draw.integers(0, 255, (rows, size, size, 3), np.uint8),
        "obs/eye_in_hand_rgb": draw.integers(0, 255, (rows, size, size, 3), np.uint8),
    }


@pytest.fixture(scope="session")
def write_libero_file() -> Callable[..., dict[str, np.ndarray]]:
    """Write an HDF5 file as LIBERO's script does, of a hand that moves 0.01 m per action; returns demo 0's columns.

    ``after=False`` pairs each action with the observation before it, as files made anew for OpenVLA do.
    """
    import h5py

    def write(
        file: Path, *, task: str, demos: int = 1, rows: int = 12, size: int = 8, after: bool = True,
        bddl: str | None = "bddl_files/libero_goal/{}.bddl", convention: str = "opengl",
    ) -> dict[str, np.ndarray]:  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        written = [_libero_rows(rows, size, numpy_stream(n, "libero-file"), after=after) for n in range(demos)]
        with h5py.File(file, "w") as content:
            data = content.create_group("data")
            data.attrs["macros_image_convention"] = convention
            if bddl is not None:
                data.attrs["bddl_file_name"] = bddl.format(task)
            for number, columns in enumerate(written):
                for name, values in columns.items():
                    data[f"demo_{number}/{name}"] = values
        return written[0]

    return write


# -- LeRobotDataset v3.0 folders as others publish them ----------------------------------------------------------------

LIBERO_CAMERAS = ("observation.images.image", "observation.images.image2")


def _libero_demo(
    number: int, *, rows: int = 24, size: int = 16, sentence: str = "put the bowl on the plate"
) -> dict[str, Any]:
    """Columns of one demonstration: a hand that moves 0.01 m per action, fingers that follow their command in three rows."""
    draw = numpy_stream(number, "libero-demo")
    action = np.round(draw.uniform(-0.9, 0.9, (rows, 7)), 3).astype(np.float32)
    action[:, 6] = np.where(np.arange(rows) < rows // 2, -1, 1)
    told = np.concatenate([np.full(3, -1), action[:, 6]])[:rows]
    finger = np.where(told > 0, 0.01, 0.04)
    place = np.cumsum(np.vstack([[0.1, 0.0, 1.0], 0.01 * action[:-1, :3]]), axis=0)
    turn = np.tile([3.1, 0.2, -0.1], (rows, 1))
    pictures = draw.integers(0, 256, (len(LIBERO_CAMERAS), rows, 4, 4, 3), np.uint8)  # coarse: a video keeps it
    pictures = pictures.repeat(size // 4, axis=2).repeat(size // 4, axis=3)
    state = np.column_stack([place, turn, finger, -finger]).astype(np.float32)
    return {
        "sentence": sentence,
        "observation.state": state,
        "action": action,
        **dict(zip(LIBERO_CAMERAS, pictures, strict=True)),
    }


def _picture_column(pictures: np.ndarray) -> list[dict[str, Any]]:
    import cv2

    return [{"bytes": cv2.imencode(".png", picture[..., ::-1])[1].tobytes(), "path": None} for picture in pictures]


def _film(file: Path, pictures: np.ndarray, fps: int) -> None:
    """Write frames without loss of colour, two to a key frame as lerobot does."""
    import av

    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264rgb", rate=fps, options={"crf": "0", "g": "2"})
        stream.height, stream.width, stream.pix_fmt = *pictures.shape[1:3], "rgb24"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


@pytest.fixture(scope="session")
def libero_demo() -> Callable[..., dict[str, Any]]:
    """Make the columns of one demonstration as published for LIBERO; cameras have the names of ``HuggingFaceVLA/libero``."""
    return _libero_demo


@pytest.fixture(scope="session")
def publish_lerobot() -> Callable[..., Path]:
    """Write a LeRobotDataset v3.0 folder as lerobot 0.4 lays it out, from columns by episode.

    ``files`` says how many episodes each data file holds, ``films`` each video file: the two are numbered apart. ``films`` None
    keeps images in the rows. ``success`` is what ``worldrl.json`` says of it where no column does; None writes no such file.
    """
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    def table(columns: dict[str, Any]) -> pa.Table:
        return pa.table({name: pa.array(list(v) if np.ndim(v) > 1 else v) for name, v in columns.items()})

    def write(file: Path, content: pa.Table) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(content, file)

    def publish(
        folder: Path, episodes: list[dict[str, Any]], *, files: tuple[int, ...] = (), films: tuple[int, ...] | None = None,
        fps: float = 10, info: dict[str, Any] | None = None, success: str | None = "every episode",
    ) -> Path:  # fmt: skip
        sentences = list(dict.fromkeys(episode["sentence"] for episode in episodes))
        names = [name for name in episodes[0] if name != "sentence"]
        pictures = [name for name in names if np.ndim(episodes[0][name]) == 4]
        place = [(number, i) for number, count in enumerate(files or (len(episodes),)) for i in range(count)]
        film_of = [number for number, count in enumerate(films or ()) for _ in range(count)]
        rows, parts, first, clock = [], {}, 0, {}
        for number, episode in enumerate(episodes):
            length, task = len(episode["action"]), sentences.index(episode["sentence"])
            row = {
                "episode_index": number, "tasks": [episode["sentence"]], "length": length,
                "data/chunk_index": 0, "data/file_index": place[number][0],
                "dataset_from_index": first, "dataset_to_index": first + length,
            }  # fmt: skip
            for name in pictures if films else ():
                key = (name, film_of[number])
                start = clock.get(key, 0)
                clock[key] = start + length
                row |= {f"videos/{name}/chunk_index": 0, f"videos/{name}/file_index": film_of[number]}
                row |= {f"videos/{name}/from_timestamp": start / fps, f"videos/{name}/to_timestamp": clock[key] / fps}
            rows.append(row)
            plain = {name: episode[name] for name in names if name not in pictures}
            shown = {} if films else {name: _picture_column(episode[name]) for name in pictures}
            standard = {
                "timestamp": (np.arange(length) / fps).astype(np.float32), "frame_index": np.arange(length),
                "episode_index": np.full(length, number), "index": first + np.arange(length), "task_index": np.full(length, task),
            }  # fmt: skip
            parts.setdefault(place[number][0], []).append(table({**shown, **plain, **standard}))
            first += length
        for number, tables in parts.items():
            write(folder / f"data/chunk-000/file-{number:03d}.parquet", pa.concat_tables(tables))
        for name, film in clock:
            frames = [e[name] for e, of in zip(episodes, film_of, strict=True) if of == film]
            _film(folder / f"videos/{name}/chunk-000/file-{film:03d}.mp4", np.concatenate(frames), int(fps))
        write(
            folder / "meta/tasks.parquet",
            pa.table({"task_index": range(len(sentences)), "__index_level_0__": sentences}),
        )
        write(folder / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(rows))
        kind = "video" if films else "image"
        features = {
            name: {"dtype": kind, "shape": list(episodes[0][name].shape[1:]), "names": ["height", "width", "channel"]}
            if name in pictures
            else {
                "dtype": str(episodes[0][name].dtype),
                "shape": list(episodes[0][name].shape[1:]) or [1],
                "names": None,
            }
            for name in names
        }
        told = {
            "codebase_version": "v3.0", "robot_type": "panda", "fps": fps, "features": features,
            "total_episodes": len(episodes), "total_frames": first, "total_tasks": len(sentences), "chunks_size": 1000,
            "splits": {"train": f"0:{len(episodes)}"}, "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if films else None,
        }  # fmt: skip
        (folder / "meta/info.json").write_text(json.dumps(told | (info or {})))
        if success is not None and not any(name.startswith("next.") for name in names):
            (folder / "worldrl.json").write_text(json.dumps({"success": success}))
        return folder

    return publish


@pytest.fixture(scope="session")
def grpo_on() -> Callable[..., Any]:
    """Make GRPO whose imagination holds given rollouts in equal groups, weighed as given."""
    from worldrl.methods.rl.grpo import grpo
    from worldrl.methods.rl.imagination import PolicyImagination
    from worldrl.methods.rl.records import StartRecords
    from worldrl.methods.rl.trust import FilterResult
    from worldrl.policies.exploration import Exploration

    @dataclass(frozen=True)
    class Given(PolicyImagination):
        judged: Any = None
        groups: int = 0

        @property
        def records(self) -> StartRecords:
            return StartRecords(["PickRedCube"] * self.groups, [False] * self.groups, counts=True)

        def imagine(self, request: Any) -> Any:
            return self.judged

    def make(policy, rollouts, config, *, trust=None, agreement=None, term_weight=0.0, temperature=1.0, **over):
        groups = int(rollouts.group.max()) + 1
        source = Given(
            env=None,
            policy=policy,
            exploration=Exploration(temperature),
            p_keyframe=0.0,
            groups=groups,
            seed=0,
            judge=SimpleNamespace(term_weight=term_weight),
            length_normalise=config.length_normalise,
            keeps_silent=config.anchor > 0,
            judged=FilterResult(rollouts, trust, agreement),
        )
        config = replace(config, groups=groups, group_size=len(rollouts.group) // groups)
        return grpo(source, policy, config, **over)

    return make


@pytest.fixture(scope="session")
def kept_chunks(grpo_on) -> Callable[..., Any]:
    """The chunks that GRPO keeps of given rollouts, and what it says of them."""

    def keep(rollouts, config, **over):
        method, logs = grpo_on(None, rollouts, config, **over), {}
        collected = method.schedule(method.source, method.request(0), method.mix, logs)
        return method.decided(method.request(0), collected, logs), logs

    return keep


@pytest.fixture(scope="session")
def updated(grpo_on) -> Callable[..., Any]:
    """Let GRPO improve a policy on given rollouts; return what it says."""
    from worldrl.methods.rl.grpo import policy_learner
    from worldrl.methods.rl.loop import iterate

    def update(policy, optimizer, rollouts, config, **over):
        learner = replace(policy_learner(policy, config), optimizer=optimizer)
        return iterate(learner, grpo_on(policy, rollouts, config, **over), 0)[0]

    return update


@pytest.fixture
def serve_app() -> Callable[[Any], Any]:
    """Run a web application in a thread, as the local pages run it; gives its port."""
    for package in ("starlette", "uvicorn", "websockets"):
        pytest.importorskip(package, reason="the extra play brings it")
    from worldrl.recipes.listening import listen
    from worldrl.recipes.local_server import HOST, make_server

    @contextmanager
    def run(app: Any) -> Iterator[int]:
        with listen(HOST, 0) as listening:
            made = make_server(app)
            thread = threading.Thread(target=made.run, kwargs={"sockets": [listening]}, daemon=True)
            thread.start()
            try:
                yield listening.getsockname()[1]
            finally:
                made.should_exit = True
                thread.join(timeout=60)
        assert not thread.is_alive()

    return run
