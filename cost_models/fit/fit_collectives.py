#!/usr/bin/env python3
"""Efficiency curves of collectives from measured times, for the `collectives` of a device profile.

A time of n ranks on one host is taken apart as cost_models/cost_model.cc puts it together:

    time = latency + max(steps - 2, 0) step + bytes sent by a rank / (link bandwidth efficiency)

Prints, for each kind, the efficiency at the measured sizes. Standard library only.

    fit_collectives.py h200 DATA/h200/h200x2_nccl.csv
    fit_collectives.py a100 DATA/published/comm.csv      (likewise v100, h100, b200)
"""
import csv
import sys

# Bandwidth of one GPU's links in one direction, bytes/s; latency and step of the model, seconds.
DEVICES = {
    "h200": dict(link=450e9, latency=11e-6, step=0.45e-6),
    "h100": dict(link=450e9, latency=17e-6, step=0.45e-6),
    "a100": dict(link=300e9, latency=30e-6, step=0.45e-6),
    "b200": dict(link=900e9, latency=17e-6, step=0.45e-6),
    "v100": dict(link=150e9, latency=30e-6, step=0.45e-6),
}
# Rows of the published table: (prefix of the id, ranks, in-switch reduction).
PUBLISHED = {
    "h100": ("DGXC-", 8, True),
    "a100": ("SBENCH-A100-", 8, False),
    "b200": ("STAS-B200-", 8, True),
    "v100": ("VTRAIN-V100-", 8, False),
}
NAMES = {"alltoall": "all_to_all", "sendrecv": None, "reduce": None}
SIZES = [1 << s for s in (20, 22, 24, 26, 28, 30, 33)]


def wire(kind, size, n):
    """Bytes that each rank sends, and steps, by a ring."""
    if kind == "all_reduce":
        return 2 * (n - 1) / n * size, 2 * (n - 1)
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) / n * size, n - 1
    return size, 1 if kind == "send" else n - 1


def read_rows(device, path):
    """Rows as (kind, ranks, in-switch, bytes, seconds)."""
    rows = []
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            if device == "h200":
                # The rows below 16 MiB show how fast the host launched.
                if int(row["bytes"]) >= 1 << 24:
                    rows.append((row["op"], int(row["ranks"]), False, int(row["bytes"]),
                                 float(row["seconds"])))
                continue
            prefix, ranks, in_switch = PUBLISHED[device]
            if not row["id"].startswith(prefix) or row["gpus"] != str(ranks) or not row["bytes"]:
                continue
            size = int(row["bytes"])
            if row["time_us"]:
                seconds = float(row["time_us"]) * 1e-6
            elif row["busbw_GBps"]:
                seconds = wire(row["collective"], size, ranks)[0] / (float(row["busbw_GBps"]) * 1e9)
            else:
                continue
            rows.append((row["collective"], ranks, in_switch, size, seconds))
    return [(NAMES.get(k, k), *rest) for k, *rest in rows if NAMES.get(k, k)]


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in DEVICES:
        sys.exit(__doc__)
    dev = DEVICES[sys.argv[1]]
    curves = {}
    for kind, ranks, in_switch, size, seconds in read_rows(sys.argv[1], sys.argv[2]):
        if size not in SIZES:
            continue
        sent, steps = wire(kind, size, ranks)
        if in_switch:
            steps = 2
        transfer = seconds - dev["latency"] - max(steps - 2, 0) * dev["step"]
        if transfer > 0.2 * seconds:
            curves.setdefault((kind, in_switch), []).append(
                (round(sent), round(sent / dev["link"] / transfer, 3)))
    for (kind, in_switch), points in sorted(curves.items()):
        print(kind, "in-switch" if in_switch else "ring", sorted(points))


if __name__ == "__main__":
    main()
