"""Both dynamics backends, for the tests that hold of either."""

import pytest

from worldrl.world_models.video.config import DynamicsKind


@pytest.fixture(params=[kind.value for kind in DynamicsKind])
def kind(request) -> str:
    """Name of a backend."""
    return request.param
