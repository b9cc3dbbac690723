"""What the daemon holds in memory: for each key that it has, and after many came and went."""

import json
import os
import time

from benchlib.devices import Devices, daemon_of, memory_bytes, passthrough_of
from benchlib.page import about
from benchlib.trees import KEYS_A_DIRECTORY

QUARTERS = 4
# What the daemon may grow by from the first quarter of the churn to the last.
GROWTH = 1.05
NAME = "0000/0000000"


def name_of(n):
    return f"{n // KEYS_A_DIRECTORY:04}/{n:07}"


def create(tenant, first, count):
    for n in range(first, first + count):
        path = os.path.join(tenant, name_of(n))
        if n % KEYS_A_DIRECTORY == 0:
            os.mkdir(os.path.dirname(path))
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))


def delete(tenant, first, count):
    for n in range(first, first + count):
        path = os.path.join(tenant, name_of(n))
        os.unlink(path)
        if n % KEYS_A_DIRECTORY == KEYS_A_DIRECTORY - 1:
            os.rmdir(os.path.dirname(path))


def measure_memory(device, args):
    """Resident bytes at each moment, and the keys that the store says it has."""
    daemon = daemon_of(os.path.join(device.mnt, "store"))
    tenant, figures = os.path.join(device.fence, "default"), {}

    def note(moment):
        time.sleep(1)  # what the kernel forgets reaches the daemon a moment later
        with open(os.path.join(device.fence, ".fencefs", "status"), encoding="utf-8") as status:
            figures[moment] = (memory_bytes(daemon, "VmRSS"), json.load(status)["keys"])

    note("empty store")
    batch, done = args.churn_batch, 0
    for quarter in range(1, QUARTERS + 1):
        while done < args.churn * quarter // QUARTERS:
            create(tenant, done, batch)
            delete(tenant, done, batch)
            done += batch
        note(f"after {done:,} creates and deletes")
    create(tenant, done, args.held)
    note(f"with {args.held:,} keys")
    return figures


def memory_table(figures, args):
    lines = ["| moment | resident, KiB | keys |", "|---|---:|---:|"]
    lines += [f"| {moment} | {resident >> 10:,} | {keys:,} |" for moment, (resident, keys) in figures.items()]
    residents = [resident for resident, _ in figures.values()]
    first, last, held = residents[1], residents[QUARTERS], residents[-1]
    growth = last / first
    lines += ["", f"From the first quarter of the churn to the last: x {growth:.3f}; target at most x {GROWTH:g}: "
              f"{'met' if growth <= GROWTH else 'NOT MET'}."]
    if args.held:
        a_key = (held - last) / args.held - len(NAME)
        lines.append(f"A key beside its name of {len(NAME)} bytes, made through the mount and known to the kernel: {a_key:.0f} bytes. "
                     "What a start takes for 1,000,000 is above, with recovery.")
    return "\n".join(lines)


def run_memory(args):
    kind = args.on[0]
    inodes = args.held + args.churn_batch + 200_000
    with Devices([kind], args, (3 << 30) + inodes * 4096, ["-N", str(inodes)]) as [device]:
        figures = measure_memory(device, args)
        return f"""{about(args, passthrough_of(device))}
- method: on {kind}; through the mount, {args.churn:,} empty keys created and deleted, {args.churn_batch:,} at a time, {KEYS_A_DIRECTORY:,} a directory, every name
  once; then {args.held:,} more that stay; VmRSS of the daemon a second after each

{memory_table(figures, args)}
"""
