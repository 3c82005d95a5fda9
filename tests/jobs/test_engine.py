"""Unit under test: ``engine`` of the commands whose stages run side by side."""

import pytest

from worldrl.core.errors import SettingError
from worldrl.jobs.offline.benchmark_offline import BenchmarkOfflineSettings
from worldrl.jobs.policy.rank import RankSettings
from worldrl.reproductions.reproduce import ReproduceSettings

KINDS = (BenchmarkOfflineSettings, RankSettings, ReproduceSettings)


@pytest.mark.parametrize("kind", KINDS)
def test_ray_needs_processes_and_an_engine_is_known(kind):
    kind(engine="ray", workers=1)
    with pytest.raises(
        SettingError, match=r"^workers: 0 works in this process, engine=ray on the cluster; give workers=1"
    ):
        kind(engine="ray", workers=0)
    with pytest.raises(SettingError, match=r"^engine: unknown value 'rai'; did you mean 'ray'"):
        kind(engine="rai", workers=1)
