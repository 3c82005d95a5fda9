"""Numbers on the report page of ``worldrl train-vla``."""

from worldrl.jobs.vla.report import staleness_numbers


def test_speed_and_mismatch_of_rounds_that_imagined_ahead():
    lags = {
        "0": {"batches": 1, "ratio": 1.0, "kl": 0.0},
        "2": {"batches": 6, "ratio": 1.0126, "kl": 0.034},
        "1": {"batches": 1, "ratio": None, "kl": None},
    }
    pace = {"staleness": 2, "lags": lags, "imagined_frames": 300, "wall_s": 8.0, "waited_wall_s": 2.0}
    (number,) = staleness_numbers([{"improve": {"history": []}}, {"improve": {"staleness": pace}}])
    assert (number.name, number.value, number.unit) == ("Imagined frames per second, round 2", 37.5, "/s")
    assert number.imagined
    assert number.note == (
        "the learner waited 25 % of the time; lag 0: 1 batches, mean ratio 1.000, KL 0.000 per decision; "
        "lag 2: 6 batches, mean ratio 1.013, KL 0.034 per decision"
    )
