"""Print the results table of docs/measurements.md from ``result.json`` files of train-vla runs: one row per file.

python scripts/results_table.py docs/results/train-vla*.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from worldrl.core.renames import current_results
from worldrl.evaluation.report.tables import markdown

COSTS = ("minutes", "peak MB")
HEADINGS = ("file", "seed", "before", "after", "gain (95 %)", "episodes", "confirmed imagined success", *COSTS)


def percent(rate: dict[str, Any] | None) -> str:
    """Write a Wilson rate as "45 % [38, 52]"."""
    if rate is None:
        return "not measured"
    return f"{100 * rate['rate']:.0f} % [{100 * rate['lo']:.0f}, {100 * rate['hi']:.0f}]"


def row(path: Path) -> list[str]:
    """Make one row."""
    result = json.loads(path.read_text())
    if result["command"] != "train-vla":
        raise SystemExit(f"{path}: is a result of {result['command']}; give those of train-vla")
    metrics = current_results(result["metrics"])
    pair = metrics["comparison"]["paired"]
    gain = f"{100 * pair['diff']:+.1f} [{100 * pair['lo']:+.1f}, {100 * pair['hi']:+.1f}]"
    return [
        f"`{path}`",
        str(result["seed"]),
        percent(metrics["before"]["success"]),
        percent(metrics["after"]["success"]),
        gain,
        str(pair["n"]),
        percent(metrics["verify"]["precision"]),
        f"{result['wall_s'] / 60:.0f}",
        f"{result['peak_rss_mb']:.0f}",
    ]


def main(paths: list[str]) -> int:
    """Print the table."""
    if not paths:
        print(__doc__)
        return 2
    rows = [row(Path(path)) for path in paths]
    print(markdown(HEADINGS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
