"""What the values part times: each a function of a directory that returns microseconds an operation."""

import ctypes
import functools
import mmap
import os
import statistics
import sys
import time

SIZES = {"4 KiB": 4 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "4 MiB": 4 << 20}
COUNTS = {"4 KiB": 200, "64 KiB": 200, "1 MiB": 40, "4 MiB": 12}
CLIENTS = (1, 8)
CLIENT_BYTES = "64 KiB"
CLIENT_SECONDS = 0.3
# fencefs keeps processors awake for up to 40 ms after its last request: none of that helps whoever comes next.
PAUSE_SECONDS = 0.1
LIST = "list"
# As much as a C library asks the kernel for at once.
LIST_BUFFER_BYTES = 32 << 10
LIBC = ctypes.CDLL(None, use_errno=True)


def of_size(directory, size):
    return os.path.join(directory, size.replace(" ", ""))


def put_one(directory, temporary, key, data):
    """A temporary file, write, close, rename."""
    path = os.path.join(directory, temporary)
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
    view, at = memoryview(data), 0
    while at < len(data):
        at += os.write(fd, view[at:])
    os.close(fd)
    os.rename(path, os.path.join(directory, key))


def get_one(directory, key, buffer):
    """Open, read, close."""
    fd = os.open(os.path.join(directory, key), os.O_RDONLY)
    at = 0
    while at < len(buffer):
        got = os.readv(fd, [buffer[at:]])
        if got <= 0:
            sys.exit(f"bench: short read of {key} in {directory}")
        at += got
    os.close(fd)


def each(count, operation):
    """The median of `count` operations, each timed alone."""
    times = []
    for n in range(count):
        start = time.perf_counter_ns()
        operation(n)
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def batches(count, operation, number=5):
    """The median over batches, for what takes no longer than looking at the clock."""
    times = []
    for _ in range(number):
        start = time.perf_counter_ns()
        for n in range(count):
            operation(n)
        times.append((time.perf_counter_ns() - start) / count)
    return statistics.median(times) / 1000


def put(size, directory, data):
    directory = of_size(directory, size)
    return each(COUNTS[size], lambda n: put_one(directory, ".tmp", f"k{n}", data[size]))


def get(size, directory, data):
    directory, buffer = of_size(directory, size), memoryview(bytearray(SIZES[size]))
    took = each(COUNTS[size], lambda n: get_one(directory, f"k{n}", buffer))
    if buffer != data[size]:
        sys.exit(f"bench: wrong bytes in {directory}")
    return took


def map_and_read(size, directory, data):
    """Open, mmap, read every byte through the map, unmap, close."""
    directory, got = of_size(directory, size), []

    def read(n):
        fd = os.open(os.path.join(directory, f"k{n}"), os.O_RDONLY)
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
            got[:] = [mapped[:]]
        os.close(fd)

    took = each(COUNTS[size], read)
    if got[0] != data[size]:
        sys.exit(f"bench: wrong bytes through a map in {directory}")
    return took


def read_hot(directory, _):
    """4 KiB at a time out of one key that stays open."""
    buffer = [bytearray(4096)]
    fd = os.open(os.path.join(of_size(directory, "1 MiB"), "k0"), os.O_RDONLY)
    took = batches(500, lambda n: os.preadv(fd, buffer, n * 4096 % (1 << 20)))
    os.close(fd)
    return took


def stat_cached(directory, _):
    paths = [os.path.join(of_size(directory, "4 KiB"), f"k{n}") for n in range(COUNTS["4 KiB"])]
    batches(len(paths), lambda n: os.stat(paths[n]), 1)
    return batches(len(paths), lambda n: os.stat(paths[n]))


def look_up_nothing(directory, _):
    paths = [os.path.join(of_size(directory, "4 KiB"), f"absent{n}") for n in range(200)]

    def look(n):
        # os.stat would spend most of the time on the exception.
        if os.access(paths[n], os.F_OK):
            sys.exit(f"bench: {paths[n]} is there")

    batches(len(paths), look, 1)
    return batches(len(paths), look)


def list_names(path, buffer):
    fd, got = os.open(path, os.O_RDONLY | os.O_DIRECTORY), 1
    while got:
        got = LIBC.getdents64(fd, buffer, len(buffer))
        if got < 0:
            raise OSError(ctypes.get_errno(), f"cannot list {path}")
    os.close(fd)


def list_first(directory, _):
    """After a name came and went, so that no list which the kernel keeps is any good."""
    path, buffer = os.path.join(directory, LIST), ctypes.create_string_buffer(LIST_BUFFER_BYTES)
    os.close(os.open(os.path.join(path, "passing"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
    os.unlink(os.path.join(path, "passing"))
    return each(1, lambda _: list_names(path, buffer))


def list_again(directory, _):
    """Two times: what a list is kept from the first time on alone shows in the second."""
    path, buffer = os.path.join(directory, LIST), ctypes.create_string_buffer(LIST_BUFFER_BYTES)
    list_names(path, buffer)
    return each(3, lambda _: list_names(path, buffer))


def create_and_unlink(directory, _):
    path = os.path.join(directory, "empty")

    def create(_):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
        os.unlink(path)

    return each(200, create)


def client(operation, number, directory, data, gate, results):
    """One of several: begins when the gate opens, and tells operations a second."""
    buffer = memoryview(bytearray(SIZES[CLIENT_BYTES]))
    keys = COUNTS[CLIENT_BYTES]
    os.read(gate, 1)
    begun, done = time.perf_counter(), 0
    while time.perf_counter() < begun + CLIENT_SECONDS:
        if operation == "get":
            get_one(directory, f"k{(done * 7 + number) % keys}", buffer)
        else:
            put_one(directory, f".tmp{number}", f"c{number}.{done % 25}", data)
        done += 1
    os.write(results, b"%f\n" % (done / (time.perf_counter() - begun)))


def clients(operation, count, directory, data):
    """Several processes at once; what the operation costs them together: the inverse of their throughput."""
    directory = of_size(directory, CLIENT_BYTES)
    gate, open_gate = os.pipe()
    results, tell = os.pipe()
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(open_gate)
                client(operation, number, directory, data[CLIENT_BYTES], gate, tell)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(gate)
    os.close(tell)
    os.close(open_gate)
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    with open(results, encoding="ascii") as told:
        rates = [float(line) for line in told]
    if failed:
        raise OSError(f"{failed} of {count} clients failed")
    return 1e6 / sum(rates)


def rows():
    """In the order of a round: what reads comes after what writes it."""
    made = {f"put {size}": functools.partial(put, size) for size in SIZES}
    made |= {f"get {size}": functools.partial(get, size) for size in SIZES}
    made |= {
        "mmap read 1 MiB": functools.partial(map_and_read, "1 MiB"),
        "4 KiB read of an open key": read_hot,
        "stat, cached": stat_cached,
        "negative look-up, cached": look_up_nothing,
        "create and unlink, empty": create_and_unlink,
        "readdir, first": list_first,
        "readdir, again": list_again,
    }
    for operation in ("get", "put"):
        for count in CLIENTS:
            made[clients_row(operation, count)] = functools.partial(clients, operation, count)
    return made


def clients_row(operation, count):
    return f"{operation} {CLIENT_BYTES}, {count} client{'s' if count > 1 else ''}"
