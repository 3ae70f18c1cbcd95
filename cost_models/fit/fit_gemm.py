#!/usr/bin/env python3
"""Fits the five GEMM constants of a device profile to measured matrix products.

The model is the one of cost_models/gemm_time.cc (kept equal by a test, which recomputes the
residuals printed here). Standard library only; deterministic; prints the `gemm` block of the YAML.

    fit_gemm.py h200 DATA/h200/h200_gemm_bf16.csv
    fit_gemm.py a100 DATA/published/gemm.csv      (likewise v100, b200)
"""
import csv
import math
import sys

TILES = [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64)]
SPLITS = [1, 2, 4, 8]

# Dense peak FLOP/s of the measured precision, multiprocessors, bytes/s of memory, precision.
DEVICES = {
    "h200": dict(peak=989.4e12, sms=132, bandwidth=4.8e12, precision="bf16"),
    "a100": dict(peak=312e12, sms=108, bandwidth=1.935e12, precision="bf16"),
    "b200": dict(peak=2250e12, sms=148, bandwidth=7.75e12, precision="bf16"),
    "v100": dict(peak=125e12, sms=80, bandwidth=0.9e12, precision="fp16"),
}

# Rows of the published table by device: (gpu, operation, precision, note for the YAML).
PUBLISHED = {
    "a100": ("A100-PCIe-80GB", "matmul", "bf16"),
    "b200": ("B200-SXM", "matmul", "bf16"),
    "v100": ("V100", "gemm", "fp16"),
}

# Below this the H200 rows show how fast the host launched, not the kernel.
HOST_BOUND_S = 40e-6


def read_rows(device, path):
    """Rows as (m, n, k, batch, seconds)."""
    rows = []
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            if device == "h200":
                if float(row["seconds"]) >= HOST_BOUND_S:
                    rows.append((int(row["m"]), int(row["n"]), int(row["k"]), 1,
                                 float(row["seconds"])))
                continue
            gpu, op, dtype = PUBLISHED[device]
            if (row["gpu"], row["op"], row["dtype"]) != (gpu, op, dtype):
                continue
            m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
            batch = int(row["batch"] or 1)
            rate = float(row["measured_tflops"] or 0) * 1e12
            if rate > 0:
                rows.append((m, n, k, batch, 2.0 * m * n * k * batch / rate))
    return rows


def predict(row, p, dev):
    """Seconds of one product; p = (max_efficiency, edge, depth, quantisation, fixed_s)."""
    m, n, k, batch, _ = row
    best = math.inf
    per_sm = dev["peak"] / dev["sms"] * p[0]
    for tm, tn in TILES:
        tiles = -(-m // tm) * -(-n // tn) * batch
        rate = per_sm / (1 + p[1] * (1 / tm + 1 / tn))
        for s in SPLITS:
            x = tiles * s / dev["sms"]
            waves = p[3] * math.ceil(x) + (1 - p[3]) * max(x, 1.0)
            t = waves * 2.0 * tm * tn * (k / s + p[2]) / rate
            if s > 1:  # partial sums in fp32, written and read
                t += 8.0 * s * m * n * batch / dev["bandwidth"]
            best = min(best, t)
    return best + p[4]


def errors(rows, p, dev):
    return sorted(abs(predict(r, p, dev) / r[4] - 1) for r in rows)


def loss(rows, p, dev):
    return sum(abs(math.log(predict(r, p, dev) / r[4])) for r in rows) / len(rows)


def fit(rows, dev):
    """Coordinate descent with shrinking steps from a fixed start: same input, same output."""
    low = [0.2, 0.0, 0.0, 0.0, 0.0]
    high = [1.0, 200.0, 1000.0, 1.0, 30e-6]
    p = [0.75, 10.0, 100.0, 0.5, 3e-6]
    step = [0.1, 8.0, 60.0, 0.25, 2e-6]
    best = loss(rows, p, dev)
    for _ in range(12):
        moved = True
        while moved:
            moved = False
            for i in range(len(p)):
                for sign in (1, -1):
                    q = list(p)
                    q[i] = min(high[i], max(low[i], p[i] + sign * step[i]))
                    value = loss(rows, q, dev)
                    if value < best - 1e-9:
                        p, best, moved = q, value, True
        step = [x / 2 for x in step]
    return p


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in DEVICES:
        sys.exit(__doc__)
    device, path = sys.argv[1], sys.argv[2]
    dev = DEVICES[device]
    rows = read_rows(device, path)
    p = fit(rows, dev)
    p = [round(p[0], 4), round(p[1], 3), round(p[2], 2), round(p[3], 4), round(p[4], 9)]
    e = errors(rows, p, dev)
    source = "gemm-fit"
    for key, value, unit in (("max_efficiency", p[0], "ratio"), ("edge", p[1], "elements"),
                             ("depth", p[2], "elements"), ("quantisation", p[3], "ratio"),
                             ("fixed", round(p[4] * 1e6, 3), "us"), ("fit_rows", len(e), "count"),
                             ("fit_median", round(e[len(e) // 2], 4), "ratio"),
                             ("fit_p90", round(e[len(e) * 9 // 10], 4), "ratio")):
        print(f"    {key}: {{value: {value}, unit: {unit}, source: {source}}}")
    print(f"    # worst: {e[-1]:.4f}")


if __name__ == "__main__":
    main()
