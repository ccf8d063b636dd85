#!/usr/bin/env python3
"""Time the training step of the same job in PyTorch; `sparring bench train --peer python3` runs it.

Rank, world size and address come from the environment (torchrun, or sparring launch).  Rank 0 writes one JSON object
to --out: medians over all but the first max(5, 10 %) steps, or why nothing was measured ("not_measured").  PyTorch is
given what it is best with: gradients set to None, fused optimizers, on a GPU pinned input that is copied on a stream
of its own while the step before computes, channels-last images below float32, cuDNN's search, and of torch.compile the
faster of its modes.  On a GPU nothing waits inside a block of 10 steps, and parts are times of its stream.
"""
import argparse
import gc
import json
import os
import resource
import statistics
import sys
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="as sparring-worker takes it: mlp:784-1024-1024-10, resnet18, ...")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0)
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda (that of LOCAL_RANK) or cuda:I")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16", "fp16"), default="float32")
    parser.add_argument("--compile", action="store_true", help="torch.compile, with PyTorch 2")
    parser.add_argument("--compile-mode", default="best",
                        help="default, reduce-overhead, max-autotune; best: on a GPU the faster of the last two")
    parser.add_argument("--ddp", action="store_true", help="synchronise with DistributedDataParallel: gloo, on GPUs nccl")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


a = parse_arguments()
# torch.set_num_threads does not reach every BLAS: OpenBLAS with its own threads reads this when it is loaded.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(a.threads)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_models

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
BLOCK = 10  # steps between two waits for a GPU
BATCHES = 16


class NotMeasured(Exception):
    pass


def open_device():
    if a.device == "auto":
        a.device = "cuda" if torch.cuda.is_available() else "cpu"
    if a.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise NotMeasured("this PyTorch sees no GPU")
    local_rank = int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count()
    device = torch.device(a.device if ":" in a.device else f"cuda:{local_rank}")
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = a.precision != "float32"
    return device


def open_optimizer(parameters):
    """The fastest that this PyTorch has for the device; which one stands in its defaults."""
    kind = torch.optim.SGD if a.optimizer == "sgd" else torch.optim.AdamW
    settings = {"lr": a.lr, "weight_decay": 0, **({"momentum": a.momentum} if a.optimizer == "sgd" else {})}
    for way in ({"fused": True}, {"foreach": True}) if a.device != "cpu" else ({"fused": True},):
        try:
            return kind(parameters, **settings, **way)
        except (TypeError, RuntimeError):
            pass
    return kind(parameters, **settings)


class Training:
    """One rank's model, data and optimizer; step() is what is timed."""

    def __init__(self, device, compile_mode):
        self.device, self.cuda = device, device.type == "cuda"
        self.side, self.ahead = torch.cuda.Stream() if self.cuda else None, None
        torch.manual_seed(a.seed)
        self.made = torch_models.make_model(a.model)
        self.flops = torch_models.flops_per_sample(self.made)
        self.images = len(self.made.input_shape) == 3 and self.cuda and a.precision != "float32"
        model = self.made.model.to(device)
        if self.images:
            model = model.to(memory_format=torch.channels_last)
        if a.ddp and WORLD > 1:
            model = DistributedDataParallel(model, device_ids=[device.index] if self.cuda else None,
                                            gradient_as_bucket_view=True)
        self.loss = lambda x, y: torch_models.loss_of(model(x), y)
        if a.compile:
            self.loss = torch.compile(self.loss, mode=compile_mode)
        self.optimizer = open_optimizer(list(model.parameters()))
        self.scaler = (torch.amp if hasattr(torch.amp, "GradScaler") else torch.cuda.amp).GradScaler() if a.precision == "fp16" else None
        self.inputs = [self.prepare(torch_models.random_input(self.made, a.batch_size)) for _ in range(BATCHES)]
        self.labels = [self.prepare(torch_models.random_labels(self.made, a.batch_size)) for _ in range(BATCHES)]

    def prepare(self, tensor):
        if self.images and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.pin_memory() if self.cuda else tensor

    def autocast(self):
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
        return torch.autocast(self.device.type, dtype=kinds.get(a.precision, torch.bfloat16),
                              enabled=a.precision in kinds)

    def send(self, number):
        """A batch, on its way to the GPU."""
        x, y = self.inputs[number % BATCHES], self.labels[number % BATCHES]
        if not self.cuda:
            return x, y
        with torch.cuda.stream(self.side):
            return x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)

    def step(self, number, mark):
        """mark() is called between the parts: input, forward, backward, optimizer."""
        if a.compile and self.cuda and hasattr(torch.compiler, "cudagraph_mark_step_begin"):
            torch.compiler.cudagraph_mark_step_begin()
        mark()
        x, y = self.ahead or self.send(number)
        if self.cuda:
            torch.cuda.current_stream().wait_stream(self.side)
            x.record_stream(torch.cuda.current_stream())
            y.record_stream(torch.cuda.current_stream())
            self.ahead = self.send(number + 1)
        mark()
        with self.autocast():
            loss = self.loss(x, y)
        mark()
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        mark()
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mark()
        return loss


PARTS = ("input_ms", "forward_ms", "backward_ms", "optimizer_ms")


def run_on_cpu(training):
    """Per step: its time and its parts, in ms."""
    steps = []
    for number in range(a.steps):
        marks = []
        loss = training.step(number, lambda: marks.append(time.perf_counter()))
        loss.item()
        end = time.perf_counter()
        steps.append([1e3 * (end - marks[0])] + [1e3 * (marks[i + 1] - marks[i]) for i in range(len(PARTS))])
    return steps, loss.item()


def run_on_cuda(training):
    """Per block: the same, means over its steps."""
    blocks = []
    for _ in range(-(-a.steps // BLOCK)):
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(len(PARTS) + 1)] for _ in range(BLOCK)]
        torch.cuda.synchronize()
        started = time.perf_counter()
        for number in range(BLOCK):
            left = iter(events[number])
            loss = training.step(number, lambda: next(left).record())
        value = loss.item()
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - started
        parts = [statistics.mean(e[i].elapsed_time(e[i + 1]) for e in events) for i in range(len(PARTS))]
        blocks.append([1e3 * elapsed / BLOCK] + parts)
    return blocks, value


def measure_mode(device, compile_mode):
    training = Training(device, compile_mode)
    if WORLD > 1:
        dist.barrier()
    rows, loss = (run_on_cuda if training.cuda else run_on_cpu)(training)
    unit = BLOCK if training.cuda else 1
    steady = rows[max(5, a.steps // 10) // unit + (unit > 1):] or rows
    figures = dict(zip(("step_ms",) + PARTS, map(statistics.median, zip(*steady))))
    return {**figures, "torch": torch.__version__, "device": torch.cuda.get_device_name() if training.cuda else "cpu",
            "model_flops_per_sample": training.flops, "loss": loss,
            "parameters": sum(p.numel() for p in training.made.model.parameters()),
            "fused_optimizer": bool(training.optimizer.defaults.get("fused")),
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            **({"compile_mode": compile_mode} if a.compile else {}),
            **({"peak_device_bytes": torch.cuda.max_memory_reserved()} if training.cuda else {})}


def measure_best(device):
    """By the fastest mode of those to try; one that fails is left out while another does not."""
    modes = [a.compile_mode] if a.compile_mode != "best" else \
        ["reduce-overhead", "max-autotune"] if a.compile and device.type == "cuda" else ["default"]
    results, problems = [], []
    for mode in modes:
        try:
            results.append(measure_mode(device, mode))
        except Exception as problem:  # the compiler's own are many: no C++ compiler, no Triton
            if mode == modes[-1] and not results:
                raise
            problems.append(f"{mode}: {(str(problem).splitlines() or ['?'])[0]}")
        if len(modes) > 1:
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    best = min(results, key=lambda result: result["step_ms"])
    tried = {result["compile_mode"]: result["step_ms"] for result in results if "compile_mode" in result}
    return {**best, **({"modes_ms": tried} if tried else {}), **({"modes_failed": problems} if problems else {})}


def measure():
    if a.compile and not hasattr(torch, "compile"):
        raise NotMeasured(f"PyTorch {torch.__version__} has no torch.compile")
    torch.set_num_threads(a.threads)
    device = open_device()
    if a.ddp and device.type == "cuda" and int(os.environ.get("LOCAL_WORLD_SIZE", WORLD)) > torch.cuda.device_count():
        raise NotMeasured("NCCL wants a GPU for each rank")
    if WORLD > 1:
        dist.init_process_group("gloo" if device.type == "cpu" or not a.ddp else "nccl")
    try:
        return measure_best(device)
    finally:
        if WORLD > 1 and sys.exc_info()[0] is None:
            dist.barrier()
            dist.destroy_process_group()


def main():
    try:
        result = measure()
    except NotMeasured as why:
        result = {"not_measured": str(why)}
    except Exception as problem:
        if not a.compile:
            raise
        result = {"not_measured": f"torch.compile failed: {(str(problem).splitlines() or ['?'])[0]}"}
    if RANK == 0:
        with open(a.out, "w") as out:
            json.dump(result, out)


if __name__ == "__main__":
    main()
