"""Values and names on the native directory, on fencefs, and on the peers, all on one device."""

import json
import os
import random
import statistics
import sys
import time

from benchlib import operations, peers, plot, targets
from benchlib.devices import DISK_JOURNAL_MIB, Devices, passthrough_of
from benchlib.page import about

IMAGE_BYTES = 6 << 30


def fill_list(directory, count):
    os.makedirs(os.path.join(directory, operations.LIST))
    for n in range(count):
        os.close(os.open(os.path.join(directory, operations.LIST, f"f{n:07}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))


def check_list(directory, count):
    listed = len(os.listdir(os.path.join(directory, operations.LIST)))
    if listed != count:
        sys.exit(f"bench: {listed} of {count} names are listed in {directory}")


def measure(places, args, kind):
    """{row: {target: [one figure a round]}}; a target that fails at a row has none there, and the page says so."""
    figures, failed = {}, set()
    rng = random.Random(args.seed)
    data = {name: os.urandom(size) for name, size in operations.SIZES.items()}
    for directory in places.values():
        for size in operations.SIZES:
            os.makedirs(operations.of_size(directory, size))
    for number in range(args.rounds + 1):
        for row, operation in operations.rows().items():
            order = list(places.items())
            rng.shuffle(order)
            for target, directory in order:
                if (row, target) in failed:
                    continue
                time.sleep(operations.PAUSE_SECONDS)
                try:
                    took = operation(directory, data)
                except OSError as e:
                    if target not in peers.NAMES:
                        raise
                    print(f"bench: {row} fails on {target}: {e}", file=sys.stderr)
                    failed.add((row, target))
                    continue
                if number:  # the first round warms up
                    figures.setdefault(row, {}).setdefault(target, []).append(took)
        print(f"{kind}: round {number} of {args.rounds} done", file=sys.stderr, flush=True)
    for row, target in failed:
        figures[row].pop(target, None)
    return figures


def measure_kind(kind, args, there):
    inodes = (len(there) + 2) * (args.listed + 10_000) + 100_000
    ext4_options = ["-N", str(inodes), "-J", f"size={DISK_JOURNAL_MIB}"]
    with Devices([kind], args, IMAGE_BYTES + inodes * 2048, ext4_options) as [device]:
        for directory in device.targets().values():
            fill_list(directory, args.listed)
        for peer in there.values():
            # Filled before it is mounted: that is the faster way, and the peer's list is not measured by it.
            device.add_peer(peer, lambda directory: fill_list(directory, args.listed))
        places = device.targets()
        for directory in places.values():
            check_list(directory, args.listed)
        figures = measure(places, args, kind)
        rows = {row: {target: [round(statistics.median(of), 3), round(min(of), 3)] for target, of in by_target.items()}
                for row, by_target in figures.items()}
        return {
            "about": about(args, passthrough_of(device)),
            "rounds": args.rounds, "seed": args.seed, "listed": args.listed,
            "peers": {name: there[name].version if name in there else None for name in peers.NAMES},
            "rows": rows,
        }


def number(figure):
    return f"{figure:.2f}" if figure < 10 else f"{figure:.1f}"


def table(measured):
    names = [name for name in peers.NAMES if measured["peers"][name]]
    columns = ["native", "fencefs", *names]
    head = ["operation", *columns, *(f"fencefs / {name}" for name in ["native", *names]), "target", "median meets it"]
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (2 * len(columns) - 1) + "|---|---|"]
    rows = measured["rows"]
    for row, figures in rows.items():
        cells = [f"{number(figures[c][0])} ({number(figures[c][1])})" if c in figures else "fails" for c in columns]
        cells += [f"{figures['fencefs'][0] / figures[c][0]:.2f}" if c in figures else "-" for c in columns if c != "fencefs"]
        lines.append(f"| {row} | {' | '.join(cells)} | {' | '.join(targets.verdict(rows, row))} |")
    return "\n".join(lines)


def throughputs(measured):
    """The rows of several clients once more, the way round that one asks for them."""
    columns = ["native", "fencefs", *(name for name in peers.NAMES if measured["peers"][name])]
    lines = [f"| operations a second, all clients | {' | '.join(columns)} |", "|---" + "|---:" * len(columns) + "|"]
    for operation in ("get", "put"):
        for count in operations.CLIENTS:
            row = operations.clients_row(operation, count)
            figures = measured["rows"][row]
            cells = (f"{1e6 / figures[c][0]:,.0f}" if c in figures else "fails" for c in columns)
            lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(measured):
    verdicts = [targets.verdict(measured["rows"], row)[1] for row in measured["rows"]]
    said = [word for text in verdicts for word in text.split("; ") if word]
    met, missed = said.count("met"), said.count("NOT MET")
    return f"Rows of targets met on all counts or missed on some: {met} met, {missed} not met, {said.count('not compared')} not compared."


def section(by_kind, plot_name):
    text = f"""A figure is microseconds, the median over rounds (the least in brackets); a round's own is the median of its operations.
Put = temporary file, write, close, rename; get = open, read, close, page cache warm. readdir, first = getdents64 of the whole
directory after a name came and went in it; again = with nothing changed since the last. Clients are processes on one mount,
for {operations.CLIENT_SECONDS:g} s a round, each with names of its own to put; their figure is the inverse of what they do together. "Native" as
a target is at most {targets.NATIVE:g} x native.

![fencefs and its peers, as multiples of native]({plot_name})
"""
    for kind, measured in by_kind.items():
        there = [version for version in measured["peers"].values() if version]
        missing = [name for name, version in measured["peers"].items() if not version]
        text += f"""
### {kind}

{measured["about"]}
- peers: {"; ".join(there) or "none"}{f"; not there: {', '.join(missing)}" if missing else ""}
- method: loop image on tmpfs; {measured["rounds"]} rounds after one to warm up, all targets interleaved in a shuffled order (seed {measured["seed"]}),
  {operations.PAUSE_SECONDS:g} s apart; {measured["listed"]:,} names in the listed directory

{table(measured)}

{throughputs(measured)}

{summary(measured)}
"""
    return text


def read_json(path):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as figures:
        return json.load(figures).get("values", {})


def write_json(path, by_kind):
    with open(path, "w", encoding="ascii") as figures:
        json.dump({"values": by_kind}, figures, indent=1)
        figures.write("\n")


def run_values(args):
    """The section, of what was measured now and, of a kind that was not, before."""
    there = peers.found(args)
    now = {kind: measure_kind(kind, args, there) for kind in args.on}
    beside = os.path.splitext(args.output)[0] if args.output != "-" else None
    before = read_json(args.baseline)
    by_kind = dict(sorted((before | now).items())) if beside else now
    args.measured = now
    if beside and not args.check:
        write_json(f"{beside}.json", by_kind)
        plot.draw(by_kind, f"{beside}.svg")
    return section(by_kind, f"{os.path.basename(beside or 'performance')}.svg")
