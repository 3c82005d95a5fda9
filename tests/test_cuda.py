"""What only a CUDA device can show: the same numbers as the CPU's, resume, recorded updates, memory errors, whole commands.

Skipped where there is no such device; ``pytest -n 0 tests/test_cuda.py`` runs it where there is one.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from worldrl.core.rng import initial_weights, row_streams, stream
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.ravl import Ravl, RavlConfig
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.methods.offline.td3_bc import Td3Bc, Td3BcConfig
from worldrl.methods.offline.updates import CudaRecorder, Graphed
from worldrl.paths import weights_dir
from worldrl.policies.observation import PolicyObs
from worldrl.world_models.loading import open_world_model
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.training import fit_dynamics
from worldrl.world_models.video.training_config import WorldModelTraining

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

GPU = "cuda"
HOME = torch.tensor([0.48, 0.0, 0.14, 0.0, 0.0, 0.0, -1.0])
SENTENCES = TaskInstructions(
    same={"PickRedCube": ("pick up the red cube",), "PickGreenCylinder": ("take the green can",)},
    other={"PickRedCube": ("take the green can",), "PickGreenCylinder": ()},
)
SMALL = {"steps": 6, "batch": 4, "warmup": 2, "checkpoint_every": 2, "dtype": "float32", "unroll": 2, "codec_batch": 4}


@pytest.fixture(autouse=True)
def _exact_products() -> Any:
    """Compare with full float32 products."""
    allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = allowed


def imagined(model: Any, records: list[Any], chunks: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Decoded last images and success of some chunks, on the CPU."""
    state, streams = model.start(records), row_streams(0, ("cuda",), len(records))
    success = []
    for _ in range(chunks):
        action = torch.zeros(len(records), model.chunk_length, 7, device=model.device)
        state, chunk = model.imagine(state, action, generators=streams)
        success.append(chunk.success_prob.float().cpu())
    return model.decode_newest(state, 1)[:, 0].cpu().float(), torch.cat(success, dim=1)


@pytest.mark.parametrize("kind", ["flow_transformer", "edm_unet"])
def test_an_imagined_rollout_is_the_cpus_in_float32(make_world_model: Any, make_record: Any, kind: str) -> None:
    records = [make_record(grey) for grey in (10, 90, 200)]
    image, success = imagined(make_world_model(kind=kind), records)
    image_gpu, success_gpu = imagined(make_world_model(kind=kind).to(GPU), records)
    assert (image - image_gpu).abs().max() <= 2
    torch.testing.assert_close(success_gpu, success, rtol=1e-3, atol=1e-4)


def test_rows_do_not_depend_on_their_neighbours(make_world_model: Any, make_record: Any) -> None:
    model, records = make_world_model().to(GPU), [make_record(grey) for grey in (10, 90, 200)]
    image, _ = imagined(model, records)
    first, _ = imagined(model, records[:1])
    assert (image[:1] - first).abs().max() <= 1


def test_the_bundled_world_model_in_bfloat16_shows_the_same_film(make_record: Any) -> None:
    folder = weights_dir() / "world_model"
    exact = open_world_model(folder)
    size = exact.config.codec.image_size
    record = make_record(0)
    noise = torch.randint(0, 256, (size, size, 3), dtype=torch.uint8, generator=stream(0, "film")).numpy()
    record = replace(record, reference=noise, memory=noise[None].repeat(exact.memory_frames, axis=0))
    fast = open_world_model(folder, GPU)
    fast.compute_dtype = torch.bfloat16
    image, success = imagined(exact, [record] * 2, 1)
    image_gpu, success_gpu = imagined(fast, [record] * 2, 1)
    assert (image - image_gpu).square().mean().sqrt() < 6
    assert (success - success_gpu).abs().max() < 0.1


def test_a_policy_acts_as_on_the_cpu(tiny_policy: Any) -> None:
    draw = stream(0, "images")
    obs = PolicyObs(
        torch.randint(0, 256, (4, 16, 16, 3), dtype=torch.uint8, generator=draw), HOME.repeat(4, 1), ["pick it"] * 4
    )
    chunk = tiny_policy().act(obs, generators=row_streams(0, ("act",), 4))
    chunk_gpu = tiny_policy().to(GPU).act(obs, generators=row_streams(0, ("act",), 4))
    assert (chunk.token != chunk_gpu.token.cpu()).float().mean() < 0.02
    torch.testing.assert_close(chunk_gpu.logp.cpu(), chunk.logp, rtol=1e-3, atol=1e-3)


class StopError(Exception):
    """Raised in the middle of a training."""


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's own
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # the comparison is in full float32
def test_training_resumes_to_the_same_weights(
    make_world_model: Any, push_episodes: Any, monkeypatch: Any, tmp_path: Any, compiled: bool
) -> None:
    from worldrl.world_models.video import training

    config, true_loss, calls = WorldModelTraining(**SMALL, compile=compiled), training.dynamics_loss, []

    def run(folder: Any, stop: int | None = None) -> dict[str, torch.Tensor]:
        def loss(*args: Any, **kwargs: Any) -> Any:
            calls.append(len(calls))
            if stop is not None and len(calls) == stop + 1:
                raise StopError
            return true_loss(*args, **kwargs)

        calls.clear()
        monkeypatch.setattr(training, "dynamics_loss", loss)
        model = make_world_model().to(GPU)
        fit_dynamics(model, push_episodes, config, instructions=SENTENCES, seed=3, folder=folder, log=None)
        return dict(model.state_dict())

    whole = run(tmp_path / "whole")
    with pytest.raises(StopError):
        run(tmp_path / "cut", stop=5)
    for name, value in run(tmp_path / "cut").items():
        torch.testing.assert_close(value, whole[name], rtol=1e-3, atol=1e-4, msg=name)


AGENTS = [
    (Sac, SacConfig(hidden=(8,), actor_cosine=True)),
    (Ravl, RavlConfig(hidden=(8, 8), critics=4)),
    (Td3Bc, Td3BcConfig(hidden=(8,))),
]


@pytest.mark.parametrize(("agent_class", "config"), AGENTS, ids=lambda x: getattr(x, "name", ""))
def test_recorded_updates_are_the_eager_ones(agent_class: Any, config: Any) -> None:
    facts = Facts(torch.zeros(3, device=GPU), torch.ones(3, device=GPU), 2, 0.0, 1000.0, updates=100)

    def made() -> Any:
        with initial_weights(0, "updates"):
            return agent_class(config, facts).to(GPU)

    def run(agent: Any, update: Callable[..., Any]) -> list[dict[str, float]]:
        logs = [update(rows(step), generator=stream(1, step)) for step in range(9)]
        return [{name: float(value) for name, value in log.items()} for log in logs[-1:]]

    eager, graphed = made(), made()
    expected, found = run(eager, eager.update), run(graphed, Graphed(graphed, CudaRecorder()))
    assert found[-1] == pytest.approx(expected[-1], rel=1e-2, abs=1e-3)
    for name, module in eager.modules.items():
        for key, value in module.state_dict().items():
            torch.testing.assert_close(
                graphed.modules[name].state_dict()[key], value, rtol=1e-3, atol=1e-4, msg=f"{name}.{key}"
            )


def rows(seed: int, count: int = 32) -> Any:
    """Random transitions on the GPU."""
    from worldrl.core.transitions import Transitions

    draw = stream(seed, "rows")
    obs, action, reward, after = (torch.randn(count, *shape, generator=draw) for shape in ((3,), (2,), (), (3,)))
    ended = torch.rand(count, generator=draw) < 0.2
    return Transitions(
        *(x.to(GPU) for x in (obs, action.clamp(-0.9, 0.9), reward, after, ended, torch.zeros_like(ended)))
    )


def test_train_vla_runs_to_its_report_on_the_gpu(run_python: Any, tmp_path: Any) -> None:
    words = ["-m", "worldrl", "train-vla", "preset=tiny", "device=cuda", f"run_dir={tmp_path / 'run'}"]
    ended = run_python(*words, cwd=tmp_path, timeout=400)
    assert ended.returncode == 0, ended.stderr[-2000:]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["hardware"] == torch.cuda.get_device_name()


def test_train_idm_runs_on_the_gpu(run_python: Any, tmp_path: Any) -> None:
    worldrl, data = ("-m", "worldrl"), tmp_path / "collect" / "dataset"
    run_python(*worldrl, "collect", "preset=tiny", f"run_dir={tmp_path / 'collect'}", cwd=tmp_path)
    words = ["train-idm", "preset=tiny", "device=cuda", f"data=[{data}]", f"run_dir={tmp_path / 'run'}"]
    ended = run_python(*worldrl, *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-2000:]
