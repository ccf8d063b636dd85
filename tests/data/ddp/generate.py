#!/usr/bin/python3
"""Write powersgd.json and batch_norm.json: what PyTorch's PowerSGD hook and BatchNorm1d give.

Needs python3-torch (made with Debian 12's, 1.13.1, one thread, float32).  Usage: generate.py, in this folder.

  powersgd    per case: rank, shapes (model order), q (the hook's first random numbers, bucket order), grads
              [step][rank] of the whole bucket and after [step], what every rank has then; 2 ranks, gloo,
              error feedback, warm start, min_compression_rate 1, epsilon 1e-8.  The bucket holds the last
              parameter first, as the hook receives it.
  batch_norm  a Sequential's state dict before and after some steps of SGD, the batches, the losses, the
              first step's gradients, and the loss in evaluation mode at the end
"""
import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

CASES = [(1, [(9, 7), (9,), (6, 11)]), (2, [(9, 7), (9,), (6, 11), (8,)]), (2, [(12, 15)])]
WORLD, STEPS, BN_STEPS, BATCH = 2, 4, 12, 7


def numbers(tensor):
    """Nine digits are all of a float32."""
    return [float(f"{v:.9g}") for v in tensor.detach().flatten().tolist()]


class Bucket:
    """What the hook reads of a GradBucket."""

    def __init__(self, flat, shapes):
        self.flat, self.shapes = flat, shapes

    def buffer(self):
        return self.flat

    def gradients(self):
        at, out = 0, []
        for shape in self.shapes:
            n = torch.Size(shape).numel()
            out.append(self.flat[at : at + n].view(shape))
            at += n
        return out

    def index(self):
        return 0

    def is_last(self):
        return True


def one_rank(rank, case, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    approximation, shapes = CASES[case]
    shapes = shapes[::-1]
    drawn, real = [], torch.randn

    def randn(*size, **settings):
        q = real(*size, **settings)
        drawn.extend(numbers(q))
        return q

    generator = torch.Generator().manual_seed(100 * case + rank)
    state = powersgd.PowerSGDState(
        None, matrix_approximation_rank=approximation, start_powerSGD_iter=2, min_compression_rate=1,
        orthogonalization_epsilon=1e-8)
    state.iter = 2
    count = sum(torch.Size(s).numel() for s in shapes)
    grads, after = [], []
    for _ in range(STEPS):
        flat = real(count, generator=generator)
        grads.append(numbers(flat))
        torch.randn = randn
        result = powersgd.powerSGD_hook(state, Bucket(flat, shapes)).wait()
        torch.randn = real
        after.append(numbers(result[0] if isinstance(result, list) else result))
    with open(f"{folder}/{rank}.json", "w") as f:
        json.dump({"q": drawn, "grads": grads, "after": after}, f)
    dist.barrier()
    dist.destroy_process_group()


def make_powersgd():
    cases = []
    for case, (approximation, shapes) in enumerate(CASES):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(one_rank, args=(case, folder), nprocs=WORLD)
            ranks = [json.load(open(f"{folder}/{r}.json")) for r in range(WORLD)]
        assert ranks[0]["after"] == ranks[1]["after"] and ranks[0]["q"] == ranks[1]["q"]
        cases.append({
            "rank": approximation,
            "shapes": shapes,
            "q": ranks[0]["q"],
            "grads": [[r["grads"][s] for r in ranks] for s in range(STEPS)],
            "after": ranks[0]["after"],
        })
    return {"torch": torch.__version__, "cases": cases}


def named(tensors):
    return {name: numbers(t) for name, t in tensors}


def make_batch_norm():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    out = {"torch": torch.__version__, "spec": "mlp-bn:6-8-5-3", "lr": 0.1, "momentum": 0.9, "batch": BATCH}
    out["before"] = named(model.state_dict().items())
    x = torch.randn(BN_STEPS, BATCH, 6) * 3 + 1
    y = torch.randint(0, 3, (BN_STEPS, BATCH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(BN_STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[step]), y[step])
        loss.backward()
        if step == 0:
            out["gradients"] = named((n, p.grad) for n, p in model.named_parameters())
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    out["x"], out["y"], out["losses"] = numbers(x), y.flatten().tolist(), losses
    out["after"] = named(model.state_dict().items())
    out["evaluation"] = nn.functional.cross_entropy(model(x[0]), y[0]).item()
    return out


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    for name, made in (("powersgd", make_powersgd()), ("batch_norm", make_batch_norm())):
        with open(f"{name}.json", "w") as f:
            json.dump(made, f, separators=(",", ":"))
            f.write("\n")


if __name__ == "__main__":
    main()
