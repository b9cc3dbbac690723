"""What the figures of the values part should be, and whether they are; and whether they got worse."""

import collections

from benchlib.operations import CLIENTS, clients_row

# How much a ratio to the native filesystem may grow from one run to the next.
TOLERANCE = 1.25
# "Native" leaves room for what two runs of the same thing differ by.
NATIVE = 1.1

Target = collections.namedtuple("Target", "text peer holds")
# `holds` is asked with fencefs's figure, and the other's: the native one, the peer's, or that of one client.


def at_most(factor, text=None):
    return Target(text or f"at most {factor:g} x native", "native", lambda fence, other: fence <= factor * other)


def at_most_more(microseconds):
    return Target(f"at most native + {microseconds} us", "native", lambda fence, other: fence <= other + microseconds)


def ahead(factor=None):
    text = f"at most {factor:g} x passthrough_hp" if factor else "ahead of passthrough_hp"
    return Target(text, "passthrough_hp", lambda fence, other: fence <= factor * other if factor else fence < other)


def targets():
    """{row: what it should be}"""
    wanted = {
        "put 64 KiB": [at_most(2.2), ahead()],
        "put 1 MiB": [at_most(1.3), ahead()],
        "mmap read 1 MiB": [at_most(1.5)],
        "stat, cached": [at_most(NATIVE, "native")],
        "negative look-up, cached": [at_most(NATIVE, "native")],
        "readdir, first": [at_most(1, "at most native")],
        "readdir, again": [at_most(0.2)],
        "create and unlink, empty": [at_most(3), ahead()],
    }
    for size in ("4 KiB", "64 KiB"):
        wanted[f"get {size}"] = [at_most_more(25), ahead(0.6)]
    for size in ("1 MiB", "4 MiB"):
        wanted[f"get {size}"] = [at_most_more(35), ahead(0.9)]
    for operation in ("get", "put"):
        wanted[clients_row(operation, CLIENTS[-1])] = [
            Target("throughput not below that of 1 client", clients_row(operation, 1), lambda fence, other: fence <= other)]
    return wanted


def verdict(rows, row):
    """The target of a row in words, and whether the medians meet it; each part of it by itself where they differ."""
    wanted = targets().get(row, [])
    said = []
    for target in wanted:
        figures = rows[row]
        fence = figures.get("fencefs")
        other = rows.get(target.peer, {}).get("fencefs") if target.peer in rows else figures.get(target.peer)
        if fence is None or other is None:
            said.append("not compared")
        else:
            said.append("met" if target.holds(fence[0], other[0]) else "NOT MET")
    text = "; ".join(target.text for target in wanted)
    return text, said[0] if len(set(said)) == 1 else "; ".join(said)


def worse(before, now):
    """What got worse by more than the tolerance, one line each. Both the ratio of the medians and that of the minima must
    have: a machine that was busy for a moment moves but one of them."""
    lines, compared = [], 0
    for kind, measured in now.items():
        old_rows = before.get(kind, {}).get("rows", {})
        for row, figures in measured["rows"].items():
            old = old_rows.get(row, {})
            if any(figure.get(target) is None for figure in (old, figures) for target in ("native", "fencefs")):
                continue
            compared += 1
            ratios = [(old["fencefs"][n] / old["native"][n], figures["fencefs"][n] / figures["native"][n]) for n in (0, 1)]
            if all(new > TOLERANCE * was for was, new in ratios):
                was, new = ratios[0]
                lines.append(f"{row} on {kind}: {new:.2f} x native, was {was:.2f}")
    return lines, compared
