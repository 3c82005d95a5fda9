import pytest

from worldrl.evaluation.world_model.throughput import imagined_frames_per_s


def test_frames_of_all_rows_over_the_median_time_without_the_first_chunk(push_simulator, make_record):
    # Per chunk the clock is read before, between imagining and decoding, and after: 2 s and 1 s, the first one slower.
    readings = iter([0, 50, 90, 100, 102, 103, 200, 202, 203, 300, 309, 320])
    found = imagined_frames_per_s(push_simulator(), make_record(), 5, chunks=3, clock=lambda: float(next(readings)))
    assert found == {"latent": pytest.approx(5 * 2 / 2), "decoded": pytest.approx(5 * 2 / 3)}
    assert next(readings, None) is None


def test_a_real_model_is_timed(world_model, make_record):
    found = imagined_frames_per_s(world_model, make_record(), 2, chunks=1)
    assert found["latent"] > found["decoded"] > 0


def test_a_wan_model_has_decoded_when_it_has_imagined(make_wan, wan_record, monkeypatch):
    pytest.importorskip("diffusers")
    model, asked = make_wan(), []
    decode = model.decode
    monkeypatch.setattr(model, "decode", lambda *given: asked.append(1) or decode(*given))
    readings = iter([0, 1, 1, 10, 12, 12])
    found = imagined_frames_per_s(model, wan_record(), 3, chunks=1, clock=lambda: float(next(readings)))
    assert found == {"latent": pytest.approx(3 * 4 / 2), "decoded": pytest.approx(3 * 4 / 2)}
    assert len(asked) == 2  # once a chunk
