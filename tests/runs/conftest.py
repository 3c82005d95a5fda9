"""A folder of runs as commands leave them."""

import json

import pytest

from worldrl.core.storage.run import RunDirectory


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "all"


@pytest.fixture
def make_run(folder):
    """Make a run and finish it with these metrics; without metrics it is stopped."""

    def make(name, *, command="evaluate", metrics=None, typed="", **settings):
        typed = typed or f"worldrl {command} " + " ".join(f"{key}={value}" for key, value in settings.items())
        with RunDirectory.open(folder / name, command=command, config=settings, resume_command=typed) as run:
            if metrics is not None:
                run.write_result(metrics, seed=0, device="cpu")
        return folder / name

    return make


@pytest.fixture
def write_metrics():
    def write(run, rows, tail=""):
        lines = [json.dumps({"series": "cloning", "step": k, "values": row}) for k, row in enumerate(rows)]
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n" + tail)

    return write
