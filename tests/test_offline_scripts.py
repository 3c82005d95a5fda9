"""Units under test: the scripts that hold offline algorithms against each other and against d3rlpy's."""

import math
import sys
import types

import pytest
import torch

from worldrl.cli import compose_command, find_command
from worldrl.jobs.offline.benchmark_offline import grid
from worldrl.methods.offline.agent import Facts

GIVEN = {"out": "o", "seed": "3", "seeds": "2", "updates": "40", "rows": "400", "episodes": "2", "workers": "1"}


@pytest.fixture
def peers(script):
    return script("offline_beside_d3rlpy")


def runs_of(table, chosen):
    command, *words = table.words(chosen, GIVEN)
    return grid(compose_command(find_command(command), words))


def test_any_choice_of_algorithms_is_a_grid(script):
    table = script("offline_table")
    for name in table.TABLE:
        runs = runs_of(table, [name])
        assert [(run.given["algorithm"], run.given["seed"]) for run in runs] == [(name, "3"), (name, "4")]
        steps = runs[0].settings({"run_dir": "unused"}).training.steps
        assert steps == (10 if name == "neubay" else 40)


def test_a_common_setting_reaches_every_algorithm_that_has_it(script):
    table = script("offline_table")
    agents = {
        run.given["algorithm"]: run.settings({"run_dir": "unused"}).agent for run in runs_of(table, list(table.TABLE))
    }
    for name, agent in agents.items():
        assert agent.hidden == (64, 64), name
    assert agents["iql"].learning_rate == agents["ravl"].critic_rate == agents["neubay"].head_rate == 1e-3
    assert agents["iql"].temperature == 0.5


# --- beside d3rlpy --------------------------------------------------------------------------------------------------


def test_both_play_the_same_episodes_and_a_still_pendulum_loses_what_it_must(peers):
    still = peers.tested(lambda obs: torch.zeros(len(obs), 1), seed=1)
    assert still == peers.tested(lambda obs: torch.zeros(len(obs), 1), seed=1)
    assert -1700 < still < -900  # Gymnasium's own, hanging or swinging without torque
    assert still != peers.tested(lambda obs: torch.zeros(len(obs), 1), seed=2)


def test_rows_are_in_the_environments_rewards(peers):
    rows, returns = peers.recorded(5)
    assert len(rows) == 10_000
    assert len(returns) == 50
    angle, speed, torque = torch.atan2(rows.obs[0, 1], rows.obs[0, 0]), rows.obs[0, 2], 2 * rows.action[0, 0]
    assert rows.reward[0].item() == pytest.approx(-(angle**2 + 0.1 * speed**2 + 0.001 * torque**2).item(), rel=1e-4)
    assert returns[0].item() == pytest.approx(rows.reward[:200].sum().item(), rel=1e-4)


def test_differences_are_paired_by_seed_and_the_factor_is_theirs_over_ours(peers):
    pairs = [(peers.Run(-100, 1.0), peers.Run(-130, 3.0)), (peers.Run(-200, 1.0), peers.Run(-210, 5.0))]
    found = peers.beside(pairs, [-400.0, -500.0])
    assert found["difference"]["mean"] == 20
    assert found["difference"]["n"] == 2
    assert found["difference"]["sd"] == pytest.approx(math.sqrt(200))
    assert found["update_ms"] == [1.0, 4.0]
    assert found["factor"] == 4
    assert peers.beside(pairs[:1], [-400.0])["difference"] is None


def test_each_of_ours_learns_at_the_common_sizes(peers):
    rows, returns = peers.recorded(5)
    facts = Facts.of(rows, returns.numpy(), updates=2)
    for name, (_, config) in peers.OURS.items():
        assert config.hidden == peers.HIDDEN
        run = peers.train_ours(name, rows, facts, seed=0, updates=2)
        assert -2500 < run.ret < 0
        assert run.update_ms > 0


def test_it_says_what_brings_the_peer_and_refuses_unknown_words(peers, capsys, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert peers.main([]) == 2
    assert "There is no d3rlpy" in capsys.readouterr().out
    assert peers.main(["algorithms=bc,ppo"]) == 2
    assert "Unknown: ['ppo']" in capsys.readouterr().out
    assert peers.main(["nonsense"]) == 2
    assert "Unknown: ['nonsense']" in capsys.readouterr().out


def test_peers_are_given_our_sizes(peers, monkeypatch):
    """What each of d3rlpy's configurations is asked for, by a double that keeps its words."""
    asked = {}

    def keeps(name):
        return lambda **words: asked.setdefault(name, words)

    algos = types.SimpleNamespace(
        **{n: keeps(n) for n in ("BCConfig", "TD3PlusBCConfig", "IQLConfig", "CQLConfig", "SACConfig")}
    )
    models = types.SimpleNamespace(encoders=types.SimpleNamespace(VectorEncoderFactory=tuple))
    preprocessing = types.SimpleNamespace(StandardObservationScaler=lambda: "standard")
    double = types.SimpleNamespace(algos=algos, models=models, preprocessing=preprocessing)
    monkeypatch.setitem(sys.modules, "d3rlpy", double)
    for name in peers.OURS:
        peers.peer_config(name)
    for name, words in asked.items():
        assert words["batch_size"] == peers.BATCH, name
        assert {tuple(v) for k, v in words.items() if k.endswith("encoder_factory")} == {peers.HIDDEN}, name
        rates = {v for k, v in words.items() if k.endswith("learning_rate") and k != "alpha_learning_rate"}
        assert rates == {peers.RATE}, name
        if name != "BCConfig":
            assert (words["gamma"], words["tau"]) == (peers.DISCOUNT, peers.POLYAK)
    assert {name for name, words in asked.items() if "observation_scaler" in words} == {"BCConfig", "TD3PlusBCConfig"}
    assert asked["IQLConfig"]["weight_temp"] == peers.OURS["iql"][1].temperature
