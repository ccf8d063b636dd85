#!/usr/bin/env python3
"""Time the training step of the same job in PyTorch; `sparring bench train --peer python3` runs it.

Rank, world size and address come from the environment (torchrun, or sparring launch).  Rank 0 writes one
JSON object to --out: the median step time in milliseconds over all but the first max(5, 10 %) steps.
Input costs nothing here: batches are views of tensors made beforehand.
"""
import argparse
import json
import os
import statistics
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="mlp:784-1024-1024-10 or linear:10-5-2")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--ddp", action="store_true", help="synchronise with DistributedDataParallel over gloo")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


a = parse_arguments()
# torch.set_num_threads does not reach every BLAS: OpenBLAS with its own threads reads this when it is loaded.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(a.threads)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def make_model(spec):
    kind, sizes = spec.split(":")
    sizes = [int(size) for size in sizes.split("-")]
    layers = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if kind == "mlp" and i + 2 < len(sizes):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers), sizes[0], sizes[-1]


def main():
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model, features, classes = make_model(a.model)
    if world > 1:
        dist.init_process_group("gloo")
    trained = DistributedDataParallel(model) if a.ddp and world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=a.lr)
    x = torch.randn(16, a.batch_size, features)
    y = torch.randint(0, classes, (16, a.batch_size))
    if world > 1:
        dist.barrier()
    times = []
    for step in range(a.steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(trained(x[step % 16]), y[step % 16])
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - started)
    if rank == 0:
        steady = times[max(5, a.steps // 10):]
        with open(a.out, "w") as out:
            json.dump({"step_ms": statistics.median(steady) * 1e3, "torch": torch.__version__}, out)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
