"""Starts of a store of many small records, and the memory that a start takes at most."""

import errno
import json
import os
import shutil
import signal
import statistics
import sys
import time

from benchlib.devices import LONGEST_REMOVAL, Devices, daemon_of, memory_bytes, passthrough_of, run, writer
from benchlib.page import about
from benchlib.trees import KEYS_A_DIRECTORY, tree_name


def look_natively(tree):
    """find -type f, and then one attribute of each file; seconds, and how many files."""
    start = time.perf_counter()
    listed = run("find", tree, "-type", "f", capture_output=True, timeout=LONGEST_REMOVAL).stdout.splitlines()
    for path in listed:
        try:
            os.getxattr(path, "user.fencefs")
        except OSError as e:  # a legacy record has none
            if e.errno != errno.ENODATA:
                raise
    return time.perf_counter() - start, len(listed)


def measure_recovery(device, args):
    """Rounds of starts of one store: {what: [seconds or bytes a round]}"""
    store, tree = os.path.join(device.mnt, "store"), os.path.join(device.mnt, "store/data/t/default/0")
    figures = {what: [] for what in ("find", "unclean", "unclean peak", "clean", "clean peak", "stop")}

    def start(what):
        begun = time.perf_counter()
        run(device.binary, "mount", store, device.fence, timeout=LONGEST_REMOVAL)
        figures[what].append(time.perf_counter() - begun)
        figures[f"{what} peak"].append(memory_bytes(daemon_of(store), "VmHWM"))
        with open(os.path.join(device.fence, ".fencefs", "status"), encoding="utf-8") as status:
            keys = json.load(status)["keys"]
        if keys != args.records:
            sys.exit(f"bench: {keys} of {args.records} keys after a start")

    def stop():
        begun = time.perf_counter()
        run(device.binary, "umount", device.fence, timeout=LONGEST_REMOVAL)
        figures["stop"].append(time.perf_counter() - begun)

    run(device.binary, "umount", device.fence)
    run(args.writer, store, str(args.records), str(args.record_bytes), timeout=LONGEST_REMOVAL)
    look_natively(tree)  # warms up
    for number in range(args.recovery_rounds):
        seconds, files = look_natively(tree)
        if files < args.records:
            sys.exit(f"bench: {files} files for {args.records} records")
        figures["find"].append(seconds)
        start("unclean")
        stop()
        start("clean")
        pid = daemon_of(store)
        os.kill(pid, signal.SIGKILL)
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.01)
        run("umount", "-l", device.fence)
        print(f"{device.kind}: recovery round {number + 1} of {args.recovery_rounds} done: "
              f"find {figures['find'][-1]:.2f} s, unclean {figures['unclean'][-1]:.2f} s, "
              f"clean {figures['clean'][-1]:.2f} s", file=sys.stderr, flush=True)
    return figures


def measure_attach(device, args, recovery):
    """The same of a legacy directory of as many records, attached to a store of nothing; added to its figures."""
    legacy, store = os.path.join(device.mnt, "legacy"), os.path.join(device.mnt, "attaching")
    figures = {what: [] for what in ("find", "attach", "attach peak", "again")}
    # The store's own records go: both would not fit.
    shutil.rmtree(os.path.join(device.mnt, "store"))
    run(args.writer, "--legacy", legacy, str(args.records), str(args.record_bytes), timeout=LONGEST_REMOVAL)
    look_natively(legacy)  # warms up
    for number in range(args.recovery_rounds):
        figures["find"].append(look_natively(legacy)[0])
        for what in ("attach", "again"):
            begun = time.perf_counter()
            run(device.binary, "mount", store, device.fence, "--attach-legacy", legacy, timeout=LONGEST_REMOVAL)
            figures[what].append(time.perf_counter() - begun)
            with open(os.path.join(device.fence, ".fencefs", "status"), encoding="utf-8") as status:
                keys = json.load(status)["keys"]
            if keys != args.records:
                sys.exit(f"bench: {keys} of {args.records} legacy keys after a start")
            if what == "attach":
                figures["attach peak"].append(memory_bytes(daemon_of(store), "VmHWM"))
            run(device.binary, "umount", device.fence, timeout=LONGEST_REMOVAL)
        shutil.rmtree(store)
        print(f"{device.kind}: attach round {number + 1} of {args.recovery_rounds} done: "
              f"find {figures['find'][-1]:.2f} s, attach {figures['attach'][-1]:.2f} s, "
              f"again {figures['again'][-1]:.2f} s", file=sys.stderr, flush=True)
    recovery.update({f"legacy {what}": figure for what, figure in figures.items()})


def recovery_table(by_kind, args):
    def spread(figures):
        return f"{min(figures):.2f} / {statistics.median(figures):.2f} / {max(figures):.2f}"

    def a_key(figures):
        return f"{max(figures) / args.records - len(tree_name(0)):.0f}"

    rows = {
        "find -type f and one getxattr a file, s": lambda f: spread(f["find"]),
        "start after an unclean stop, s": lambda f: spread(f["unclean"]),
        "**ratio of the two, round by round**":
            lambda f: spread([a / b for a, b in zip(f["unclean"], f["find"])]),
        "**start after a clean stop, s**": lambda f: spread(f["clean"]),
        "clean stop, s": lambda f: spread(f["stop"]),
        "**peak memory of a start after an unclean stop, bytes a key beside its name**": lambda f: a_key(f["unclean peak"]),
        "peak memory of a start after a clean stop, bytes a key beside its name": lambda f: a_key(f["clean peak"]),
        "legacy directory: find -type f and one getxattr a file, s": lambda f: spread(f["legacy find"]),
        "legacy directory: first start that attaches it, s": lambda f: spread(f["legacy attach"]),
        "**legacy directory: ratio of the two, round by round**":
            lambda f: spread([a / b for a, b in zip(f["legacy attach"], f["legacy find"])]),
        "legacy directory: the next start, s": lambda f: spread(f["legacy again"]),
        "**legacy directory: peak memory of a start, bytes a key beside its name**": lambda f: a_key(f["legacy attach peak"]),
    }
    lines = ["| | " + " | ".join(by_kind) + " |", "|---|" + "---:|" * len(by_kind)]
    lines += [f"| {name} | " + " | ".join(row(f) for f in by_kind.values()) + " |" for name, row in rows.items()]
    return "\n".join(lines)


def recovery_section(by_kind, args, passthrough):
    return f"""{about(args, passthrough)}
- method: {args.records:,} records of {args.record_bytes} bytes in one tenant, {KEYS_A_DIRECTORY:,} a directory; {args.recovery_rounds} rounds of find with getxattr
  (one process), start after a kill, clean stop, start after that, kill; all warm; a start is `fencefs mount` until it returns; the
  peak is the whole process's (VmHWM), divided by the keys, less {len(tree_name(0))} bytes of name; min / median / max over rounds.
  The legacy directory holds as many records in Mooncake's file-per-key layout; it is attached to an empty store, unmounted, attached again.

{recovery_table(by_kind, args)}
"""


def run_recovery(args):
    args.writer = writer()
    image_bytes = (2 << 30) + args.records * ((args.record_bytes + 4095) // 4096 * 4096 + 2048)
    by_kind, passthrough = {}, None
    for kind in args.on:
        # An inode a record, and one for each shard.
        with Devices([kind], args, image_bytes, ["-N", str(args.records + 200_000)]) as [device]:
            passthrough = passthrough_of(device)
            by_kind[kind] = measure_recovery(device, args)
            measure_attach(device, args, by_kind[kind])
    return recovery_section(by_kind, args, passthrough)
