"""Folders of lerobot's policies and which releases are served, without lerobot.

Units under test: ``policies/lerobot_folder.py``, ``policies/lerobot_inputs.py``, ``policies/lerobot_release.py``, ``rollout/policy_folder.py``.
"""

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import save_file

import worldrl.policies.lerobot.network as network
import worldrl.policies.lerobot.policy as client
import worldrl.policies.lerobot.release as release
from worldrl.cli import main
from worldrl.core.actions import TOOL_ACTIONS, joint_targets
from worldrl.core.errors import ArtefactError, SettingError, WorkerEnvironmentError
from worldrl.policies.lerobot.folder import read_lerobot_folder
from worldrl.policies.lerobot.inputs import match_inputs, require_fit
from worldrl.policies.lerobot.worker import lerobot_python
from worldrl.rollout.agents.policy_folder import policy_facts, policy_parent, require_policy_fits
from worldrl.rollout.suites.registry import find_suite, require_suite_fits
from worldrl.rollout.suites.suite import drawn_size
from worldrl.workers.link.boot import load_file

fake = load_file("fake_network", Path(__file__).parent / "fake_network.py")
TWO_ARMS = joint_targets(tuple(f"joint{n}" for n in range(14)), (-1.0,) * 14, (1.0,) * 14)


@pytest.fixture
def folder(tmp_path):
    return fake.publish(tmp_path / "policy")


def visual(size=16):
    return {"type": "VISUAL", "shape": [3, size, size]}


def republish(tmp_path, features, *, sources=None, **changes):
    folder = fake.publish(tmp_path / "policy", input_features=features, **changes)
    (folder / "worldrl.json").unlink()
    if sources:
        (folder / "worldrl.json").write_text(json.dumps({"inputs": sources}))
    statistics = {
        f"{name}.{n}": fake.OBSERVED["observation.state.mean"].clone() for name in features for n in ("mean", "std")
    }
    save_file({**statistics, **fake.STATISTICS}, folder / "policy_preprocessor_step_0_normalizer_processor.safetensors")
    return folder


def test_a_complete_folder(folder):
    facts = policy_facts(folder)
    assert (facts.kind, facts.chunk_length, facts.image_size, facts.cameras) == ("smolvla", 4, 16, ("scene",))
    assert facts.actions == TOOL_ACTIONS
    assert policy_parent(folder) == {"path": str(folder), "hash": facts.hash}
    (folder / "README.md").write_text("words")
    assert policy_facts(folder).hash == facts.hash
    state = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    save_file({name: value + 1 for name, value in fake.STATISTICS.items()}, folder / state)
    assert policy_facts(folder).hash != facts.hash  # other statistics, another policy


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("config.json", "the policy's config is missing"),
        ("model.safetensors", "the checkpoint is missing"),
        ("policy_preprocessor.json", "the saved processor is missing"),
        ("policy_postprocessor.json", "the saved processor is missing"),
        ("policy_preprocessor_step_0_normalizer_processor.safetensors", "the processor's statistics is missing"),
        ("policy_postprocessor_step_0_unnormalizer_processor.safetensors", "the processor's statistics is missing"),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_gets_it(folder, missing, words):
    (folder / missing).unlink()
    with pytest.raises(ArtefactError, match=rf"{missing}: {words}.*hf download .* --local-dir {folder}"):
        policy_facts(folder)


@pytest.mark.parametrize("steps", [[], [{"registry_name": "unnormalizer_processor", "config": {}}]])
def test_a_processor_without_statistics_is_refused(folder, steps):
    (folder / "policy_postprocessor.json").write_text(json.dumps({"name": "policy_postprocessor", "steps": steps}))
    with pytest.raises(
        ArtefactError, match=r"postprocessor.json: statistics action.mean, action.std are missing.*migrate"
    ):
        read_lerobot_folder(folder)


def test_statistics_of_one_input_that_are_missing_are_an_error(folder):
    save_file(fake.STATISTICS, folder / "policy_preprocessor_step_0_normalizer_processor.safetensors")
    with pytest.raises(
        ArtefactError, match=r"preprocessor.json: statistics observation.state.mean, observation.state.std"
    ):
        read_lerobot_folder(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "smolvla2"}, r"type 'smolvla2' is not supported; did you mean 'smolvla'\?"),
        ({"n_obs_steps": 2}, "n_obs_steps is 2; a network of type smolvla takes one observation"),
        ({"type": "diffusion", "n_obs_steps": 4}, "got n_obs_steps 4, n_action_steps 4, a chunk of 6"),
        ({"temporal_ensemble_coeff": 0.01}, "set it to null"),
        ({"adapt_to_pi_aloha": True}, "set it to false"),
        ({"normalization_mapping": {"ACTION": "MINMAX"}}, "unknown mode 'MINMAX'; did you mean 'MIN_MAX'"),
    ],
)
def test_what_is_not_supported_is_said(tmp_path, changes, words):
    with pytest.raises(SettingError, match=words):
        read_lerobot_folder(fake.publish(tmp_path / "policy", **changes))


def test_a_diffusion_policy_executes_from_its_newest_observation_on(tmp_path):
    folder = read_lerobot_folder(fake.publish(tmp_path / "two", type="diffusion", n_obs_steps=2))
    assert (folder.n_obs_steps, folder.executed, folder.windowed) == (2, slice(1, 5), True)
    assert policy_facts(folder.path).n_obs_steps == 2
    assert read_lerobot_folder(fake.publish(tmp_path / "one")).executed == slice(0, 4)


def two_armed(tmp_path, names, picture=(240, 320), **changes):
    seen = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, *picture]} for name in names}
    features = {**seen, "observation.state": {"type": "STATE", "shape": [14]}}
    return republish(tmp_path, features, output_features={"action": {"type": "ACTION", "shape": [14]}}, **changes)


@pytest.mark.parametrize(
    "names",
    [
        ("cam_high", "cam_left_wrist", "cam_right_wrist"),
        ("right_camera", "left_camera", "head_camera"),
        ("cam_head", "cam_left_wrist", "cam_right_wrist"),
    ],
)
def test_two_arms_fourteen_joints_and_three_cameras_fit_robotwin_as_they_are(tmp_path, names):
    folder = two_armed(tmp_path, names)
    found = {name.rpartition(".")[2]: source for name, source in match_inputs(read_lerobot_folder(folder)).items()}
    assert found.pop("state") == "state"
    for name, source in found.items():
        side = next((side for side in ("left", "right") if side in name), None)
        assert source == ("image" if side is None else f"{side}_wrist_image")
    facts = policy_facts(folder)
    assert (facts.cameras, facts.picture) == (("scene", "left_wrist", "right_wrist"), (240, 320))
    assert facts.actions == find_suite("robotwin_clean").spec.actions
    require_suite_fits(find_suite("robotwin_clean"), folder)
    assert drawn_size(find_suite("robotwin_clean"), facts.picture) == 0
    with pytest.raises(SettingError, match="240 by 320 pixels; here they are square"):
        _ = facts.image_size
    with pytest.raises(
        SettingError, match=r"left_wrist_image not shown(?s:.)*external suites for this policy: robotwin_c"
    ):
        require_suite_fits(find_suite("libero_goal"), folder)


def test_images_that_a_suite_does_not_draw_are_shown_beside_those_it_does(tmp_path):
    folder = two_armed(tmp_path, ("cam_high", "cam_left_wrist", "cam_right_wrist"), picture=(480, 640))
    with pytest.raises(SettingError, match=r"cam_high \(480, 640, 3\) +\| image \(480, 480, 3\)"):
        require_suite_fits(find_suite("robotwin_clean"), folder)


def test_three_cameras_of_other_names_and_actions_of_another_size_are_asked_for(tmp_path):
    folder = two_armed(tmp_path, ("exterior_1_left", "exterior_2_left", "wrist_left"))
    with pytest.raises(SettingError, match=r"exterior_1_left \(240, 320, 3\) \| \?"):
        policy_facts(folder)
    (folder / "worldrl.json").write_text(json.dumps({"actions": TOOL_ACTIONS.to_json()}))
    with pytest.raises(ArtefactError, match="actions: names 7 numbers, the policy's actions have 14"):
        policy_facts(folder)


def test_liberos_names_are_matched_by_themselves(tmp_path):
    state = {"type": "STATE", "shape": [8]}
    features = {"observation.images.image": visual(), "observation.images.image2": visual(), "observation.state": state}
    folder = republish(tmp_path, features)
    assert list(match_inputs(read_lerobot_folder(folder)).values()) == ["image", "wrist_image", "state"]
    assert policy_facts(folder).cameras == ("scene", "wrist")
    require_policy_fits(folder, TOOL_ACTIONS, "libero_goal", cameras=("scene", "wrist"))
    with pytest.raises(SettingError, match=r"image2 .*\| wrist_image not shown"):
        require_policy_fits(folder, TOOL_ACTIONS, "one camera", cameras=("scene",))


def test_an_input_that_is_not_sure_is_asked_for_with_the_line_to_write(tmp_path):
    features = {"observation.images.top": visual(), "observation.state": {"type": "STATE", "shape": [7]}}
    folder = republish(tmp_path, features)
    with pytest.raises(SettingError, match=r"observation.state \(7,\) +\| \?") as caught:
        policy_facts(folder)
    assert 'write {"inputs": {"observation.images.top": "image", "observation.state": "command"}}' in str(caught.value)
    (folder / "worldrl.json").write_text(json.dumps({"inputs": {"observation.state": "command"}}))
    assert policy_facts(folder).cameras == ("scene",)
    (folder / "worldrl.json").write_text(json.dumps({"inputs": {"observation.stat": "command"}}))
    with pytest.raises(ArtefactError, match=r"unknown feature 'observation.stat'; did you mean 'observation.state'"):
        policy_facts(folder)


def test_specs_that_differ_are_shown_side_by_side(folder):
    found = read_lerobot_folder(folder)
    with pytest.raises(
        SettingError, match=r"does not fit the moon(?s:.)*\(7,\) +\| command \(6,\)(?s:.)*nearest adapter: none"
    ):
        require_fit(found, match_inputs(found), {"image": (16, 16, 3), "command": (6,)}, 7, "the moon")
    with pytest.raises(SettingError, match=r"action \(7,\) +\| action \(14,\)(?s:.)*another robot"):
        require_policy_fits(folder, TWO_ARMS, "two arms", cameras=("head",))


def test_the_command_line_says_it_in_one_line_and_exits_with_2(folder, tmp_path, capsys):
    (folder / "model.safetensors").unlink()
    assert main(["benchmark", f"policy={folder}", f"run_dir={tmp_path / 'run'}", "preset=tiny"]) == 2
    assert "the checkpoint is missing" in " ".join(capsys.readouterr().err.split())


def test_without_lerobot_the_error_names_the_setup(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        WorkerEnvironmentError, match=r"lerobot is not installed \(in .*build it with `worldrl setup lerobot`"
    ):
        client.LerobotPolicy.load(folder, "cpu")


@pytest.mark.parametrize("other", ["0.3.3", "0.5.1", "0.6.0", "0.7.0", "1.0"])
def test_a_lerobot_beside_worldrl_that_is_not_served_is_passed_over_and_named(folder, tmp_path, monkeypatch, other):
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: ModuleSpec(name, None, origin="lerobot/__init__.py"))
    monkeypatch.setattr(release, "version", lambda name: other)
    with pytest.raises(
        WorkerEnvironmentError, match=rf"lerobot {other} is not supported: .*build it with `worldrl setup lerobot`"
    ):
        client.LerobotPolicy.load(folder, "cpu")
    with pytest.raises(
        WorkerEnvironmentError, match=r"methods of 0\.4 \(tried with 0\.4\.4\) and 0\.6 from 0\.6\.1 on"
    ):
        release.installed_release()


@pytest.mark.parametrize(("here", "line"), [("0.4.4", "0.4"), ("0.4.1", "0.4"), ("0.6.1", "0.6"), ("0.6.2", "0.6")])
def test_a_served_lerobot_beside_worldrl_is_used(monkeypatch, here, line):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: ModuleSpec(name, None, origin="lerobot/__init__.py"))
    monkeypatch.setattr(release, "version", lambda name: here)
    assert lerobot_python() == sys.executable
    assert release.installed_release().name == line


def test_a_network_that_the_release_here_cannot_make_is_an_error_that_says_so(folder, monkeypatch):
    """As transformers 4 does with the tokenizer's files that transformers 5 saved."""

    def refuse(*given, **named):
        raise ValueError("Tokenizer class TokenizersBackend does not exist")

    modules = SimpleNamespace(
        get_policy_class=lambda kind: SimpleNamespace(from_pretrained=refuse), PreTrainedConfig=None
    )
    monkeypatch.setattr(network, "importlib", SimpleNamespace(import_module=lambda name: modules))
    monkeypatch.setattr(network, "import_lerobot", lambda: release.served_release("0.4.4"))
    monkeypatch.setattr(network, "read_config", lambda *given: SimpleNamespace())
    with pytest.raises(ArtefactError, match=r"lerobot 0\.4 cannot make the network(?s:.)*TokenizersBackend"):
        network.LerobotNetwork(folder, "cpu")


@pytest.mark.parametrize(
    ("kind", "model"),
    [("smolvla", "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"), ("pi0", "google/paligemma-3b-pt-224")],
)
def test_a_missing_language_model_is_fetched_by_the_command_of_its_kind(folder, kind, model):
    told = network.missing_language_model(folder, kind, OSError("not in the cache\nand more"))
    assert f"{folder}: the language model's config or tokenizer is missing: not in the cache Looked in" in told
    assert f"hf download {model} --include" in told


def test_what_another_release_adds_to_a_config_is_dropped_or_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    later = {"pretrained_revision": None, "use_relative_actions": False}
    old, new = (release.served_release(name) for name in ("0.4.4", "0.6.1"))
    assert release.served_config({**config, **later}, set(config), folder, old) == config
    with pytest.raises(ArtefactError, match=r"config.json: lerobot 0.4 does not know think_steps: another release"):
        release.served_config({**config, **later, "think_steps": 3}, set(config), folder, old)
    known = {*config, *later}
    assert release.served_config({**config, **later}, known, folder, new) == {**config, **later}
    with pytest.raises(ArtefactError, match=r"config.json: lerobot 0.6 does not know think_steps.*with 0.6"):
        release.served_config({**config, "think_steps": 3}, known, folder, new)


@pytest.mark.parametrize("enabled", [False, True])
def test_actions_counted_from_the_measured_state_are_refused(folder, enabled):
    file = folder / "policy_postprocessor.json"
    saved = json.loads(file.read_text())
    saved["steps"].append({"registry_name": "absolute_actions_processor", "config": {"enabled": enabled}})
    file.write_text(json.dumps(saved))
    if not enabled:
        assert read_lerobot_folder(folder).kind == "smolvla"
        return
    with pytest.raises(
        SettingError, match=r"postprocessor.json: step 'absolute_actions_processor' counts actions from"
    ):
        read_lerobot_folder(folder)


def edit(folder, file, change):
    """Change a JSON file of the folder in place."""
    body = json.loads((folder / file).read_text())
    change(body)
    (folder / file).write_text(json.dumps(body))


PAYLOAD = {"class": "subprocess.Popen", "config": {"args": ["touch", "ran"]}}


@pytest.mark.parametrize("file", ["policy_preprocessor.json", "policy_postprocessor.json"])
@pytest.mark.parametrize(
    ("step", "words"),
    [
        (PAYLOAD, "key 'class' is refused"),
        ({**PAYLOAD, "registry_name": "normalizer_processor"}, "key 'class' is refused"),
        ({"registry_name": "gym_hil_adapter_processor"}, "registry_name 'gym_hil_adapter_processor' is refused"),
        ({"registry_name": ["normalizer_processor"]}, "is refused"),
        ({"registry_name": "device_processor", "state_file": "../secret.safetensors"}, "state_file must be"),
        ({"registry_name": "device_processor", "state_file": "/etc/passwd"}, "state_file must be"),
        ({"registry_name": "device_processor", "config": ["x"]}, "config must be an object"),
        ({"registry_name": "tokenizer_processor", "config": {"tokenizer_name": "./model"}}, "must be a hub id"),
        ({"registry_name": "tokenizer_processor", "config": {"tokenizer_name": "../a/b"}}, "must be a hub id"),
        ({"registry_name": "device_processor", "config": {"trust_remote_code": True}}, "names code"),
        (
            {"registry_name": "device_processor", "config": {"x": {"_attn_implementation_internal": "a/b"}}},
            "names code",
        ),
        ("subprocess.Popen", "must be an object"),
    ],
)
def test_a_step_that_could_run_code_is_refused_before_lerobot_sees_it(folder, file, step, words):
    """huggingface/lerobot 4219: lerobot calls a step's class before it checks it."""
    edit(folder, file, lambda body: body["steps"].append(step))
    with pytest.raises(ArtefactError, match=rf"{file}: step 1.*{words}"):
        read_lerobot_folder(folder)
    edit(folder, file, lambda body: body.update(steps={"0": step}))
    with pytest.raises(ArtefactError, match="'steps' must be a list"):
        read_lerobot_folder(folder)


def test_the_command_line_refuses_it_too(folder, tmp_path, capsys):
    edit(folder, "policy_preprocessor.json", lambda body: body["steps"].insert(0, PAYLOAD))
    assert main(["benchmark", f"policy={folder}", "suite=libero_spatial", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "key 'class' is refused" in " ".join(capsys.readouterr().err.split())


def test_language_models_are_hub_ids_or_data_beside_the_policy(folder):
    edit(folder, "config.json", lambda body: body.update(vlm_model_name="/tmp/model"))
    with pytest.raises(ArtefactError, match="vlm_model_name must be a hub id"):
        read_lerobot_folder(folder)
    (folder / "vlm").mkdir()
    (folder / "vlm" / "config.json").write_text('{"model_type": "smolvlm", "vision_config": {}}')
    assert read_lerobot_folder(folder).kind == "smolvla"  # the folder replaces the name
    (folder / "vlm" / "config.json").write_text('{"vision_config": {"auto_map": {"AutoModel": "code.Model"}}}')
    with pytest.raises(ArtefactError, match="key 'auto_map' names code"):
        read_lerobot_folder(folder)
    (folder / "vlm" / "config.json").unlink()
    for name in ("modeling.py", "weights.bin"):
        (folder / "vlm" / name).write_text("raise SystemExit")
        with pytest.raises(ArtefactError, match=f"{name}: is refused"):
            read_lerobot_folder(folder)
        (folder / "vlm" / name).unlink()
