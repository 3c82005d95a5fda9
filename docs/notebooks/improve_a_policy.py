# %% [markdown]
# # Improve a policy in imagination
#
# `worldrl train-vla` clones demonstrations, learns a world model, improves the policy in imagined rollouts, and checks
# the gain in MuJoCo. `preset=tiny` runs every stage in about a minute and learns nothing: leave it out for the real job,
# about 15 minutes on two cores.

# %%
import json
from pathlib import Path

from worldrl.cli import main
from worldrl.policies.token.policy import TokenPolicy

RUN = Path("runs/notebook-train")

# %%
assert main(["train-vla", "preset=tiny", f"run_dir={RUN}"]) == 0

# %% [markdown]
# The result holds success before and after on the same initial states, and their paired difference with its interval.
# With two episodes a task the interval says: nothing is shown.

# %%
metrics = json.loads((RUN / "result.json").read_text())["metrics"]
for side in ("before", "after"):
    rate = metrics[side]["success"]
    print(f"{side}: {rate['k']} of {rate['n']}, 95 % interval {rate['lo']:.2f} to {rate['hi']:.2f}")
print("difference:", metrics["comparison"]["paired"])

# %% [markdown]
# Each stage keeps its weights; the same command resumes a run that was stopped.

# %%
for stage in sorted((RUN / "stages").iterdir()):
    print(stage.name)
policy = TokenPolicy.from_pretrained(str(RUN / "stages" / "round-1-4-improve" / "policy"))
print(policy.config.chunk_length, "actions a chunk")
