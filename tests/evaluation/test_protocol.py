import dataclasses
import json
import subprocess
import sys

import pytest

from worldrl.core.actions import joint_targets
from worldrl.core.errors import ProtocolError, SettingError
from worldrl.evaluation.policy.protocol import EvalProtocol, embedded_protocol, instruction_of, require_same

CHANGES = {
    "suite": "libero_object",
    "suite_version": "v1",
    "tasks": ("CloseDrawer", "PickRedCube"),
    "episodes_per_task": 4,
    "seed": 12,
    "horizon": {"PickRedCube": 41, "CloseDrawer": 40},
    "chunk_length": 9,
    "replan": 4,
    "control_hz": 10.0,
    "packages": {"mujoco": "3.3.7"},
    "image_size": 32,
    "cameras": ("scene", "wrist"),
    "initial_states": "stored",
    "first_index": 1,
    "temperature": 1.0,
    "hold_steps": 1,
    "instruction_mode": "held_out",
    "style": "dim",
    "conventions": {"settle_steps": 10},
    "actions": joint_targets(("joint1", "gripper"), (-1.0, 0.0), (1.0, 1.0)),
}


def test_every_field_is_covered_below():
    assert {*CHANGES, "latency", "domain"} == {field.name for field in dataclasses.fields(EvalProtocol)}


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_changes_the_hash_and_forbids_comparison(protocol, field):
    other = dataclasses.replace(protocol, **{field: CHANGES[field]})
    assert other.hash != protocol.hash
    with pytest.raises(ProtocolError) as caught:
        require_same(protocol, other)
    differences = str(caught.value).split("; ")[1:-1]
    assert [text.split(":")[0] for text in differences] == [field]


def test_slow_decisions_change_the_hash_and_forbid_comparison(protocol):
    prompt = dataclasses.replace(protocol, replan=4)
    slow = dataclasses.replace(prompt, latency=2)
    assert "latency" not in prompt.to_json()  # the hash of before there was any
    assert EvalProtocol.from_json(slow.to_json()) == slow
    with pytest.raises(ProtocolError, match="latency: None against 2"):
        require_same(prompt, slow)
    with pytest.raises(SettingError, match="latency 5"):
        dataclasses.replace(prompt, latency=5)


def test_clean_and_randomised_are_two_protocols():
    clean = embedded_protocol(["BimanualOpenDrawer"], episodes_per_task=2, seed=0, chunk_length=8)
    drawn = embedded_protocol(["BimanualOpenDrawer"], episodes_per_task=2, seed=0, chunk_length=8, domain="randomised")
    assert "domain" not in clean.to_json()  # the hash of before there was any
    assert EvalProtocol.from_json(drawn.to_json()) == drawn
    assert (clean.env_options.domain, drawn.env_options.domain) == ("clean", "randomised")
    assert drawn.specs() == clean.specs()  # the same layouts
    with pytest.raises(ProtocolError, match="domain: None against 'randomised'"):
        require_same(clean, drawn)
    with pytest.raises(SettingError, match=r"style: the randomised domain draws its own visual styles, got 'dim'"):
        dataclasses.replace(drawn, style="dim")
    with pytest.raises(SettingError, match="domain: unknown value 'random'; did you mean 'randomised'"):
        dataclasses.replace(drawn, domain="random")
    with pytest.raises(SettingError, match=r"domain: randomised is of bimanual tasks .* got PickRedCube"):
        embedded_protocol(["PickRedCube"], episodes_per_task=1, seed=0, chunk_length=8, domain="randomised")


def test_equal_protocols_compare_and_survive_json(protocol, tmp_path):
    back = EvalProtocol.from_json(json.loads(json.dumps(protocol.to_json())))
    assert back == protocol
    assert back.hash == protocol.hash
    require_same(protocol, back)
    protocol.save(tmp_path / "protocol.json")
    assert EvalProtocol.load(tmp_path / "protocol.json") == protocol


def test_order_of_mappings_does_not_matter(protocol):
    other = dataclasses.replace(protocol, horizon={"CloseDrawer": 40, "PickRedCube": 40})
    assert other.hash == protocol.hash


def test_hash_is_the_same_in_another_process(protocol):
    code = (
        "import json, sys; from worldrl.evaluation.policy.protocol import EvalProtocol; "
        "print(EvalProtocol.from_json(json.loads(sys.argv[1])).hash)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, json.dumps(protocol.to_json())], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == protocol.hash


def test_an_edited_file_is_refused(protocol, tmp_path):
    path = tmp_path / "protocol.json"
    protocol.save(path)
    path.write_text(path.read_text().replace('"seed": 11', '"seed": 12'))
    with pytest.raises(ProtocolError, match="the file was edited"):
        EvalProtocol.load(path)


def test_unknown_schema_and_fields_are_refused(protocol):
    with pytest.raises(ProtocolError, match="schema must be 1, got 2"):
        EvalProtocol.from_json({**protocol.to_json(), "schema": 2})
    with pytest.raises(ProtocolError, match="crop"):
        EvalProtocol.from_json({**protocol.to_json(), "crop": 1})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("initial_states", "sampeled"),
        ("instruction_mode", "heldout"),
        ("episodes_per_task", 0),
        ("replan", 9),
        ("temperature", 0.0),
        ("tasks", ()),
        ("horizon", {"PickRedCube": 40}),
    ],
)
def test_impossible_protocols_are_refused(protocol, field, value):
    with pytest.raises(SettingError, match=field):
        dataclasses.replace(protocol, **{field: value})


def test_specs_name_each_episode_once(protocol):
    specs = dataclasses.replace(protocol, first_index=5).specs()
    assert [(spec.task, spec.index) for spec in specs] == [
        (task, index) for task in ("PickRedCube", "CloseDrawer") for index in (5, 6, 7)
    ]
    assert {spec.seed for spec in specs} == {11}
    assert {spec.init_id for spec in specs} == {None}
    stored = dataclasses.replace(protocol, initial_states="stored").specs()
    assert [spec.init_id for spec in stored] == [0, 1, 2, 0, 1, 2]


def test_an_episode_keeps_its_instruction_when_the_protocol_grows(protocol):
    few = dataclasses.replace(protocol, instruction_mode="held_out")
    many = dataclasses.replace(few, episodes_per_task=6)
    sentences = {spec.key: spec.instruction for spec in many.specs()}
    assert all(sentences[spec.key] == spec.instruction for spec in few.specs())


def test_held_out_instructions_are_not_training_instructions():
    train, held_out = (
        {instruction_of(mode, "PickRedCube", index, 0) for index in range(60)} for mode in ("paraphrase", "held_out")
    )
    assert len(train) > 1
    assert len(held_out) > 1
    assert not train & held_out
    assert instruction_of("canonical", "PickRedCube", 0, 0) is None
    with pytest.raises(SettingError, match="did you mean 'paraphrase'"):
        instruction_of("parafrase", "PickRedCube", 0, 0)


def test_embedded_protocol_takes_the_suites_own_numbers():
    from worldrl_envs.tasks import get_task

    found = embedded_protocol(["PickRedCube"], episodes_per_task=2, seed=0, chunk_length=4)
    assert found.horizon == {"PickRedCube": get_task("PickRedCube").horizon}
    assert (found.control_hz, found.replan) == (20.0, 4)
    assert found.packages["mujoco"].count(".") == 2


def test_there_are_fifty_stored_states():
    stored = {"tasks": ["PickRedCube"], "seed": 0, "chunk_length": 4, "initial_states": "stored", "first_index": 30}
    assert len(embedded_protocol(**stored, episodes_per_task=20).specs()) == 20
    with pytest.raises(SettingError, match=r"got 30 \+ 21"):
        embedded_protocol(**stored, episodes_per_task=21)
