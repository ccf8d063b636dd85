#!/usr/bin/env python3
"""Measure a PyTorch model layer by layer, and write the profile that `--model profile:FILE` takes.

    experiments/peers/torch_profile.py resnet18 --batch-size 32 --out resnet18.json
    experiments/peers/torch_profile.py my_model.py:make --batch-size 32 --device cuda --out my-model.json

The model is a spec of sparring-worker's --model, or FILE.py:FUNCTION.  FUNCTION(device, batch_size) returns the module,
on that device, and a function without arguments that runs forward on a batch and returns the loss.

A layer is a module with parameters of its own.  Its backward is the time from the gradients of the layer before it in
backward to its last gradient, as the hooks of DistributedDataParallel see them; its forward the time from its call to
the next one's.  What lies between two layers belongs to the first of them.  Times are medians over the steps, without
the optimizer: on the CPU the processor time of one thread, on which the profile keeps the processor as busy; on a GPU
those of its stream, and the profile says "idle".  Works with PyTorch 1.13 and newer.
"""
import argparse
import importlib.util
import json
import os
import statistics
import sys
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="SPEC|FILE.py:FUNCTION")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30, help="after 5 that are not measured")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:I")
    parser.add_argument("--out", required=True, metavar="FILE")
    return parser.parse_args()


a = parse_arguments()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when the libraries are loaded
    os.environ[variable] = "1"

import torch

import torch_models

WARMUP = 5


def open_job():
    """The module, and the function that returns the loss of a batch."""
    path, _, function = a.model.rpartition(":")
    if path.endswith(".py"):
        spec = importlib.util.spec_from_file_location("job", path)
        job = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(job)
        return getattr(job, function)(a.device, a.batch_size)
    made = torch_models.make_model(a.model)
    model = made.model.to(a.device)
    if made.vocabulary:
        x = torch.randint(made.vocabulary, (a.batch_size, *made.input_shape), device=a.device)
    else:
        x = torch.rand(a.batch_size, *made.input_shape, device=a.device)
    y = torch.randint(made.classes, (a.batch_size, made.positions), device=a.device)
    return model, lambda: torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


class Clock:
    """Moments in order: of this thread's processor time, or of a GPU's stream."""

    def __init__(self, device):
        self.cuda = device.startswith("cuda")

    def now(self):
        if not self.cuda:
            return time.thread_time_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def microseconds(self, start, end):
        return start.elapsed_time(end) * 1e3 if self.cuda else (end - start) / 1e3


class Recorder:
    """Hooks on every layer, and the moments of the current step."""

    def __init__(self, model, clock):
        self.clock = clock
        self.layers = {}  # name -> its parameters, each once, also where modules share it
        seen, self.nodes = set(), []
        for name, module in model.named_modules():
            own = {k: p for k, p in module.named_parameters(recurse=False) if p.requires_grad and id(p) not in seen}
            if own:
                seen.update(id(p) for p in own.values())
                self.layers[name or "model"] = own
                module.register_forward_pre_hook(lambda *_, name=name or "model": self.calls.append((name, clock.now())))
                for p in own.values():
                    self.hook(p, name or "model")

    def hook(self, parameter, name):
        """Call on_gradient after the parameter's gradient has been accumulated."""

        def on_gradient(*_):
            self.ready[name] = self.clock.now()

        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            parameter.register_post_accumulate_grad_hook(on_gradient)
            return
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(on_gradient)
        self.nodes.append(node)  # it lives as long as somebody holds it

    def step(self, loss):
        """{name: (forward, backward)} in microseconds, in the order in which the gradients are complete."""
        self.calls, self.ready = [], {}
        self.clock.synchronize()
        start = self.clock.now()
        value = loss()
        middle = self.clock.now()
        value.backward()
        end = self.clock.now()
        self.clock.synchronize()
        forward = dict.fromkeys(self.layers, 0.0)
        moments = [start] + [moment for _, moment in self.calls[1:]] + [middle]
        for (name, _), begin, finish in zip(self.calls, moments, moments[1:]):
            forward[name] += self.clock.microseconds(begin, finish)
        order = list(self.ready)  # by first gradient; sorted by the last one
        order.sort(key=lambda name: self.clock.microseconds(start, self.ready[name]))
        moments = [middle] + [self.ready[name] for name in order[:-1]] + [end]
        return {name: (forward[name], self.clock.microseconds(begin, finish))
                for name, begin, finish in zip(order, moments, moments[1:])}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, loss = open_job()
    recorder = Recorder(model, Clock(a.device))
    steps = []
    for _ in range(WARMUP + a.steps):
        model.zero_grad(set_to_none=True)
        steps.append(recorder.step(loss))
    steps = steps[WARMUP:]
    backward_order = list(steps[0])
    unused = [name for name in recorder.layers if name not in steps[0]]
    if unused:
        sys.exit(f"no gradient for {', '.join(unused)}")
    called = list(dict.fromkeys(name for name, _ in recorder.calls))
    if called != backward_order[::-1]:
        print("the gradients do not come in the reverse order of the calls: layers are listed by their gradients",
              file=sys.stderr)
    layers = [{"name": name,
               "forward_us": round(statistics.median(s[name][0] for s in steps), 2),
               "backward_us": round(max(0, statistics.median(s[name][1] for s in steps)), 2),
               "parameters": {k: list(p.shape) for k, p in recorder.layers[name].items()}}
              for name in backward_order[::-1]]
    device = torch.cuda.get_device_name(a.device) if a.device.startswith("cuda") else "one thread"
    profile = {"version": 1,
               "name": f"{a.model}, {a.batch_size} samples, {device}, PyTorch {torch.__version__}",
               "batch": a.batch_size,
               "compute": "idle" if a.device.startswith("cuda") else "busy",
               "bytes": sum(4 * p.numel() for own in recorder.layers.values() for p in own.values())}
    lines = ",\n  ".join(json.dumps(layer) for layer in layers)
    with open(a.out, "w") as out:
        out.write(json.dumps(profile)[:-1] + f',\n "layers": [\n  {lines}]}}\n')
    times = [[sum(times[i] for times in s.values()) for s in steps] for i in (0, 1)]
    print(f"{a.out}: {len(layers)} layers, {profile['bytes']} bytes; "
          f"forward {sum(l['forward_us'] for l in layers) / 1e3:.2f} ms (whole steps: "
          f"{statistics.median(times[0]) / 1e3:.2f}), backward {sum(l['backward_us'] for l in layers) / 1e3:.2f} ms "
          f"({statistics.median(times[1]) / 1e3:.2f})")


if __name__ == "__main__":
    main()
