"""The page: who measured on what, and its sections, each kept until it is measured again."""

import os
import platform
import subprocess

INTRODUCTION = "# Performance\n\nWritten by `scripts/bench`; run it again rather than editing this page. What the figures are made of: [speed.md](speed.md).\n"
HEADINGS = {
    "values": "## Values\n",
    "removal": "## Removal of a tenant\n",
    "recovery": "## Recovery\n",
    "memory": "## Memory\n",
}


def first_line(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except OSError:
        return "unknown"
    return (done.stdout + done.stderr).strip().splitlines()[0]


def machine():
    model = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    with open("/proc/meminfo", encoding="utf-8") as info:
        memory = int(info.readline().split()[1]) >> 20
    return f"{model}, {os.cpu_count()} cores, {memory} GiB memory"


def about(args, passthrough):
    return f"""- machine: {machine()}
- kernel: Linux {platform.release()}
- versions: {first_line(args.binary, '--version')}, {first_line('rustc', '--version')}, {first_line('mkfs.ext4', '-V')}, {first_line('mkfs.xfs', '-V')}
- passthrough: {'on' if passthrough else 'off'}"""


def page(sections, old):
    """The page with these sections, and those of the old page that were not measured."""
    text = INTRODUCTION
    for part, heading in HEADINGS.items():
        kept = old.partition(f"\n{heading}\n")[2].split("\n## ")[0].rstrip("\n") + "\n"
        section = sections.get(part, kept)
        if section.strip():
            text += f"\n{heading}\n{section}"
    return text
