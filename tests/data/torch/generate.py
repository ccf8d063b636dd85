#!/usr/bin/python3
"""Write NAME.json for each case: a run of PyTorch that worker/model has to repeat, without a file of weights or data.

Needs python3-torch (made with Debian 12's, 1.13.1, one thread, float32); the models are experiments/peers/torch_models.py.
Usage: generate.py [NAME...], in this folder.

Everything drawn comes from mt19937 as torch draws it on the CPU (common/base/random.h, RANDOM_FMA), so both sides make it
from the seed:
  parameters  torch.manual_seed(SEED), then uniform_(from, to) of each, in the order of `parameters`
  buffers     as made: means 0, variances 1, counts 0
  images      torch.manual_seed(SEED + 1), coarse = uniform_(-1, 1) of (N, C, (H + 3) / 4, (W + 3) / 4) with N = batches *
              batch, fine = uniform_(-0.25, 0.25) of (N, C, H, W), then randint(classes) of (N): one word modulo the
              classes each; D features are (1, 1, D); x[n, c, h, w] = fine[n, c, h, w] + coarse[n, c, h / 4, w / 4].  (Of noise alone a deep
              network sees samples that are all alike, which batch norm blows up, and rounding with it.)
  tokens      torch.manual_seed(SEED + 1), words w[i] by randint(2**31) of 1 + batches * batch * T: w % 2**31;
              id[0] = w[0] % V, id[i] = (5 * id[i - 1] + w[i] % 4) % V; sample k is x = id[k T ...], y = id[k T + 1 ...]
Step s trains on the samples [batch * (s % batches), ...), all in one batch; no shuffling.

  losses          of each step, before its update, in training mode
  parameters      per tensor: name, shape, from and to of its init, init_hash (below), first_gradient (the L2 norm of the first
                  step's), moved (the L2 norm of last - first), norm (of the last)
                  seeded_norm (the L2 norm as the model makes it itself after torch.manual_seed(SEED)) and, where no normal
                  values are drawn, seeded_hash
  buffers         per tensor: name, shape, norm (of the last)
  evaluate_loss, evaluate_correct   of the first batch after the last step, in evaluation mode
  data_hash       of x (images) or x's ids as float32 (tokens); labels_hash of y as int32
A hash is the sum of word[i] * (i + 1) modulo 2**64 over the 32-bit words, as decimal text.
  noise           what rounding alone does: the largest relative differences between this run and one in float64
"""
import json
import math
import os
import sys

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../../experiments/peers"))
import torch_models  # noqa: E402

SGD = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}
ADAMW = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01}
# name: model, batch, batches, steps, optimizer
CASES = {
    "mlp_bn": ("mlp-bn:13-24-24-5", 16, 5, 50, SGD),
    "lenet": ("lenet", 32, 4, 50, dict(SGD, lr=4e-3)),
    "cnn": ("cnn:3x13x11-conv8-bn-pool-conv16k5s2p1-pool-fc24-bn-fc7", 9, 5, 50, SGD),
    "resnet18": ("resnet18:3x12x12,10", 4, 5, 50, dict(SGD, lr=1.5e-4)),
    "resnet18_stem": ("resnet18:3x64x64,10", 4, 3, 6, dict(SGD, lr=3e-4)),
    "resnet50": ("resnet50:3x12x12,10", 4, 3, 6, dict(SGD, lr=1e-4)),
    "vgg11": ("vgg11:3x32x32,10", 4, 3, 6, dict(SGD, lr=5e-4)),
    "gpt": ("gpt:2,4,64,32,65", 8, 6, 50, ADAMW),
}
SEED = 7
GRADIENT_FLOOR, MOVED_FLOOR = 1e-3, 1e-2  # of the largest tensor's; as the test has them
NOISE_MAX = 3e-4  # moved: ten times that, for small updates of large values


def words_hash(tensor):
    words = np.ascontiguousarray(tensor.detach().numpy()).view(np.uint32).ravel().astype(np.uint64)
    with np.errstate(over="ignore"):
        return str((words * np.arange(1, len(words) + 1, dtype=np.uint64)).sum(dtype=np.uint64))


def bounds(name, parameter, kind):
    """Of the draw.  Biases and norms are not what a trainer would begin with: a zero or a one hides mistakes.  The last
    norm of a residual branch is small, as it is in practice: with ones a step of a deep network multiplies rounding."""
    last = {"resnet18": ".bn2.weight", "resnet50": ".bn3.weight"}.get(kind)
    if last and name.endswith(last):
        return (0.1, 0.3)
    if parameter.dim() == 1:
        return (0.9, 1.1) if name.endswith("weight") else (-0.1, 0.1)
    if kind == "gpt":
        return (-0.08, 0.08)
    bound = math.sqrt(6 / parameter[0].numel())
    return (-bound, bound)


def seeded_facts(parameter, kind):
    facts = {"seeded_norm": parameter.detach().double().norm().item()}
    if kind in ("cnn", "lenet", "mlp-bn"):
        facts["seeded_hash"] = words_hash(parameter)
    return facts


def draw_parameters(model, kind):
    drawn = []
    torch.manual_seed(SEED)
    for name, parameter in model.named_parameters():
        low, high = bounds(name, parameter, kind)
        with torch.no_grad():
            parameter.uniform_(low, high)
        drawn.append({"name": name, "shape": list(parameter.shape), "from": low, "to": high,
                      "init_hash": words_hash(parameter)})
    return drawn


def image_shape(made):
    """(C, H, W); D features are (1, 1, D)."""
    return (1,) * (3 - len(made.input_shape)) + tuple(made.input_shape)


def draw_data(made, samples):
    torch.manual_seed(SEED + 1)
    if not made.vocabulary:
        channels, height, width = image_shape(made)
        coarse = torch.empty(samples, channels, (height + 3) // 4, (width + 3) // 4).uniform_(-1, 1)
        fine = torch.empty(samples, channels, height, width).uniform_(-0.25, 0.25)
        x = fine + coarse.repeat_interleave(4, 2).repeat_interleave(4, 3)[:, :, :height, :width]
        return x.reshape((samples,) + made.input_shape), torch.randint(0, made.classes, (samples,))
    positions = made.positions
    words = torch.randint(0, 2**31, (1 + samples * positions,)).tolist()
    ids = [words[0] % made.vocabulary]
    for word in words[1:]:
        ids.append((5 * ids[-1] + word % 4) % made.vocabulary)
    ids = torch.tensor(ids)
    return ids[:-1].view(samples, positions), ids[1:].view(samples, positions)


def make_optimizer(model, settings):
    settings = dict(settings)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[settings.pop("optimizer")]
    return kind(model.parameters(), **settings)


def train(case, kind, dtype):
    """The record of a run, in float32 or, from the same draws, in float64."""
    model_spec, batch, batches, steps, settings = case
    torch.manual_seed(SEED)
    made = torch_models.make_model(model_spec)
    model = made.model
    seeded = [seeded_facts(parameter, kind) for parameter in model.parameters()]
    parameters = draw_parameters(model, kind)
    for entry, facts in zip(parameters, seeded):
        entry.update(facts)
    x, y = draw_data(made, batch * batches)
    record = {"model": model_spec, "seed": SEED, "batch": batch, "batches": batches, "steps": steps, "classes": made.classes,
              "positions": made.positions, "features": x[0].numel(), "shape": image_shape(made), **settings,
              "data_hash": words_hash(x.float()), "labels_hash": words_hash(y.int()), "losses": [],
              "parameters": parameters, "buffers": []}
    model.to(dtype)
    if not made.vocabulary:
        x = x.to(dtype)
    first = [p.detach().clone() for p in model.parameters()]
    optimizer = make_optimizer(model, settings)
    for step in range(steps):
        at = batch * (step % batches)
        optimizer.zero_grad()
        loss = torch_models.loss_of(model(x[at:at + batch]), y[at:at + batch])
        loss.backward()
        if step == 0:
            for entry, parameter in zip(parameters, model.parameters()):
                entry["first_gradient"] = parameter.grad.double().norm().item()
        optimizer.step()
        record["losses"].append(loss.item())
    for entry, parameter, before in zip(parameters, model.parameters(), first):
        entry["moved"] = (parameter.detach().double() - before.double()).norm().item()
        entry["norm"] = parameter.detach().double().norm().item()
    for name, buffer in model.named_buffers():
        record["buffers"].append({"name": name, "shape": list(buffer.shape), "norm": buffer.double().norm().item()})
    model.eval()
    with torch.no_grad():
        logits = model(x[:batch])
        record["evaluate_loss"] = torch_models.loss_of(logits, y[:batch]).item()
        record["evaluate_correct"] = int((logits.argmax(-1) == y[:batch]).sum())
    return record


def noise(record, exact):
    """Tensors whose gradient is 0 but for rounding (a bias in front of a batch norm) count by a part of the largest."""
    def worst(pick, part):
        pairs = [(pick(a), pick(b)) for a, b in zip(record["parameters"], exact["parameters"])]
        floor = part * max(b for _, b in pairs)
        return max(abs(a - b) / max(b, floor) for a, b in pairs)

    losses = list(zip(record["losses"] + [record["evaluate_loss"]], exact["losses"] + [exact["evaluate_loss"]]))
    return {"loss": max(abs(a - b) / b for a, b in losses), "norm": worst(lambda p: p["norm"], 0),
            "first_gradient": worst(lambda p: p["first_gradient"], GRADIENT_FLOOR),
            "moved": worst(lambda p: p["moved"], MOVED_FLOOR)}


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        kind = CASES[name][0].partition(":")[0]
        record = train(CASES[name], kind, torch.float32)
        record["torch"] = torch.__version__
        record["noise"] = noise(record, train(CASES[name], kind, torch.float64))
        lines = [json.dumps(key) + ": " + (
            "[\n  " + ",\n  ".join(json.dumps(v) for v in value) + "\n ]" if key in ("parameters", "buffers") and value
            else json.dumps(value)) for key, value in record.items()]
        with open(os.path.join(HERE, name + ".json"), "w") as f:
            f.write("{\n " + ",\n ".join(lines) + "\n}\n")
        print(name, ["%.4f" % l for l in record["losses"][::max(1, len(record["losses"]) // 10)]], "last %.4f" % record["losses"][-1],
              "evaluate %.4f %d" % (record["evaluate_loss"], record["evaluate_correct"]), {k: "%.1e" % v for k, v in record["noise"].items()}, flush=True)
        if any(value > NOISE_MAX * (10 if key == "moved" else 1) for key, value in record["noise"].items()):
            sys.exit(f"{name}: too sensitive to rounding to be a test")


if __name__ == "__main__":
    main()
