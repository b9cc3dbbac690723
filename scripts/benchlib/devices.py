"""Filesystems on loop images on tmpfs, each with a native directory, a fencefs mount and the peers beside it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IMAGE_BYTES = 3 << 30
# What mkfs.ext4 gives a disk of 128 GiB and more; the one that it gives an image would be full all the time.
DISK_JOURNAL_MIB = 1024
LONGEST_REMOVAL = 900


def run(*command, **options):
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, text=True,
                          timeout=options.pop("timeout", 120), **options)


def target_directory():
    return os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")))


def build(*what):
    run("cargo", "build", "--release", "--locked", *what, "--manifest-path", os.path.join(ROOT, "Cargo.toml"), timeout=1800)


def writer():
    """The program that writes many records without a mount."""
    build("--example", "records")
    return os.path.join(target_directory(), "release", "examples", "records")


def daemon_of(store):
    with open(os.path.join(store, "lock"), encoding="utf-8") as lock:
        return int(lock.read())


def memory_bytes(pid, field):
    """A field of the process's status, as VmHWM (the most it had) or VmRSS (what it has)."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{field}:"))


class Device:
    """A filesystem on a loop image on tmpfs, with a native directory and what is mounted beside it."""

    def __init__(self, kind, base, binary, image_bytes=IMAGE_BYTES, options=()):
        self.kind, self.binary, self.options = kind, binary, options
        self.image = os.path.join(base, f"{kind}.img")
        self.mnt = os.path.join(base, kind)
        self.native = os.path.join(self.mnt, "native")
        self.fence = os.path.join(base, f"{kind}-fencefs")
        self.second = os.path.join(base, f"{kind}-second")
        with open(self.image, "wb") as image:
            image.truncate(image_bytes)
        self.peers = {}
        for directory in (self.mnt, self.fence, self.second):
            os.mkdir(directory)

    def start(self):
        # What ext4 puts off would go on while it is measured.
        force = ["-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", *self.options] if self.kind == "ext4" else ["-f"]
        run(f"mkfs.{self.kind}", *force, "-q", self.image)
        run("mount", "-o", "loop", self.image, self.mnt)
        os.mkdir(self.native)
        run(self.binary, "mount", os.path.join(self.mnt, "store"), self.fence)

    def targets(self):
        """Where each one's files go; all as deep below the root of the machine, since a path is looked up name by name."""
        own = {"native": self.native, "fencefs": os.path.join(self.fence, "default")}
        return own | {name: os.path.join(mountpoint, "default") for name, mountpoint in self.peers.items()}

    def add_peer(self, peer, fill):
        """Mounts a peer over a directory of this device's; `fill` works on that directory before it is."""
        source, mountpoint = (os.path.join(top, f"{self.kind}-{peer.name}") for top in (self.mnt, os.path.dirname(self.mnt)))
        os.makedirs(os.path.join(source, "default"))
        os.mkdir(mountpoint)
        fill(os.path.join(source, "default"))
        run(*peer.command, source, mountpoint)
        self.peers[peer.name] = mountpoint

    def stop(self):
        """Undoes as much as was done; an error of one step does not keep the next from being tried."""
        lazily = [*self.peers.values(), self.second, self.fence]
        for command in (*(["umount", "-l", mounted] for mounted in lazily), ["umount", self.mnt]):
            if not os.path.ismount(command[-1]):
                continue
            for _ in range(100):
                done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
                if done.returncode == 0:
                    break
                time.sleep(0.1)
            else:
                print(f"bench: {' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)


def passthrough_of(device):
    with open(os.path.join(device.fence, ".fencefs", "status"), encoding="utf-8") as status:
        return json.load(status)["passthrough"]


class Devices:
    """Started together, stopped at the end whatever happens."""

    def __init__(self, kinds, args, image_bytes=IMAGE_BYTES, ext4_options=()):
        self.kinds, self.args, self.image_bytes, self.ext4_options = kinds, args, image_bytes, ext4_options
        self.base, self.devices = None, []

    def __enter__(self):
        self.base = tempfile.mkdtemp(prefix="fencefs-bench-", dir=self.args.images)
        try:
            for kind in self.kinds:
                self.devices.append(Device(kind, self.base, self.args.binary, self.image_bytes, self.ext4_options))
                self.devices[-1].start()
        except BaseException:
            self.__exit__()
            raise
        return self.devices

    def __exit__(self, *_):
        for device in self.devices:
            device.stop()
        if any(os.path.ismount(path) for d in self.devices for path in (*d.peers.values(), d.second, d.fence, d.mnt)):
            print(f"bench: left behind, still mounted: {self.base}", file=sys.stderr)
        else:
            shutil.rmtree(self.base)
