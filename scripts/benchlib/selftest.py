"""What of the bench needs neither root nor a mount, on figures that are made up."""

import copy
import os
import tempfile

from benchlib import operations, plot, targets, values
from benchlib.page import page


def made_up(fence):
    figures = {"native": [100, 90], "fencefs": [fence, fence], "passthrough_hp": [400, 390]}
    return {"about": "- machine: made up", "rounds": 7, "seed": 1, "listed": 10,
            "peers": {"passthrough_hp": "passthrough_hp of libfuse 0", "mergerfs": None},
            "rows": {row: copy.deepcopy(figures) for row in operations.rows()}}


def expect(is_so, what):
    if not is_so:
        raise SystemExit(f"bench: self-test: {what}")


def test_targets():
    at = lambda fence, row: targets.verdict(made_up(fence)["rows"], row)[1]  # noqa: E731
    expect(at(125, "get 4 KiB") == "met", "native + 25 us is met at native + 25 us")
    expect(at(126, "get 4 KiB") == "NOT MET; met", "and is not above it, though ahead of the peer")
    expect(at(241, "get 64 KiB") == "NOT MET", "0.6 of the peer is not met above it")
    expect(at(220, "put 64 KiB") == "met" and at(221, "put 64 KiB") == "NOT MET; met", "2.2 x native")
    expect(at(111, "stat, cached") == "NOT MET" and at(110, "stat, cached") == "met", "native is native")
    expect(at(20, "readdir, again") == "met" and at(21, "readdir, again") == "NOT MET", "0.2 x native")
    expect(at(100, "put 4 KiB") == "", "a row without a target has no verdict")
    expect(set(targets.targets()) <= set(operations.rows()), "every target is a row's")
    rows = made_up(100)["rows"]
    one, eight = (operations.clients_row("get", count) for count in (1, 8))
    expect(targets.verdict(rows, eight)[1] == "met", "as fast as one client")
    rows[one]["fencefs"] = [99, 99]
    expect(targets.verdict(rows, eight)[1] == "NOT MET", "slower than one client")
    del rows["get 4 KiB"]["passthrough_hp"]
    expect(targets.verdict(rows, "get 4 KiB")[1] == "met; not compared", "a peer that is not there is not beaten")


def test_check():
    before = {"ext4": made_up(200)}
    lines, compared = targets.worse(before, {"ext4": made_up(249)})
    expect(not lines and compared == len(operations.rows()), "24 % is let pass")
    expect(len(targets.worse(before, {"ext4": made_up(251)})[0]) == compared, "25 % is not")
    expect(targets.worse(before, {"xfs": made_up(251)}) == ([], 0), "nothing is compared with another filesystem")


def test_page():
    section = values.section({"ext4": made_up(50)}, "plot.svg")
    whole = page({"values": section, "removal": "old\n"}, "")
    kept = page({"removal": "new\n"}, whole)
    expect(kept == whole.replace("old", "new"), "a part that is not measured keeps its section")
    expect("not there: mergerfs" in section and section.isascii(), "the page names a peer that is not there")
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "figures.json")
        values.write_json(path, {"ext4": made_up(50)})
        expect(values.read_json(path) == {"ext4": made_up(50)}, "figures are read as they were written")
        plot.draw({"ext4": made_up(50)}, os.path.join(scratch, "plot.svg"))
        with open(os.path.join(scratch, "plot.svg"), encoding="ascii") as drawn:
            expect(drawn.read().count("<rect") == 1 + 3 + 2 * len(operations.rows()), "a bar for each figure")


def run_all():
    test_targets()
    test_check()
    test_page()
    print("bench: self-test passed")
