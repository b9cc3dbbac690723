"""Trees of many small keys."""

import os

KEYS_A_DIRECTORY = 1000


def tree_name(n):
    return f"{n // KEYS_A_DIRECTORY:04}/{n:07}"


def fill(directory, count, data):
    """A tenant of `count` keys."""
    os.mkdir(directory)
    for n in range(count):
        if n % KEYS_A_DIRECTORY == 0:
            os.mkdir(os.path.join(directory, os.path.dirname(tree_name(n))))
        with open(os.path.join(directory, tree_name(n)), "xb", buffering=0) as key:
            key.write(data)


def records_below(tree):
    return sum(len(files) for _, _, files in os.walk(tree))
