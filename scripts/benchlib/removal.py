"""Removal of a whole tenant beside rm -rf of the same tree."""

import errno
import json
import multiprocessing
import os
import select
import shutil
import statistics
import sys
import time

from benchlib.devices import DISK_JOURNAL_MIB, LONGEST_REMOVAL, Devices, passthrough_of, run
from benchlib.page import about
from benchlib.trees import KEYS_A_DIRECTORY, fill, records_below

# There are no threads here whose locks a forked process would inherit.
FORK = multiprocessing.get_context("fork")


def in_parallel(function, calls):
    processes = [FORK.Process(target=function, args=call) for call in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != 0:
            sys.exit(f"bench: {function.__name__} failed")


class Beside:
    """A process of its own that goes on until it is asked for its result."""

    def __init__(self, function, *arguments):
        self.ours, theirs = FORK.Pipe()
        self.process = FORK.Process(target=function, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.ours.recv()  # it has begun

    def result(self, seconds=60):
        self.ours.send(None)
        if not self.ours.poll(seconds):
            sys.exit("bench: a process beside the removal does not end")
        result = self.ours.recv()
        self.process.join()
        return result


def put_steadily(pipe, directory, data, pace):
    """Puts at a pace; how long each took, in seconds."""
    os.makedirs(directory)
    temporary = os.path.join(directory, ".tmp")
    took, n = [], 0
    due = time.perf_counter()
    pipe.send(None)
    while not pipe.poll():
        start = time.perf_counter()
        with open(temporary, "xb", buffering=0) as key:
            key.write(data)
        os.rename(temporary, os.path.join(directory, f"k{n}"))
        now = time.perf_counter()
        took.append(now - start)
        n += 1
        due = max(due + pace, now)
        time.sleep(due - now)
    pipe.send(took)


def write_until_accepted(pipe, directory):
    """New writes into the tenant that is removed: when each began and ended, and the epoch it was accepted under."""
    accepted, n = [], 0
    pipe.send(None)
    while not pipe.poll():
        n += 1
        key = os.path.join(directory, f"new{n}")
        start = time.perf_counter()
        try:
            with open(key, "xb", buffering=0) as new:
                new.write(b"new")
            accepted.append((start, time.perf_counter(), int(os.getxattr(key, "user.fencefs.epoch"))))
        except OSError as e:
            # Refused while the scope is closed; admitted before it closed; removed before we asked for its epoch.
            if e.errno not in (errno.EBUSY, errno.ESTALE, errno.ENOENT, errno.ENODATA):
                raise
        time.sleep(0.001)
    pipe.send(accepted)


def remove_all(fence, tenant):
    """Submits and waits for the acknowledgement: the generation, and the moments of submit, answer and end."""
    control = os.open(os.path.join(fence, ".fencefs", "control"), os.O_RDWR)
    readable = select.poll()
    readable.register(control, select.POLLIN)
    moments, text = [time.perf_counter()], b""
    os.write(control, f"remove-all tenant={tenant}\n".encode())
    while text.count(b"\n") < 2:
        if text.count(b"\n") == len(moments):
            moments.append(time.perf_counter())
        if not readable.poll(LONGEST_REMOVAL * 1000):
            sys.exit("bench: the removal is not acknowledged")
        text += os.read(control, 65536)
    moments.append(time.perf_counter())
    os.close(control)
    last = json.loads(text.splitlines()[-1])
    if last.get("state") != "complete":
        sys.exit(f"bench: the removal is not complete: {last}")
    return last["generation"], moments[0], moments[-1]


def remove_natively(tree):
    """rm -rf, and syncfs, since a removal ends with one; seconds."""
    above = os.path.dirname(tree)
    start = time.perf_counter()
    run("rm", "-rf", tree, timeout=LONGEST_REMOVAL)
    run("sync", "-f", above, timeout=LONGEST_REMOVAL)
    return time.perf_counter() - start


def make_alike(tree, is_cold):
    """Written back, and either known to the kernel to the last inode or not at all."""
    run("sync", "-f", tree, timeout=LONGEST_REMOVAL)
    if is_cold:
        with open("/proc/sys/vm/drop_caches", "w", encoding="utf-8") as caches:
            caches.write("3")
    else:
        run("find", tree, "-size", "+1G", timeout=LONGEST_REMOVAL)


def rank(figures, share):
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Figures:
    """Of the removal part: lists over rounds, in seconds; `puts` by what went on meanwhile."""

    def __init__(self):
        self.puts = {"nothing": [], "remove-all": [], "rm": []}
        self.totals = {(what, alone): [] for what in ("remove-all", "rm") for alone in (False, True)}
        self.until_accepted, self.closed, self.load = [], [], []
        self.through_mount = None


def measure_removal(device, args):
    """Rounds of both removals of two equal trees."""
    figures, data = Figures(), os.urandom(args.key_bytes)
    tenant, other = os.path.join(device.fence, "a"), os.path.join(device.fence, "b")
    second_store = os.path.join(device.mnt, "second")
    os.mkdir(other)

    def puts_during(what, removal):
        directory = os.path.join(other, what)
        putting = Beside(put_steadily, directory, data, args.pace / 1000)
        result = removal()
        figures.puts[what] += putting.result()
        run("rm", "-rf", directory, timeout=LONGEST_REMOVAL)
        return result

    def fenced_beside_puts():
        puts_during("nothing", lambda: time.sleep(args.quiet))
        writing = Beside(write_until_accepted, tenant)
        generation, submitted, ended = puts_during("remove-all", lambda: remove_all(device.fence, "a"))
        time.sleep(1)  # whoever waits for the fence is let in by then
        accepted = writing.result()
        first = next(end for _, end, epoch in accepted if epoch >= generation)
        before = [end for _, end, epoch in accepted if epoch < generation]
        figures.until_accepted.append(first - submitted)
        figures.closed.append(first - max(before, default=submitted))
        return submitted, ended

    def fenced(alone):
        make_alike(os.path.join(device.mnt, "store/data/t/a"), args.cold)
        submitted, ended = remove_all(device.fence, "a")[1:] if alone else fenced_beside_puts()
        figures.totals["remove-all", alone].append(ended - submitted)
        if records_below(os.path.join(device.mnt, "store/data/.trash")):
            sys.exit("bench: remove-all left records")

    def native(alone):
        tree = os.path.join(second_store, "data/t/a")
        make_alike(tree, args.cold)
        seconds = remove_natively(tree) if alone else puts_during("rm", lambda: remove_natively(tree))
        figures.totals["rm", alone].append(seconds)

    rounds = 2 * args.removal_rounds
    for number in range(rounds):
        alone = number % 2 == 1
        run(device.binary, "mount", second_store, device.second)
        in_parallel(fill, [(os.path.join(top, "a"), args.keys, data) for top in (device.fence, device.second)])
        run(device.binary, "umount", device.second)
        trees = [records_below(os.path.join(device.mnt, store, "data/t/a")) for store in ("store", "second")]
        if trees[0] != trees[1]:
            sys.exit(f"bench: the trees differ: {trees}")
        figures.load.append(os.getloadavg()[0])
        # Every other round of either kind the other way about.
        for removal in (fenced, native) if number // 2 % 2 == 0 else (native, fenced):
            removal(alone)
        run("rm", "-rf", tenant)
        shutil.rmtree(second_store)
        both = {what: f"{figures.totals[what, alone][-1]:.2f} s" for what in ("remove-all", "rm")}
        when = "alone" if alone else "beside puts"
        print(f"{device.kind}: removal round {number + 1} of {rounds}, {when}: {both}", file=sys.stderr, flush=True)
    fill(tenant, args.keys, data)
    make_alike(os.path.join(device.mnt, "store/data/t/a"), args.cold)
    figures.through_mount = remove_natively(tenant)
    return figures


def removal_table(by_kind):
    def spread(figures):
        return f"{min(figures):.3f} / {statistics.median(figures):.3f} / {max(figures):.3f}"

    lines = ["| | " + " | ".join(by_kind) + " |", "|---|" + "---:|" * len(by_kind)]
    rows = {}
    for alone, when in ((True, "store otherwise idle"), (False, "other tenant writing")):
        rows |= {
            f"remove-all, submit to acknowledged, {when}, s": lambda f, alone=alone: spread(f.totals["remove-all", alone]),
            f"rm -rf and syncfs of the same tree, {when}, s": lambda f, alone=alone: spread(f.totals["rm", alone]),
            f"**ratio of the two, round by round, {when}**": lambda f, alone=alone: spread(
                [a / b for a, b in zip(f.totals["remove-all", alone], f.totals["rm", alone])]),
        }
    rows |= {
        "rm -rf and syncfs through the mount, once, s": lambda f: f"{f.through_mount:.3f}",
        "submit to the first new write accepted, s": lambda f: spread(f.until_accepted),
        "last write of the old epoch to first of the new, s": lambda f: spread(f.closed),
    }
    for what, name in (("nothing", "nothing else"), ("remove-all", "remove-all"), ("rm", "rm -rf")):
        rows[f"another tenant's put during {name}, median / p99 / max, ms (number)"] = lambda f, what=what: (
            " / ".join(f"{1000 * rank(f.puts[what], share):.2f}" for share in (0.5, 0.99, 1)) + f" ({len(f.puts[what])})")
    for what, name in (("remove-all", "remove-all"), ("rm", "rm -rf")):
        rows[f"**ratio of its p99 during {name}**"] = lambda f, what=what: (
            f"{rank(f.puts[what], 0.99) / rank(f.puts['nothing'], 0.99):.2f}")
    rows["load of the machine before each round"] = lambda f: spread(f.load)
    for name, row in rows.items():
        lines.append(f"| {name} | " + " | ".join(row(f) for f in by_kind.values()) + " |")
    return "\n".join(lines)


def removal_section(by_kind, args, passthrough):
    return f"""{about(args, passthrough)}
- method: {args.keys:,} keys of {args.key_bytes:,} bytes, {KEYS_A_DIRECTORY:,} a directory, written through the mount; the same
  tree by a second store on the same device (ext4 with the journal of a large disk, {DISK_JOURNAL_MIB} MiB), at the same
  time, its daemon ended; each synced and {'cold (caches dropped)' if args.cold else 'warm'} before its removal; {args.removal_rounds} rounds with the store otherwise idle, and
  {args.removal_rounds} in which another tenant puts {args.key_bytes:,} bytes (temporary file, write, close, rename) at most every {args.pace:g} ms
  meanwhile, of all those rounds together; rounds of either kind alternate which comes first; min / median / max over rounds.

{removal_table(by_kind)}
"""


def run_removal(args):
    image_bytes = (2 << 30) + (DISK_JOURNAL_MIB << 20) + args.keys * max(args.key_bytes + 4096, 16 << 10) * 5 // 2
    by_kind, passthrough = {}, None
    for kind in args.on:
        with Devices([kind], args, image_bytes, ["-J", f"size={DISK_JOURNAL_MIB}"]) as [device]:
            by_kind[kind] = measure_removal(device, args)
            passthrough = passthrough_of(device)
    return removal_section(by_kind, args, passthrough)
