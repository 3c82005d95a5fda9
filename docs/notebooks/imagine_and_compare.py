# %% [markdown]
# # Imagine and compare
#
# A world model gets the first frame of a recorded episode and its actions, and imagines the rest. How long does it stay
# close to MuJoCo? This notebook takes the bundled weights, and about a minute on two cores.

# %%
import json
from pathlib import Path

import numpy as np

from worldrl.cli import main
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.paths import weights_dir
from worldrl.recipes.world_model.replayed_films import replayed
from worldrl.world_models.video.model import VideoWorldModel

# %% [markdown]
# `worldrl imagine` records episodes in MuJoCo, imagines them, and writes films and a page. In a notebook the command
# line is a function.

# %%
assert main(["imagine", "episodes=4", "steps=16", "run_dir=runs/notebook-imagine"]) == 0
metrics = json.loads(Path("runs/notebook-imagine/result.json").read_text())["metrics"]
print({name: value for name, value in metrics.items() if name.startswith("closed_loop")})

# %% [markdown]
# The same in Python: a dataset, a world model, and films as arrays `[episodes, frames, rows, columns, colours]`.

# %%
dataset = EpisodeDataset.open("runs/notebook-imagine/stages/01-episodes/dataset")
model = VideoWorldModel.from_pretrained(str(weights_dir() / "world_model"))
films = replayed(model, list(dataset), fps=dataset.fps, seed=0, steps=16)
np.save("runs/notebook-real.npy", films.result.real)
np.save("runs/notebook-generated.npy", films.result.imagined)
print(films.titles, films.result.imagined.shape)

# %% [markdown]
# `worldrl judge` needs nothing but such films, so it measures any video model, and says whether it is closer to
# reality than an image that stands still.

# %%
films_of = [f"{name}=runs/notebook-{name}.npy" for name in ("real", "generated")]
assert main(["judge", *films_of, "threads=1", "run_dir=runs/notebook-judge"]) == 0
print(Path("runs/notebook-judge/README.md").read_text())
