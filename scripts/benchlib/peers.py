"""Other FUSE filesystems over a directory, measured beside fencefs where they are there.

mergerfs is a package. libfuse's passthrough_hp is an example that no package ships built, so it is built from the Debian
source package of libfuse, below the target directory.
"""

import collections
import os
import shutil
import subprocess
import sys
import tempfile

from benchlib.devices import run, target_directory
from benchlib.page import first_line

NAMES = ("passthrough_hp", "mergerfs")
PACKAGES = ("mergerfs", "libfuse3-dev", "pkg-config", "g++", "xz-utils", "e2fsprogs", "xfsprogs")
# Its own floor of free space would refuse an image as small as ours; its caches are off unless asked for.
MERGERFS_OPTIONS = ("minfreespace=0,cache.files=auto-full,cache.readdir=true,cache.attr=3600,cache.entry=3600,"
                    "cache.negative_entry=3600")

Peer = collections.namedtuple("Peer", "name version command")


def cache():
    return os.path.join(target_directory(), "bench-peers")


def found(args):
    """The peers that are there, and a word to whoever waits for one that is not."""
    peers = {}
    ours = os.path.join(cache(), "passthrough_hp")
    program = args.passthrough_hp or (ours if os.path.exists(ours) else shutil.which("passthrough_hp"))
    if program:
        version = "libfuse of unknown version"
        if os.path.exists(f"{program}.version"):
            with open(f"{program}.version", encoding="utf-8") as noted:
                version = noted.read().strip()
        peers["passthrough_hp"] = Peer("passthrough_hp", f"passthrough_hp of {version}", [program])
    if shutil.which("mergerfs"):
        version = first_line("mergerfs", "--version").replace(" version:", "")
        peers["mergerfs"] = Peer("mergerfs", f"{version} (-o {MERGERFS_OPTIONS})", ["mergerfs", "-o", MERGERFS_OPTIONS])
    for name in NAMES:
        if name not in peers:
            print(f"bench: {name} is not there, nothing is compared with it (--install-peers gets it on Debian)", file=sys.stderr)
    return peers


def install():
    """Debian's packages, and passthrough_hp from the source package; what fails is said, and the rest goes on."""
    if not shutil.which("apt-get"):
        sys.exit("bench: --install-peers needs apt-get")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        if subprocess.run(["apt-get", *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment,
                          timeout=600, check=False).returncode:
            print(f"bench: apt-get {command[0]} failed", file=sys.stderr)
    try:
        build_passthrough_hp()
    except (OSError, subprocess.SubprocessError) as e:
        print(f"bench: passthrough_hp could not be built: {e}", file=sys.stderr)


def source_lists():
    """Where this machine's packages come from, as lines of an apt list for their sources."""
    form = "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)"
    lines = run("apt-get", "indextargets", "--format", form, "Created-By: Packages", capture_output=True).stdout.splitlines()
    return sorted({line for line in lines if line.endswith(" main")})


def build_passthrough_hp():
    program = os.path.join(cache(), "passthrough_hp")
    if os.path.exists(program):
        return
    os.makedirs(cache(), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="source-", dir=cache()) as work:
        # A list of our own: the machine's sources stay as they are.
        with open(os.path.join(work, "list"), "w", encoding="utf-8") as sources:
            sources.writelines(f"{line}\n" for line in source_lists())
        os.makedirs(os.path.join(work, "lists/partial"))
        ours = ["-qq", "-o", f"Dir::Etc::sourcelist={work}/list", "-o", "Dir::Etc::sourceparts=-",
                "-o", f"Dir::State::Lists={work}/lists", "-o", "APT::Sandbox::User=root"]
        run("apt-get", *ours, "update", timeout=300)
        run("apt-get", *ours, "source", "--download-only", "fuse3", cwd=work, timeout=300)
        archive = next(name for name in os.listdir(work) if ".orig.tar." in name and not name.endswith(".asc"))
        run("tar", "-xf", archive, cwd=work)
        source = next(entry.path for entry in os.scandir(work) if entry.name.startswith("fuse-") and entry.is_dir())
        flags = run("pkg-config", "--cflags", "--libs", "fuse3", capture_output=True).stdout.split()
        # Its own build finds these out. Without the first it cannot set times, and a close that writes them back fails.
        has = ("-DHAVE_UTIMENSAT", "-DHAVE_SETXATTR", "-DHAVE_POSIX_FALLOCATE")
        run("g++", "-O2", "-std=c++17", *has, "passthrough_hp.cc", "-o", f"{program}.new", *flags, "-lpthread",
            cwd=os.path.join(source, "example"), timeout=300)
        with open(f"{program}.version", "w", encoding="utf-8") as noted:
            noted.write(f"libfuse {os.path.basename(source).removeprefix('fuse-')}\n")
        os.rename(f"{program}.new", program)
