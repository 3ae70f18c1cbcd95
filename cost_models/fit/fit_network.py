#!/usr/bin/env python3
"""Fits how collectives use a network: `networks` of a device profile, from all-reduces of 2 hosts or more.

    time = latency + 2 ceil(log2 hosts) (overhead + hop) + max(local, T + ramp T / (T + ramp_half))
    T = 2 (hosts - 1) / hosts bytes / (bandwidth of a host's NICs efficiency)

which is PriceGpu of cost_models/cost_model.cc for its hierarchical algorithm; `local` is the ring, or
the switches' reduction, with the curve of fit_collectives.py. A third of the rows, in the order of
hashes, is held out. Standard library only; deterministic; prints the fields of the YAML.

    fit_network.py a100-efa DATA/published/comm.csv
    (likewise h100-efa, b200-efa, h100-infiniband)
"""
import csv
import hashlib
import math
import sys

import fit_collectives

HOP = 2e-6  # NIC to NIC as the cluster files assume it, seconds
# Rows, hosts' bandwidth in bytes/s, in-switch reduction inside the hosts; h100-efa is bound by NVLink:
# its share of the NICs cannot be seen and stays as on the other fabrics of that kind.
SETS = {
    "a100-efa": dict(device="a100", ids=("AWS-P4DE-",), bandwidth=50e9, in_switch=False),
    "h100-efa": dict(device="h100", ids=("AWS-P5-",), bandwidth=400e9, in_switch=True,
                     efficiency=0.85),
    "b200-efa": dict(device="b200", ids=("STAS-B200-",), bandwidth=400e9, in_switch=True),
    # One GPU on each of two hosts, NCCL's tree.
    "h100-infiniband": dict(device="h100", ids=tuple(f"ISSUE-00{i}" for i in range(25, 30)),
                            bandwidth=50e9, in_switch=True, ramp=False),
}
LEAST_BYTES = 1 << 18


class Row:
    def __init__(self, row, bandwidth):
        self.size, self.ranks, self.hosts = int(row["bytes"]), int(row["gpus"]), int(row["nodes"])
        self.ideal = 2 * (self.hosts - 1) / self.hosts * self.size / bandwidth
        if row["time_us"]:
            self.seconds = float(row["time_us"]) * 1e-6
        else:
            sent = fit_collectives.wire("all_reduce", self.size, self.ranks)[0]
            self.seconds = sent / (float(row["busbw_GBps"]) * 1e9)
        self.hash = hashlib.sha256(row["id"].encode()).digest()
        self.held = False


def read_rows(chosen, path):
    rows = []
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            if row["id"].startswith(chosen["ids"]) and int(row["nodes"] or 1) > 1:
                if int(row["bytes"]) >= LEAST_BYTES:
                    rows.append(Row(row, chosen["bandwidth"]))
    for i, row in enumerate(sorted(rows, key=lambda r: r.hash)):
        row.held = i % 3 == 2
    return rows


def set_local(rows, chosen, path):
    """Gives every row its time inside the hosts: fixed and transfer."""
    device = chosen["device"]
    dev = fit_collectives.DEVICES[device]
    inside = [r for r in fit_collectives.read_rows(device, path) if r.kind == "all_reduce"]
    curve = fit_collectives.curve_of(inside, "all_reduce", dev["link"], 0.0)
    for row in rows:
        g = row.ranks // row.hosts
        steps = 2 if chosen["in_switch"] else 2 * (g - 1)
        row.fixed = dev["latency"] + max(steps - 2, 0) * dev["step"]
        sent = 2 * (g - 1) / g * row.size
        at = min(max(sent, curve[0][0]), curve[-1][0])
        row.local = sent / dev["link"] / fit_collectives.between(curve, at) if g > 1 else 0.0


def predict(row, p):
    efficiency, overhead, ramp, half = p
    transfer = row.ideal / efficiency
    transfer += ramp * transfer / (transfer + half) if ramp > 0 else 0.0
    steps = 2 * math.ceil(math.log2(row.hosts))
    return row.fixed + steps * (overhead + HOP) + max(row.local, transfer)


def fit(rows, chosen):
    """Coordinate descent from several starts."""
    free = [1] + ([] if "efficiency" in chosen else [0]) + ([2, 3] if chosen.get("ramp", True) else [])

    def loss(p):
        return sum(abs(math.log(predict(r, p) / r.seconds)) for r in rows) / len(rows)

    found = None
    for ramp in (100e-6, 400e-6, 800e-6):
        p = [chosen.get("efficiency", 0.8), 30e-6, ramp if chosen.get("ramp", True) else 0.0, 150e-6]
        step = [0.05, 20e-6, 100e-6, 60e-6]
        best = loss(p)
        for _ in range(14):
            moved = True
            while moved:
                moved = False
                for i in free:
                    for sign in (1, -1):
                        q = list(p)
                        q[i] = min((1.0, 1e-3, 1e-2, 1e-2)[i],
                                   max((0.2, 0.0, 0.0, 1e-6)[i], p[i] + sign * step[i]))
                        value = loss(q)
                        if value < best - 1e-9:
                            p, best, moved = q, value, True
            step = [x / 2 for x in step]
        if found is None or best < found[0] - 1e-9:
            found = best, p
    return [round(found[1][0], 3)] + [round(x, 7) for x in found[1][1:]]


def errors(rows, p):
    e = sorted(abs(predict(r, p) / r.seconds - 1) for r in rows)
    return f"{len(e)} rows {e[len(e) // 2]:.3f}/{e[len(e) * 9 // 10]:.3f}" if e else "0 rows"


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in SETS:
        sys.exit(__doc__)
    chosen = SETS[sys.argv[1]]
    rows = read_rows(chosen, sys.argv[2])
    set_local(rows, chosen, sys.argv[2])
    fitted = [r for r in rows if not r.held]
    p = fit(fitted, chosen)
    for name, value, unit in (("efficiency", p[0], "ratio"), ("overhead", round(p[1] * 1e6, 1), "us"),
                              ("ramp", round(p[2] * 1e6, 1), "us"),
                              ("ramp_half", round(p[3] * 1e6, 1), "us")):
        print(f"      {name}: {{value: {value}, unit: {unit}, source: network}}")
    print(f"      # median/p90 {errors(fitted, p)}, held out {errors([r for r in rows if r.held], p)}")


if __name__ == "__main__":
    main()
