#!/usr/bin/env python3
"""The verdict of a report, calculated again from the raw records, with nothing but Python's standard library.

verdict.py DIR: DIR holds runs/, design.json and report.json.  Ends with 1 and a line per figure that differs by more than
one part in 10^9; prints what it has compared.  Formulas: experiments/METRICS.md, "Mode against mode"."""
import itertools
import json
import math
import pathlib
import sys

TOLERANCE = 1e-9


def throughput(run):
    """Sum over ranks of samples / time of the steps behind the first max(5, a tenth), without the last."""
    total = 0
    for path in run.glob("rank*.jsonl"):
        steps = [r for r in map(json.loads, path.read_text().splitlines()) if r["kind"] == "step"]
        skip = max(5, len(steps) // 10)
        steady = steps[skip:-1] if skip + 1 < len(steps) else steps
        total += sum(s["samples"] for s in steady) / (sum(s["step_ns"] for s in steady) / 1e9)
    return total


def student_tail(t, freedom):
    """P(|T| > t), by Simpson's rule over the density, after t = sqrt(freedom) tan(angle)."""
    end, pieces = math.atan(t / math.sqrt(freedom)), 20000
    density = lambda a: math.cos(a) ** (freedom - 1)
    step = end / pieces
    inner = density(0) + density(end) + sum((4 if i % 2 else 2) * density(i * step) for i in range(1, pieces))
    norm = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return 1 - 2 * norm * inner * step / 3


def student_quantile(p, freedom):
    low, high = 0, 1
    while student_tail(high, freedom) > p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > p else (low, middle)
    return high


def sign_flips(d):
    far = sum(abs(sum(s * x for s, x in zip(signs, d))) >= abs(sum(d)) - 1e-10 * sum(map(abs, d))
              for signs in itertools.product((1, -1), repeat=len(d)))
    return far / 2 ** len(d)


def holm(values):
    order, reached, adjusted = sorted(range(len(values)), key=values.__getitem__), 0, [0] * len(values)
    for place, i in enumerate(order):
        reached = max(reached, min(1, values[i] * (len(values) - place)))
        adjusted[i] = reached
    return adjusted


def judge(d, design):
    n, mean = len(d), sum(d) / len(d)
    error = math.sqrt(sum((x - mean) ** 2 for x in d) / (n - 1) / n)
    half = student_quantile(design["level"], n - 1) * error
    room = -math.log1p(-design["margin"]) - abs(mean)
    tail = student_tail(abs(room) / error, n - 1) / 2
    return {"ratio": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half), "blocks": n,
            "p": sign_flips(d), "p_equivalence": tail if room > 0 else 1 - tail}


def main():
    folder = pathlib.Path(sys.argv[1])
    design, report = (json.loads((folder / name).read_text()) for name in ("design.json", "report.json"))
    rates = {}
    for run in (folder / "runs").iterdir():
        attempt = json.loads((run / "attempt.json").read_text())
        if attempt["outcome"] == "ok":
            rates.setdefault(attempt["mode"], {})[attempt["repeat"]] = throughput(run)
    step, more = (design["blocks"] + 1) // 2, design.get("most_blocks", 0) - design["blocks"]
    design["level"] /= 1 + (math.ceil(more / step) if more > 0 else 0)  # of one look at the runs
    named = [r for pair in design["pairs"] for r in report["ratios"]
             if {r["over"], r["under"]} == set(pair) and r["of"] == "throughput"]
    found = []
    for r in named:
        over, under = rates[r["over"]], rates[r["under"]]
        found.append(judge([math.log(over[k] / under[k]) for k in sorted(over) if k in under], design))
    for key in ("p", "p_equivalence"):
        for one, value in zip(found, holm([f[key] for f in found])):
            one[key] = value
    wrong = 0
    for r, f in zip(named, found):
        level = design["level"]
        f["state"] = ("equivalent" if f["p_equivalence"] <= level else "faster" if f["p"] <= level else "undecided")
        for key, value in f.items():
            same = value == r[key] if isinstance(value, str) else math.isclose(value, r[key], rel_tol=TOLERANCE, abs_tol=1e-12)
            if not same:
                print(f"{r['over']} over {r['under']}: {key} is {r[key]!r} in the report, {value!r} by the records")
                wrong += 1
        print(f"{r['over']} over {r['under']}: {f['ratio']:.4f} ({f['low']:.4f} to {f['high']:.4f}), {f['state']}")
    sys.exit(1 if wrong or not named else 0)


main()
