"""What tests of several algorithms share."""

import json
import os
from pathlib import Path

import pytest
import torch

from worldrl.policies.samples import Samples


@pytest.fixture
def no_demonstrations(tiny_policy):
    """Samples that ask for nothing that succeeds."""
    length = tiny_policy().chunk_length
    image = torch.zeros(4, 16, 16, 3, dtype=torch.uint8)
    frames = image, torch.zeros(4, 7), torch.zeros(4, length, 7)
    return Samples(*frames, ("pick up",) * 4, ("PickRedCube",) * 4, first=torch.arange(4))


RECORD = "WORLDRL_RECORD_GOLDEN"
"""Set to 1, the golden tests write their files instead of comparing."""


@pytest.fixture
def golden(request):
    """Compare numbers of a tiny training with those kept in ``golden/<test file>.json``, recorded with one thread."""
    file = Path(request.path).parent / "golden" / f"{Path(request.path).stem}.json"

    def check(case, found, **tolerance):
        kept = json.loads(file.read_text()) if file.exists() else {}
        if os.environ.get(RECORD):
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps({**kept, case: found}, indent=1, sort_keys=True) + "\n")
            return
        for name, value in kept[case].items():
            assert found[name] == pytest.approx(value, **{"rel": 1e-4, "abs": 1e-6, **tolerance}, nan_ok=True), name

    return check


@pytest.fixture
def fingerprint():
    """Tell weights by a few sums, in float64."""

    def tell(module):
        flat = torch.cat([p.detach().double().flatten() for p in module.parameters()])
        return [float(flat.sum()), float(flat.abs().sum()), *flat[:: max(1, len(flat) // 5)].tolist()]

    return tell
