#!/usr/bin/env python3
"""Fits the attention rates of a device profile: the model of GpuAttentionTime (cost_models/op_time.cc):

    rate(L) = rate L' / (L' + half_length),      L' = L keys when causal, 2 L under a full mask
    time = flops / rate(L) + tail block / (rate(L) / multiprocessors)
    block = 128 queries against L keys: 2 products forward, 5 backward

Rows: the published attention kernels without windows, and the sdp_fwd and sdp_bwd rows of the GEMM
table, which count causal work as the full square. A third, in the order of
hashes, is held out of each fit.
Standard library only; deterministic; prints the `attention` of the YAML.

    fit_attention.py a100 DATA/published/kernels.csv DATA/published/gemm.csv
    (likewise h200, b200, gb200, gb300)
"""
import csv
import hashlib
import math
import re
import sys

# GPU in the kernel table, backend and data types there; prefix in the GEMM table; multiprocessors.
DEVICES = {
    "a100": ("A100 80GB PCIe", "flash_attention", "SIMUMAX-A100PCIE-", 108),
    "h200": ("H200", "cudnn", None, 132),
    "b200": (None, None, "SIMUMAX-B200-", 148),
    "gb200": ("GB200", "cudnn", None, 152),
    "gb300": ("GB300", "cudnn", None, 152),
}
PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8"}
PRODUCTS = {False: 2, True: 5}  # by backward
QUERIES = 128


class Row:
    def __init__(self, name, head_dim, value_dim, batch, heads, length, causal, backward, rate):
        self.length = length * (1 if causal else 2)
        pairs = batch * heads * length * length * (0.5 if causal else 1.0)
        half = (head_dim + value_dim) / 2
        self.flops = 2 * PRODUCTS[backward] * pairs * half
        self.block = 2 * PRODUCTS[backward] * QUERIES * length * head_dim
        self.seconds = self.flops / rate
        self.hash = hashlib.sha256(name.encode()).digest()


def read_kernels(path, gpu, backend, groups):
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            if (row["kernel"], row["gpu"], row["backend"]) != ("attention", gpu, backend):
                continue
            if row["dtype"] not in PRECISIONS or "window" in row["notes"]:
                continue
            if row["q_seq"] != row["kv_seq"]:
                continue
            backward = row["pass"] == "bwd"
            key = (PRECISIONS[row["dtype"]], int(row["head_dim_qk"]), backward,
                   row["deterministic"] == "True")
            groups.setdefault(key, []).append(Row(
                row["id"], int(row["head_dim_qk"]), int(row["head_dim_vo"]), int(row["batch"]),
                int(row["heads"]), int(row["q_seq"]), row["mask"] == "causal", backward,
                float(row["measured_tflops"]) * 1e12))


def read_products(path, prefix, groups):
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            if not row["id"].startswith(prefix) or row["op"] not in ("sdp_fwd", "sdp_bwd"):
                continue
            value = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", row["source_table"])}
            backward = row["op"] == "sdp_bwd"
            groups.setdefault(("bf16", value["qk_head_dim"], backward, False), []).append(Row(
                row["id"], value["qk_head_dim"], value["v_head_dim"], value["batch"],
                value["head_num"], value["seq_len"], True, backward,
                float(row["measured_tflops"]) / 2 * 1e12))


def predict(row, p, units):
    rate = p[0] * row.length / (row.length + p[1])
    return row.flops / rate + p[2] * row.block * units / rate


def hold_out(rows):
    """Marks every third row in the order of their hashes, none of very few rows."""
    for i, row in enumerate(sorted(rows, key=lambda r: r.hash)):
        row.held = i % 3 == 2 and len(rows) > 5


def fit(rows, units):
    """Least mean |log error| over a grid of half_length and tail; the rate that is best for each of
    them is the one of median error 0."""
    found = None
    for half in range(0, 2001, 20):
        for tenth in range(0, 61):
            p = (1.0, half, tenth / 10)
            logs = sorted(math.log(predict(r, p, units) / r.seconds) for r in rows)
            middle = logs[len(logs) // 2]
            loss = sum(abs(x - middle) for x in logs)
            if found is None or loss < found[0] - 1e-12:
                found = loss, (math.exp(middle), half, tenth / 10)
    p = found[1]
    return [round(p[0] / 1e12, 1) * 1e12, p[1], p[2]]


def errors(rows, p, units):
    e = sorted(abs(predict(r, p, units) / r.seconds - 1) for r in rows)
    return f"{len(e)} rows {e[len(e) // 2]:.3f}/{e[len(e) * 9 // 10]:.3f}" if e else "0 rows"


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in DEVICES:
        sys.exit(__doc__)
    gpu, backend, prefix, units = DEVICES[sys.argv[1]]
    groups = {}
    if gpu:
        read_kernels(sys.argv[2], gpu, backend, groups)
    if prefix:
        read_products(sys.argv[3], prefix, groups)
    for (precision, head_dim, backward, deterministic), rows in sorted(groups.items()):
        hold_out(rows)
        fitted = [r for r in rows if not r.held]
        if len(fitted) < 4:
            print(f"    # {precision} d{head_dim} backward {backward}: {len(rows)} rows, too few")
            continue
        p = fit(fitted, units)
        print(f"    - head_dim: {head_dim}\n      backward: {str(backward).lower()}")
        if deterministic:
            print("      deterministic: true")
        if precision != "bf16":
            print(f"      precision: {precision}")
        print(f"      rate: {{value: {round(p[0] / 1e12, 1)}, unit: TFLOP/s, source: attention}}\n"
              f"      half_length: {{value: {p[1]}, unit: tokens, source: attention}}\n"
              f"      tail: {{value: {p[2]}, unit: blocks, source: attention}}\n"
              f"      # median/p90 {errors(fitted, p, units)}, held out "
              f"{errors([r for r in rows if r.held], p, units)}")


if __name__ == "__main__":
    main()
