#!/usr/bin/python3
"""Write pytorch.json: parameters that PyTorch's optimizers give for fixed gradients.

Needs python3-torch (made with Debian 12's, 1.13.1, one thread, float32).  Usage: generate.py > pytorch.json

  param   COUNT start values          grads   STEPS gradients of COUNT values
  cases   kind, settings, and the parameters after steps 1, 2 and STEPS
"""
import json
import sys

import torch

COUNT, STEPS, KEPT = 37, 12, (1, 2, 12)
CASES = [
    ("sgd", dict(lr=0.1)),
    ("sgd", dict(lr=0.1, weight_decay=0.05)),
    ("sgd", dict(lr=0.05, momentum=0.9)),
    ("sgd", dict(lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.01)),
    ("sgd", dict(lr=0.05, momentum=0.8, nesterov=True)),
    ("sgd", dict(lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.02)),
    ("adamw", dict()),
    ("adamw", dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    ("adamw", dict(lr=0.01, betas=(0.3, 0.5), weight_decay=0.0)),
    ("adam", dict()),
    ("adam", dict(lr=0.02, betas=(0.85, 0.99), weight_decay=0.03)),
]
MAKERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def run(kind, settings, start, grads):
    p = torch.nn.Parameter(start.clone())
    optimizer = MAKERS[kind]([p], **settings)
    kept = {}
    for step, g in enumerate(grads, 1):
        p.grad = g.clone()
        optimizer.step()
        if step in KEPT:
            kept[step] = p.detach().tolist()
    return kept


def main():
    torch.set_num_threads(1)
    torch.manual_seed(2024)
    start = torch.randn(COUNT)
    grads = [torch.randn(COUNT) * 10.0 ** torch.randint(-4, 2, (COUNT,)) for _ in range(STEPS)]
    out = {
        "torch": torch.__version__,
        "param": start.tolist(),
        "grads": [g.tolist() for g in grads],
        "cases": [dict(kind=k, **s, after=run(k, s, start, grads)) for k, s in CASES],
    }
    json.dump(out, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
