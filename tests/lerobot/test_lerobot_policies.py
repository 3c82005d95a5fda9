"""The real lerobot package: tiny policies of its own classes, served to worldrl and trained a step.

Run ``worldrl setup lerobot`` once, then ``pytest -m lerobot``. Units under test: ``policies/lerobot_network.py``,
``policies/lerobot_samplers.py`` and, through them, everything that ``tests/rollout/test_lerobot_policy.py`` covers with a double.
"""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.cli import main
from worldrl.core.errors import WorkerError
from worldrl.core.rng import row_streams
from worldrl.core.types import PolicyObs
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.policy.result import EvalResult
from worldrl.evaluation.report.store import load_report_data
from worldrl.jobs.policy.serve_policy import ServePolicySettings, open_server
from worldrl.methods.imitation.lerobot_tuning import FineTuning, fine_tune
from worldrl.methods.rl.config import GrpoConfig
from worldrl.methods.rl.imagination import imagine_batch, imagined_env
from worldrl.policies.exploration import Exploration
from worldrl.policies.lerobot.one_step import unpack_trace
from worldrl.policies.lerobot.policy import LerobotPolicy
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.rollout.real.rows import Row, stack_obs
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.robotwin import TARGET
from worldrl.simulators.process import Launch
from worldrl.workers.link.boot import load_file

pytestmark = pytest.mark.lerobot
SENTENCES = ["pick up the red cube", "put the green cylinder on the red cube"]
KINDS = ("act", "diffusion", "smolvla", "pi0")  # each of one observation
TINY_PI0 = f"{Path(__file__).parent / 'tiny_pi0.py'}:serve_tiny"
L, A = 4, 7
make_checkout = load_file("robotwin_double", Path(__file__).parents[1] / "workers" / "robotwin_double.py").make_checkout


def load(folder, kind):
    """Start a policy's worker; that of a π0 makes it of tiny parts."""
    with pytest.MonkeyPatch.context() as patch:
        if kind == "pi0":
            patch.setattr("worldrl.policies.lerobot.worker.TARGET", TINY_PI0)
        return LerobotPolicy.load(folder, "cpu")


@pytest.fixture(scope="module")
def serve(published):
    """Load a kind once for all tests."""
    loaded = {}

    def get(kind):
        if not (published / kind).is_dir():
            pytest.skip("π0 of lerobot 0.4 needs a patched transformers")
        if kind not in loaded:
            loaded[kind] = load(published / kind, kind)
        return loaded[kind]

    yield get
    for policy in loaded.values():
        policy.close()


def observe(published, kind, rows=2):
    given = dict(np.load(published / f"{kind}.npz"))
    given = given or dict(np.load(published / "act.npz"))
    return PolicyObs(
        torch.from_numpy(given["image"])[:rows], torch.from_numpy(given["state"])[:rows], SENTENCES[:rows]
    ), given


@pytest.mark.parametrize("kind", ["act", "smolvla", "smolvla16", "pi0"])
def test_without_exploration_it_is_lerobots_own_pipeline(published, serve, kind, monkeypatch):
    policy, (obs, given) = serve(kind), observe(published, kind)
    noise = torch.from_numpy(given["noise"])
    both = torch.stack([noise, torch.zeros_like(noise)], dim=1)
    monkeypatch.setattr("worldrl.policies.lerobot.policy.row_noise", lambda generators, shape: both)
    chunk = policy.act(obs, generators=row_streams(0, ["a"], 2), temperature=0.0)
    expected = torch.from_numpy(given["action"])[:, :L].clamp(-1, 1)
    torch.testing.assert_close(chunk.action, expected, rtol=1e-4, atol=1e-5)


def test_an_episode_of_a_policy_that_looks_back_is_lerobots_own(published, serve, monkeypatch):
    policy, given = serve("recalling"), dict(np.load(published / "recalling.npz"))
    rows = [Row(EpisodeSpec("a", row, 0), None, {}, SENTENCES[0]) for row in range(2)]
    expected = np.clip(given["action"], -1, 1)
    steps = [
        [{"image": image[row], "command": state[row]} for row in range(2)]
        for image, state in zip(given["image"], given["state"], strict=True)
    ]
    for step, shown in enumerate(steps):
        for row, obs in zip(rows, shown, strict=True):
            if step == 0:
                row.obs = obs
                row.keep(policy.n_obs_steps)
            else:
                row.see(obs)
        if step % L == 0:
            noise = torch.from_numpy(given["noise"][step // L])
            both = torch.stack([noise, torch.zeros_like(noise)], dim=1)
            monkeypatch.setattr("worldrl.policies.lerobot.policy.row_noise", lambda generators, shape, both=both: both)
            chunk = policy.act(stack_obs(rows, "cpu"), generators=row_streams(0, ["a"], 2), temperature=0.0)
        np.testing.assert_allclose(chunk.action[:, step % L].numpy(), expected[step], rtol=1e-3, atol=1e-4)
    assert np.abs(expected).min() < 1  # not all of it at the range's end


def test_benchmark_plays_a_policy_that_looks_back(published, tmp_path):
    tokens = ["preset=tiny", "tasks=[PickRedCube]", "episodes=2", "workers=0", "envs=2", "failures=0"]
    assert main(["benchmark", f"policy={published / 'recalling'}", *tokens, f"run_dir={tmp_path / 'run'}"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["success"]["n"] == 2


@pytest.mark.parametrize("kind", ["recalling", "pi0"])
def test_train_policy_fine_tunes_a_policy_that_looks_back_and_pi0(serve, kind, push_episodes, tmp_path):
    policy = serve(kind)
    config = FineTuning(steps=2, batch_size=4, warmup_steps=0, checkpoint_every=2)
    before = policy.state_dict()
    report = fine_tune(policy, push_episodes, config=config, seed=0, folder=tmp_path, log=None)
    assert np.isfinite(report.train)
    assert any(not torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    policy.load_state_dict(before)


def test_benchmark_plays_a_two_armed_act_on_the_double_of_robotwin(published, tmp_path, monkeypatch):
    def launch(suite, *, cameras, image_size):
        options = {"checkout": str(make_checkout(tmp_path / "RoboTwin")), "seeds": str(tmp_path / "seeds")}
        drawn = {"suite": suite, "cameras": list(cameras), "image_size": image_size}
        return Launch(suite, sys.executable, TARGET, {**options, **drawn})

    monkeypatch.setattr("worldrl.rollout.suites.robotwin.robotwin_launch", launch)
    tokens = ["suite=robotwin_clean", "episodes=1", "workers=1", "envs=1", "failures=1"]
    assert main(["benchmark", f"policy={published / 'robotwin'}", *tokens, f"run_dir={tmp_path / 'run'}"]) == 0
    result = EvalResult.load(tmp_path / "run")
    assert (result.protocol.cameras, result.protocol.image_size) == (("head", "left_wrist", "right_wrist"), 0)
    assert result.protocol.conventions["picture"] == "240 by 320 pixels"
    (strip,) = load_report_data(tmp_path / "run").filmstrips
    assert list(strip.rows) == ["head", "left_wrist", "right_wrist"]


def test_serve_policy_answers_with_a_two_armed_act(published):
    msgpack = pytest.importorskip("msgpack", reason="the extra serve brings it")
    connect = pytest.importorskip("websockets.sync.client").connect

    def sent(array):
        return {b"nd": True, b"type": array.dtype.str, b"shape": list(array.shape), b"data": array.tobytes()}

    picture = sent(np.full((240, 320, 3), 100, np.uint8))
    vision = {f"cam_{name}": {"color": picture} for name in ("head", "left_wrist", "right_wrist")}
    lengths = {"left_arm_joint": 6, "left_ee_joint": 1, "right_arm_joint": 6, "right_ee_joint": 1}
    state = {f"{part}_state": sent(np.zeros(length, np.float32)) for part, length in lengths.items()}
    with open_server(ServePolicySettings(policy=str(published / "robotwin"), port=0)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with connect(f"ws://127.0.0.1:{server.socket.getsockname()[1]}") as client:
            for kind, payload in (("reset", {}), ("infer", {"observation": {"vision": vision, "state": state}})):
                client.send(msgpack.packb({"message_type": kind, "message_id": "1", "payload": payload}))
                answer = msgpack.unpackb(client.recv())
        server.shutdown()
        thread.join()
    actions = np.array([np.concatenate(list(action.values())) for action in answer["payload"]["actions"]])
    assert actions.shape == (policy_facts(published / "robotwin").chunk_length, 14)
    assert np.isfinite(actions).all()
    assert np.ptp(actions) > 0


@pytest.mark.parametrize("kind", [*KINDS, "smolvla16"])
def test_log_probabilities_are_exact_and_recomputed(published, serve, kind):
    policy, (obs, _) = serve(kind), observe(published, kind)
    chunk = policy.act(obs, generators=row_streams(5, ["a"], 2), temperature=1.0)
    assert chunk.action.shape == chunk.logp.shape == (2, L, A)
    with torch.no_grad():
        torch.testing.assert_close(policy.log_prob(obs, chunk.token), chunk.logp, rtol=1e-3, atol=1e-3)
        # Independent of the service's density: in one coordinate it is a parabola whose curvature is -1/s².
        own, before, after = unpack_trace(chunk.token, policy._shape)
        step, values = 0.01, []
        for shift in (-step, 0.0, step):
            moved = torch.cat([own[:, None].float(), before.flatten(1), (after + shift).flatten(1)], dim=1)
            values.append(policy.log_prob(obs, moved).double())
    precision = -(values[0] - 2 * values[1] + values[2]) / step**2
    expected = -0.5 * np.log(2 * np.pi) + 0.5 * precision.log()  # the density's peak
    slope = (values[2] - values[0]) / (2 * step)
    torch.testing.assert_close(values[1], expected - 0.5 * slope**2 / precision, rtol=5e-2, atol=5e-2)


def test_the_processors_saved_with_the_policy_are_used(published, serve):
    (obs, _), draws = observe(published, "smolvla"), {"temperature": 0.0}
    plain = serve("smolvla").act(obs, generators=row_streams(1, ["a"], 2), **draws).action
    moved = serve("shifted").act(obs, generators=row_streams(1, ["a"], 2), **draws).action
    inside = (plain < -0.01) & (plain > -1)  # plus 1 it stays in the robot's range
    assert inside.any()
    torch.testing.assert_close(moved[inside], plain[inside] + 1, rtol=1e-4, atol=1e-5)


def test_the_instruction_matters(published, serve):
    obs, _ = observe(published, "smolvla")
    other = PolicyObs(obs.image, obs.command, SENTENCES[::-1])
    a, b = (serve("smolvla").act(o, generators=row_streams(1, ["a"], 2), temperature=0.0).action for o in (obs, other))
    assert not torch.equal(a, b)


@pytest.mark.parametrize("kind", ["act", "smolvla", "smolvla16", "pi0"])
def test_a_round_trip_through_a_folder(published, serve, kind, tmp_path):
    policy, (obs, _) = serve(kind), observe(published, kind)
    policy.save(tmp_path / "copy")
    other = load(tmp_path / "copy", kind)
    a, b = (p.act(obs, generators=row_streams(2, ["a"], 2)) for p in (policy, other))
    assert torch.equal(a.action, b.action)
    assert torch.equal(a.logp, b.logp)
    other.close()


@pytest.mark.parametrize(
    ("kind", "moving"), [("smolvla", "lm_expert"), ("smolvla16", "lm_expert"), ("pi0", "gemma_expert")]
)
def test_one_step_of_grpo_in_imagination_moves_a_flow_policy(
    published, serve, kind, moving, world_model, make_record, updated
):
    policy = serve(kind)
    before = policy.state_dict()
    store = ResetStore([make_record(grey) for grey in (20, 220)])
    env = imagined_env(world_model, store, SuccessRule(0.01, 1), rows=4, horizon={"PickRedCube": 8})
    rollouts = imagine_batch(env, policy, Exploration(1.0, 0.0), group_size=2, p_keyframe=0.0, seed=1)
    rollouts = type(rollouts)(**{**vars(rollouts), "success": torch.tensor([True, False, False, True])})
    config = GrpoConfig(keep_low=0, keep_high=1, minibatch=8)
    logs = updated(policy, policy.make_optimizer(1e-3, 0.0), rollouts, config)
    assert float(logs["grpo/gradient_norm"]) > 0
    assert float(logs["grpo/approx_kl"]) == pytest.approx(0, abs=1e-3)  # the acting policy is the one updated
    after = policy.state_dict()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any(moving in name for name in moved)
    assert not any(".vlm." in name for name in moved)  # SmolVLA: only the expert is trained, as its config says
    policy.load_state_dict(before)


def test_commands_fine_tune_and_evaluate_smolvla(published, tmp_path, push_episodes, robot):
    data = tmp_path / "data"
    with LeRobotWriter(data, fps=20, cameras=("scene",), image_size=(16, 16), embodiment=robot) as writer:
        for episode in [episode for episode in push_episodes if episode.success][:4]:
            writer.add_episode(episode)
    run = [sys.executable, "-m", "worldrl"]

    def worldrl(*arguments):
        done = subprocess.run([*run, *map(str, arguments)], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        return done

    start = published / "smolvla"
    worldrl("train-policy", "preset=tiny", f"start={start}", f"data=[{data}]", f"run_dir={tmp_path / 'tuned'}")
    result = json.loads((tmp_path / "tuned" / "result.json").read_text())["metrics"]
    assert np.isfinite(result["train"])
    tuned = tmp_path / "tuned" / "policy"
    for name in ("config.json", "model.safetensors", "policy_preprocessor.json", "policy_postprocessor.json"):
        assert (tuned / name).is_file()
    task = "tasks=[PickRedCube]"
    worldrl(
        "benchmark",
        "preset=tiny",
        f"policy={tuned}",
        task,
        "episodes=1",
        "workers=0",
        "envs=1",
        f"run_dir={tmp_path / 'b'}",
    )
    metrics = json.loads((tmp_path / "b" / "result.json").read_text())["metrics"]
    assert metrics["success"]["n"] == 1


def test_weights_that_do_not_fill_the_network_are_an_error(published, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "broken"
    shutil.copytree(published / "act", folder)
    weights = load_file(folder / "model.safetensors")
    dropped = next(name for name in weights if "action_head.weight" in name)
    save_file({name: value for name, value in weights.items() if name != dropped}, folder / "model.safetensors")
    with pytest.raises(WorkerError, match=r"1 tensors of the network are not in it \(model.action_head.weight\)"):
        LerobotPolicy.load(folder, "cpu")


@pytest.mark.parametrize("kind", ["diffusion", "smolvla"])
def test_a_folder_with_the_keys_that_lerobot_06_adds_is_the_same_policy(published, serve, kind, tmp_path):
    folder = tmp_path / "later"
    shutil.copytree(published / kind, folder)
    config = json.loads((folder / "config.json").read_text())
    later = {"pretrained_revision": None, **({"gradient_checkpointing": True} if kind == "diffusion" else {})}
    (folder / "config.json").write_text(json.dumps({**config, **later}))
    obs, _ = observe(published, kind)
    other = LerobotPolicy.load(folder, "cpu")
    a, b = (p.act(obs, generators=row_streams(2, ["a"], 2)) for p in (serve(kind), other))
    assert torch.equal(a.action, b.action)
    other.close()
    (folder / "config.json").write_text(json.dumps({**config, "think_steps": 3}))
    with pytest.raises(WorkerError, match=r"does not know think_steps"):
        LerobotPolicy.load(folder, "cpu")


def test_a_missing_language_model_says_where_it_was_looked_for(published, tmp_path):
    folder = tmp_path / "nameless"
    shutil.copytree(published / "smolvla", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vlm_model_name": "nobody/nothing"}))
    with pytest.raises(
        WorkerError, match=r"config or tokenizer is missing(?s:.)*Looked in .*nameless/vlm.*hf download"
    ):
        LerobotPolicy.load(folder, "cpu")


def test_a_step_that_this_release_does_not_have_is_named(published, tmp_path):
    folder = tmp_path / "later"
    shutil.copytree(published / "act", folder)
    file = folder / "policy_postprocessor.json"
    saved = json.loads(file.read_text())
    saved["steps"].append({"registry_name": "someday_processor", "config": {}})
    file.write_text(json.dumps(saved))
    with pytest.raises(WorkerError, match=r"lerobot 0\.\d\.\d cannot read the processors(?s:.)*someday_processor"):
        LerobotPolicy.load(folder, "cpu")
