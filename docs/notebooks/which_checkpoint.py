# %% [markdown]
# # Which of my checkpoints is best?
#
# `worldrl rank` compares policies by their imagined success from recorded start frames, without a simulator. Run
# [Improve a policy](improve_a_policy.py) first: its checkpoints and its world model are compared here.

# %%
import json
from pathlib import Path

from worldrl.cli import main

STAGES = Path("runs/notebook-train/stages")

# %%
policies = [STAGES / "02-policy" / "policy", STAGES / "round-1-4-improve" / "policy"]
words = [
    f"policies=[{','.join(map(str, policies))}]",
    f"world_model={STAGES / 'round-1-2-world-model' / 'world_model'}",
    f"data=[{STAGES / '01-demonstrations' / 'dataset'}]",
]
assert main(["rank", "preset=tiny", *words, "run_dir=runs/notebook-rank"]) == 0

# %% [markdown]
# `preset=tiny` sets `gates=warn`. This world model has learned from all of these recordings, so nothing is left to test
# it on. Without the preset `rank` refuses, and says why: give `held_out=[FOLDER]` with recordings that came later.

# %%
metrics = json.loads(Path("runs/notebook-rank/result.json").read_text())["metrics"]
for one in metrics["policies"]:
    print(one["policy"], "imagined success", one["imagined"]["rate"], "best with probability", one["probability_best"])
print("not to be trusted, because:", metrics["not_trusted"])
