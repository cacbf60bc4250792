"""The mechanism in a minute: a plain decoder and LIMe learn to reverse a string, side by side.

Both see the same batches from the same initial weights; what differs is the routers. The table says
how each did on strings it has not seen, whatever that is; one seed of a toy task proves nothing.
"""

import argparse
import re
import sys
import time

import torch

import layermem

LETTERS = "abcdefghijklmnop"
SEPARATOR, PAD = len(LETTERS), len(LETTERS) + 1
LENGTH = 10
SIZES = {
    "vocab_size": len(LETTERS) + 2,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 2 * LENGTH + 1,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": None,
}


def strings(count, generator):
    """Return token ids [count, 2 * LENGTH + 1]: a string, a separator, the string reversed."""
    string = torch.randint(len(LETTERS), (count, LENGTH), generator=generator)
    separator = torch.full((count, 1), SEPARATOR)
    return torch.cat([string, separator, string.flip(1)], dim=1)


def parameter_groups(model, lr):
    """Split the parameters by what the variant says of them; the rest learn at ``lr``."""
    usual = {"lr": lr, "weight_decay": 0.1}
    groups, patterns = [{"params": [], **usual}], []
    for override in model.variant.overrides:
        asked = {"lr": override.lr, "weight_decay": override.weight_decay}
        own = {name: value for name, value in asked.items() if value is not None}
        groups.append({"params": [], **usual, **own})
        patterns.append(re.compile(override.pattern))
    for name, parameter in model.named_parameters():
        found = next((i for i, p in enumerate(patterns, 1) if p.search(name)), 0)
        groups[found]["params"].append(parameter)
    return groups


def train(name, steps, seed):
    """Train one variant; return the model, its last losses' mean and the seconds it took."""
    torch.manual_seed(seed)
    model = layermem.build(name, **SIZES)
    optimiser = torch.optim.AdamW(parameter_groups(model, 3e-3), betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, [group["lr"] for group in optimiser.param_groups], total_steps=steps
    )
    batches, losses, start = torch.Generator().manual_seed(seed), [], time.perf_counter()
    for step in range(steps):
        ids = strings(64, batches)
        labels = ids.clone()
        labels[:, : LENGTH + 1] = -100
        loss = model(ids, labels=labels, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        progress(name, step + 1, steps, losses[-1])
    recent = losses[-20:]
    return model.eval(), sum(recent) / len(recent), time.perf_counter() - start


def progress(name, step, steps, loss):
    """Show one line that moves in a terminal, and ten lines in a pipe."""
    live, last = sys.stdout.isatty(), step == steps
    if live or last or step % max(1, steps // 10) == 0:
        line = f"  {name:5s} step {step:4d}/{steps}  loss {loss:.3f}"
        print(line, end="\r" if live and not last else "\n", flush=True)


def accuracy(model, prompts, answers):
    """Return the share of strings reversed without a mistake, generated through the cache."""
    generated = model.generate(
        prompts, max_new_tokens=LENGTH, do_sample=False, attention_mask=torch.ones_like(prompts)
    )
    return (generated[:, LENGTH + 1 :] == answers).all(1).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="training steps of each model")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches")
    parser.add_argument("--test", type=int, default=1000, help="strings in the test")
    args = parser.parse_args()

    unseen = strings(args.test, torch.Generator().manual_seed(args.seed + 1_000_000))
    prompts, answers = unseen[:, : LENGTH + 1], unseen[:, LENGTH + 1 :]
    print(f"reversing {LENGTH} letters, {args.steps} steps, seed {args.seed}")
    rows, models = [], {}
    for name in ("plain", "lime"):
        models[name], loss, seconds = train(name, args.steps, args.seed)
        count = sum(p.numel() for p in models[name].parameters())
        right = accuracy(models[name], prompts, answers)
        margin = 1.96 * (right * (1 - right) / args.test) ** 0.5
        rows.append((name, count, loss, right, margin, seconds))

    print("\n  model   parameters   last loss   strings right (95% interval)   seconds")
    for name, count, loss, right, margin, seconds in rows:
        print(
            f"  {name:5s}   {count:10,d}   {loss:9.3f}   {right:13.1%} +- {margin:.1%}"
            f"          {seconds:7.1f}"
        )

    print("\n  what LIMe's routers learnt, layer by layer:")
    for row in models["lime"].router_summary():
        print(f"    {row}")

    prompt = prompts[:1]
    text = "".join(LETTERS[i] for i in prompt[0, :-1])
    print(f"\n  {text} | reversed through the cache:")
    for name, model in models.items():
        tokens = model.generate(
            prompt, max_new_tokens=LENGTH, do_sample=False, attention_mask=torch.ones_like(prompt)
        )
        letters = "".join((LETTERS + "|_")[i] for i in tokens[0, LENGTH + 1 :])
        print(f"    {name:5s} {letters}")


if __name__ == "__main__":
    main()
