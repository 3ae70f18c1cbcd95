#!/usr/bin/env python3
"""Fits the GEMM constants of a device profile to measured matrix products.

The model is the one of cost_models/op_time.cc, beside the memory bound of cost_models/cost_model.cc
(kept equal by a test, which recomputes the residuals printed here). A third of the rows, chosen by
hash, is held out of the fit. Standard library only; deterministic; prints the block of the YAML with
the residuals over all rows, and those of both parts.

    fit_gemm.py h200 DATA/h200/h200_gemm_bf16.csv
    fit_gemm.py a100 DATA/published/gemm.csv      (likewise a100-pcie, v100, b200, hopper-fp8)
"""
import csv
import hashlib
import math
import sys

TILES = [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64)]
SPLITS = [1, 2, 4, 8]
MEMORY_EFFICIENCY = 0.78  # of the profiles, for products

# Dense peak FLOP/s of the measured precision, multiprocessors, bytes/s of memory, bytes an operand
# element; rows: prefixes of ids in the published table, shortest time that shows the kernel and not
# the host; accumulate: fit the cost of sums in fp32; held: leave a third out.
DEVICES = {
    "h200": dict(peak=989.4e12, sms=132, bandwidth=4.8e12, operand=2, least=40e-6, held=False),
    "a100-pcie": dict(peak=312e12, sms=108, bandwidth=1.935e12, operand=2, least=0,
                      rows=("SIMUMAX-A100PCIE-",), op="matmul", accumulate=True),
    # The table does not say which memory; products bounded by memory fit the 40 GB one.
    "a100": dict(peak=312e12, sms=108, bandwidth=1.555e12, operand=2, least=100e-6,
                 rows=("ELEUTHER-A100-", "ELEUTHER-VOCAB-")),
    "b200": dict(peak=2250e12, sms=148, bandwidth=7.7e12, operand=2, least=0,
                 rows=("SIMUMAX-B200-",), op="matmul", accumulate=True),
    "v100": dict(peak=125e12, sms=80, bandwidth=0.9e12, operand=2, least=100e-6,
                 rows=("ELEUTHER-V100-",)),
    "hopper-fp8": dict(peak=1978.9e12, sms=132, bandwidth=3.35e12, operand=1, least=0,
                       rows=("DEEPGEMM-", "VLLM49363-"), op="gemm", dtype="fp8",
                       most_fixed=30e-6),
}
NAMES = ("max_efficiency", "edge", "depth", "quantisation", "fixed", "accumulation")
LOW = (0.2, 0.0, 0.0, 0.0, 0.0, 0.0)
# Most published rows hold the launch of their benchmark, up to 20 us, in every product: `fixed` is kept
# to what the rows on H200 show, which were issued ahead, but where the kernel alone was timed.
HIGH = (1.0, 200.0, 1000.0, 1.0, 4e-6, 2.0)
START = (0.85, 10.0, 100.0, 0.5, 3e-6, 0.3)
STEP = (0.1, 8.0, 60.0, 0.25, 1e-6, 0.3)
FULL_ROW = 32  # bytes: rows that start at multiples of these lose nothing


def rows_start_at(elements, dev):
    """Greatest power of two that divides the length of a row in bytes, up to FULL_ROW."""
    length = elements * dev["operand"]
    return min(FULL_ROW, length & -length)


class Product:
    """One measured product, and what the model needs of it for every tile and split."""

    def __init__(self, m, n, k, batch, accumulate, seconds, name, dev):
        self.shape, self.seconds = (m, n, k, batch), seconds
        self.held = hashlib.sha256(name.encode()).digest()[0] % 3 == 0 and dev.get("held", True)
        self.sums, self.columns = rows_start_at(k, dev), rows_start_at(n, dev)
        operand = dev["operand"] * (m * k + k * n) * batch
        self.memory = (operand + 2.0 * m * n * batch) / (dev["bandwidth"] * MEMORY_EFFICIENCY)
        self.accumulated = 8.0 * m * n * batch / dev["bandwidth"] if accumulate else 0.0
        self.kernels = []
        for tm, tn in TILES:
            tiles = -(-m // tm) * -(-n // tn) * batch
            for s in SPLITS:
                x = tiles * s / dev["sms"]
                partial = 8.0 * s * m * n * batch / dev["bandwidth"] if s > 1 else 0.0
                self.kernels.append((math.ceil(x), max(x, 1.0), 2.0 * tm * tn, k / s,
                                     1 / tm + 1 / tn, partial))


def read_rows(device, path):
    dev = DEVICES[device]
    rows = []
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            if device == "h200":
                m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
                seconds, batch, accumulate, name = float(row["seconds"]), 1, False, f"{m},{n},{k}"
            else:
                if not row["id"].startswith(dev["rows"]):
                    continue
                if row["op"] != dev.get("op", row["op"]):
                    continue
                if not row["dtype"].startswith(dev.get("dtype", "")):
                    continue
                m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
                batch, name = int(row["batch"] or 1), row["id"]
                seconds = 2.0 * m * n * k * batch / (float(row["measured_tflops"]) * 1e12)
                accumulate = row["accumulate"] == "True" and row["out_dtype"] == "fp32"
            if seconds >= dev["least"]:
                rows.append(Product(m, n, k, batch, accumulate, seconds, name, dev))
    return rows


def arithmetic(row, p, dev, share=1.0):
    """Seconds of GpuGemmTime; `share` is the alignment's."""
    efficiency, edge, depth, q, fixed, accumulation = p
    per_sm = dev["peak"] / dev["sms"] * efficiency * share
    best = math.inf
    for whole, any_part, work, k, edges, partial in row.kernels:
        t = (q * whole + (1 - q) * any_part) * work * (k + depth) * (1 + edge * edges) / per_sm
        best = min(best, t + partial)
    return best + fixed + accumulation * row.accumulated


def predict(row, p, dev, losses=()):
    share = 1.0
    for size, sums, columns in losses:
        if row.sums <= size:
            share = min(share, sums)
        if row.columns <= size:
            share = min(share, columns)
    return max(arithmetic(row, p, dev, share), row.memory)


def loss(rows, p, dev):
    return sum(abs(math.log(predict(r, p, dev) / r.seconds)) for r in rows) / len(rows)


def fit(rows, dev):
    """Coordinate descent with shrinking steps from a fixed start: same input, same output."""
    p, step = list(START), list(STEP)
    count = len(p) if dev.get("accumulate") else len(p) - 1
    if count < len(p):
        p[-1] = 0.0
    best = loss(rows, p, dev)
    for _ in range(12):
        moved = True
        while moved:
            moved = False
            for i in range(count):
                for sign in (1, -1):
                    q = list(p)
                    most = dev.get("most_fixed", HIGH[i]) if NAMES[i] == "fixed" else HIGH[i]
                    q[i] = min(most, max(LOW[i], p[i] + sign * step[i]))
                    value = loss(rows, q, dev)
                    if value < best - 1e-7:
                        p, best, moved = q, value, True
        step = [x / 2 for x in step]
    return [round(p[0], 4), round(p[1], 3), round(p[2], 2), round(p[3], 4), round(p[4], 9),
            round(p[5], 3)]


def median(values):
    return sorted(values)[len(values) // 2] if values else None


def alignment(rows, p, dev):
    """[(bytes, share along k, share along n)]: medians of predicted over measured time among rows
    that break only the one alignment; a dimension without rows takes the other's."""
    losses = []
    for size in (1, 2, 4, 8, 16):
        along = []
        for one, other in (("sums", "columns"), ("columns", "sums")):
            along.append(median([
                arithmetic(r, p, dev) / r.seconds for r in rows if not r.held
                and getattr(r, one) == size and getattr(r, other) >= FULL_ROW]))
        if along == [None, None]:
            continue
        sums, columns = (round(min(1.0, x if x is not None else along[1 - i]), 3)
                         for i, x in enumerate(along))
        losses.append([size, sums, columns])
    # A finer alignment never loses less.
    for coarse, fine in zip(losses[::-1], losses[-2::-1]):
        fine[1:] = [min(fine[1], coarse[1]), min(fine[2], coarse[2])]
    return losses


def residuals(rows, p, dev, losses=()):
    e = sorted(abs(predict(r, p, dev, losses) / r.seconds - 1) for r in rows)
    return len(e), round(e[len(e) // 2], 4), round(e[len(e) * 9 // 10], 4), round(e[-1], 3)


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in DEVICES:
        sys.exit(__doc__)
    dev = DEVICES[sys.argv[1]]
    rows = read_rows(sys.argv[1], sys.argv[2])
    aligned = [r for r in rows if min(r.sums, r.columns) >= FULL_ROW]
    p = fit([r for r in aligned if not r.held], dev)
    losses = alignment(rows, p, dev)
    units = ("ratio", "elements", "elements", "ratio", "us", "ratio")
    values = p[:4] + [round(p[4] * 1e6, 3)] + p[5:]
    count, middle, p90, worst = residuals(rows, p, dev, losses)
    lines = list(zip(NAMES[:5], values, units))
    lines += [("fit_rows", count, "count"), ("fit_median", middle, "ratio"),
              ("fit_p90", p90, "ratio")]
    if dev.get("accumulate"):
        lines.append((NAMES[5], values[5], units[5]))
    for key, value, unit in lines:
        print(f"    {key}: {{value: {value}, unit: {unit}, source: gemm-fit}}")
    if losses:
        print("    alignment:")
    for size, sums, columns in losses:
        print(f"      - {{bytes: {size}, sums: {{value: {sums}, unit: ratio, source: alignment}}, "
              f"columns: {{value: {columns}, unit: ratio, source: alignment}}}}")
    print(f"    # worst {worst}; rows, median, p90, worst of the fitted aligned ones:",
          residuals([r for r in aligned if not r.held], p, dev))
    for name, part in (("aligned", aligned), ("all", rows)):
        held = [r for r in part if r.held]
        if held:
            print(f"    # held out, {name}:", residuals(held, p, dev, losses))


if __name__ == "__main__":
    main()
