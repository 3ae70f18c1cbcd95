#!/usr/bin/env python3
"""Fits kernels bounded by device memory: time = launch + fixed + bytes / (bandwidth efficiency).

Rows: RMS and layer norms of the published table, forward (one tensor in, one out) and backward (two
in, one out), by the library that made the kernel. A third of the rows, in the
order of hashes, is held out.
Standard library only; deterministic; prints the `kernels` of the YAML and, for `memory_efficiency`
and `memory_fixed`, the fit of the best library's forward kernels.

    fit_memory_kernels.py H200 DATA/published/kernels.csv      (likewise GB200, GB300)
"""
import csv
import hashlib
import math
import sys

BANDWIDTH = {"H200": 4.8e12, "GB200": 8e12, "GB300": 8e12}  # bytes/s, datasheets
LAUNCH = 2e-6  # launch_overhead of the profiles, seconds
LEAST_COLUMNS = 1024  # shorter rows (norms of heads) are other kernels
OPS = {"fwd": ("norm", 2), "bwd": ("norm_grad", 3)}  # name, tensors moved
LIBRARIES = {"cudnn": "cudnn", "pytorch": "torch", "torch_compile": "torch_compile"}
ELEMENT = 2  # bytes, bf16


def read_rows(gpu, path):
    """{(kernel name, library): [(bytes, seconds, held out)]}"""
    groups = {}
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            if row["gpu"] != gpu or row["kernel"] not in ("rms_norm", "layer_norm"):
                continue
            if int(row["cols"]) < LEAST_COLUMNS:
                continue
            name, tensors = OPS[row["pass"]]
            size = tensors * int(row["rows"]) * int(row["cols"]) * ELEMENT
            # The printed times are rounded to microseconds, the rates are not.
            seconds = size / (float(row["measured_gbps"]) * 1e9)
            key = f"{name}.{row['kernel']}", LIBRARIES[row["backend"]]
            order = hashlib.sha256(row["id"].encode()).digest()
            groups.setdefault(key, []).append((order, size, seconds))
    return {key: [(size, seconds, i % 3 == 2) for i, (_, size, seconds) in enumerate(sorted(rows))]
            for key, rows in groups.items()}


def predict(size, p, bandwidth):
    return LAUNCH + p[1] + size / (bandwidth * p[0])


def fit(rows, bandwidth):
    """Least mean |log error| over a grid of efficiency and fixed time (seconds)."""
    best = None
    for percent in range(10, 101):
        for tenth in range(0, 401):
            p = percent / 100, tenth * 1e-7
            loss = sum(abs(math.log(predict(s, p, bandwidth) / t)) for s, t, _ in rows)
            if best is None or loss < best[0] - 1e-12:
                best = loss, p
    return best[1]


def errors(rows, p, bandwidth):
    e = sorted(abs(predict(s, p, bandwidth) / t - 1) for s, t, _ in rows)
    return f"{len(e)} rows {e[len(e) // 2]:.3f}/{e[len(e) * 9 // 10]:.3f}" if e else "0 rows"


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in BANDWIDTH:
        sys.exit(__doc__)
    bandwidth = BANDWIDTH[sys.argv[1]]
    for (name, library), rows in sorted(read_rows(sys.argv[1], sys.argv[2]).items()):
        fitted = [r for r in rows if not r[2]]
        if len(fitted) < 3:
            print(f"    # {name}@{library}: {len(rows)} rows, too few to fit")
            continue
        p = fit(fitted, bandwidth)
        print(f"    - kernel: \"{name}@{library}\"\n"
              f"      efficiency: {{value: {p[0]}, unit: ratio, source: norms}}\n"
              f"      fixed: {{value: {round(p[1] * 1e6, 1)}, unit: us, source: norms}}\n"
              f"      # median/p90 {errors(fitted, p, bandwidth)}, held out "
              f"{errors([r for r in rows if r[2]], p, bandwidth)}")


if __name__ == "__main__":
    main()
