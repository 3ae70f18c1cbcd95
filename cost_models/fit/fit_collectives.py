#!/usr/bin/env python3
"""Efficiency curves of collectives from measured times, for the `collectives` of a device profile.

A time of n ranks on one host is taken apart as cost_models/cost_model.cc puts it together:

    time = latency + max(steps - 2, 0) step
           + bytes sent by a rank / (link bandwidth efficiency(bytes) (1 - rank_loss / n))

The curve is the median over the series (source and number of ranks) of the efficiency between the
neighbouring sizes; rank_loss is the one of least error, 0 where only one n was measured. A third of the
rows, in the order of hashes, is held out. Standard library only; deterministic; prints each kind's
curve with the median and 90th percentile of the error over fitted / held-out rows.

    fit_collectives.py h200 DATA/h200/h200x2_nccl.csv
    fit_collectives.py a100 DATA/published/comm.csv      (likewise v100, h100, b200, gb200)
"""
import csv
import hashlib
import sys

# Bandwidth of one GPU's links in one direction, bytes/s; latency and step of the model, seconds.
DEVICES = {
    "h200": dict(link=450e9, latency=11e-6, step=0.45e-6),
    "h100": dict(link=450e9, latency=17e-6, step=0.45e-6),
    "a100": dict(link=300e9, latency=30e-6, step=3e-6),
    "b200": dict(link=900e9, latency=17e-6, step=0.45e-6),
    "gb200": dict(link=900e9, latency=17e-6, step=0.45e-6),
    "v100": dict(link=150e9, latency=30e-6, step=0.45e-6),
}
# Rows of the published table: prefixes of ids, in-switch reduction, ranks (None: any).
PUBLISHED = {
    "h100": (("DGXC-",), True, 8),
    "a100": (("SBENCH-A100-", "STAS-A100-", "VTRAIN-A100-"), False, None),
    "b200": (("STAS-B200-",), True, 8),
    "gb200": (("CW-GB200-", "STAS-B200-"), True, None),
    # Fewer ranks of the cube of V100s have fewer links: the cluster's graph says how many.
    "v100": (("VTRAIN-V100-",), False, 8),
}
ONE_NVLINK_DOMAIN = {"CW-GB200"}  # sources whose hosts are joined by NVLink
NAMES = {"alltoall": "all_to_all", "sendrecv": None, "reduce": None}
SIZES = [1 << s for s in (20, 22, 24, 26, 28, 30, 33)]


def wire(kind, size, n):
    """Bytes that each rank sends, and steps, by a ring."""
    if kind == "all_reduce":
        return 2 * (n - 1) / n * size, 2 * (n - 1)
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) / n * size, n - 1
    return size, 1 if kind == "send" else n - 1


class Row:
    def __init__(self, series, kind, ranks, in_switch, size, seconds, name, dev):
        self.series, self.kind, self.ranks, self.in_switch = series, kind, ranks, in_switch
        self.sent, steps = wire(kind, size, ranks)
        self.seconds = seconds
        self.fixed = dev["latency"] + max((2 if in_switch else steps) - 2, 0) * dev["step"]
        self.hash = hashlib.sha256(name.encode()).digest()
        self.held = False

    def efficiency(self, link):
        return self.sent / link / (self.seconds - self.fixed)


def read_rows(device, path):
    dev = DEVICES[device]
    rows = []
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            if device == "h200":
                # The rows below 16 MiB show how fast the host launched.
                if int(row["bytes"]) >= 1 << 24 and NAMES.get(row["op"], row["op"]):
                    rows.append(Row("h200", NAMES.get(row["op"], row["op"]), int(row["ranks"]), False,
                                    int(row["bytes"]), float(row["seconds"]),
                                    row["op"] + row["bytes"], dev))
                continue
            prefixes, in_switch, ranks = PUBLISHED[device]
            source = row["id"].rsplit("-", 1)[0]
            if not row["id"].startswith(prefixes) or not row["bytes"]:
                continue
            if row["nodes"] != "1" and source not in ONE_NVLINK_DOMAIN:
                continue
            kind = NAMES.get(row["collective"], row["collective"])
            n, size = int(row["gpus"]), int(row["bytes"])
            if kind is None or (ranks and n != ranks) or size < SIZES[0]:
                continue
            if row["time_us"]:
                seconds = float(row["time_us"]) * 1e-6
            elif row["busbw_GBps"]:
                seconds = wire(kind, size, n)[0] / (float(row["busbw_GBps"]) * 1e9)
            else:
                continue
            rows.append(Row((source, n), kind, n, in_switch, size, seconds, row["id"], dev))
    for i, row in enumerate(sorted(rows, key=lambda r: r.hash)):
        row.held = i % 3 == 2 and device != "h200"
    return rows


def between(points, x):
    """Linear in bytes / efficiency between neighbouring points; None outside of them."""
    for (x0, e0), (x1, e1) in zip(points, points[1:]):
        if x0 <= x <= x1:
            part = (x - x0) / (x1 - x0) if x1 > x0 else 0.0
            return x / (x0 / e0 + part * (x1 / e1 - x0 / e0))
    return None


def curve_of(rows, kind, link, rank_loss):
    """[(bytes sent, efficiency)]; bytes and bytes / efficiency rise."""
    series = {}
    for r in rows:
        if r.seconds - r.fixed > 0.2 * r.seconds:
            share = 1 - rank_loss / r.ranks
            series.setdefault(r.series, []).append((r.sent, r.efficiency(link) / share))
    most = max(r.ranks for r in rows)
    curve = []
    for size in SIZES:
        sent = wire(kind, size, most)[0]
        found = sorted(e for points in series.values()
                       if (e := between(sorted(points), sent)) is not None)
        if not found:
            continue
        point = [round(sent), round(found[len(found) // 2], 3)]
        if curve and point[0] / point[1] < curve[-1][0] / curve[-1][1]:
            continue  # noise: more bytes never take less
        curve.append(point)
    return curve


def predict(row, curve, link, rank_loss):
    if row.sent <= curve[0][0]:
        efficiency = curve[0][1]
    elif row.sent >= curve[-1][0]:
        efficiency = curve[-1][1]
    else:
        efficiency = between(curve, row.sent)
    return row.fixed + row.sent / (link * efficiency * (1 - rank_loss / row.ranks))


def errors(rows, *model):
    e = sorted(abs(predict(r, *model) / r.seconds - 1) for r in rows)
    return f"{len(e)} rows {e[len(e) // 2]:.3f}/{e[len(e) * 9 // 10]:.3f}" if e else "0 rows"


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in DEVICES:
        sys.exit(__doc__)
    link = DEVICES[sys.argv[1]]["link"]
    groups = {}
    for row in read_rows(sys.argv[1], sys.argv[2]):
        groups.setdefault((row.kind, row.in_switch), []).append(row)
    for (kind, in_switch), rows in sorted(groups.items()):
        fitted = [r for r in rows if not r.held]
        best = None
        losses = [i / 20 for i in range(20)] if len({r.ranks for r in rows}) > 2 else [0.0]
        for rank_loss in losses:
            curve = curve_of(fitted, kind, link, rank_loss)
            off = sum(abs(predict(r, curve, link, rank_loss) / r.seconds - 1) for r in fitted)
            if best is None or off < best[0] - 1e-9:
                best = off, curve, rank_loss
        _, curve, rank_loss = best
        print(f"{kind} {'in-switch' if in_switch else 'ring'} rank_loss {rank_loss}: "
              f"{errors(fitted, curve, link, rank_loss)}, held out "
              f"{errors([r for r in rows if r.held], curve, link, rank_loss)}")
        for sent, efficiency in curve:
            print(f"        - {{bytes: {sent}, efficiency: {{value: {efficiency}, unit: ratio, "
                  f"source: nccl}}}}")


if __name__ == "__main__":
    main()
