"""Two trees are compared row by row; a slower row and a failing topic are named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench import compare

FAKE = """
import json, sys
from pathlib import Path
arguments = sys.argv[1:]
folder = Path(arguments[arguments.index("--results") + 1])
topic = arguments[arguments.index("--only") + 1]
times = json.loads((Path(__file__).parent / "times.json").read_text())
with (folder / "cpu.jsonl").open("a") as out:
    for case, ms in times[topic].items():
        row = {"topic": topic, "case": case, "subject": "rangeops", "ms": ms}
        out.write(json.dumps(row) + "\\n")
if topic == "broken":
    raise RuntimeError("no such luck")
"""


def tree(folder: Path, times: dict[str, dict[str, float]]) -> Path:
    """Make a tree whose ``python -m bench`` saves the given rows."""
    (folder / "bench").mkdir(parents=True)
    (folder / "bench" / "__init__.py").touch()
    (folder / "bench" / "__main__.py").write_text(FAKE)
    (folder / "bench" / "times.json").write_text(json.dumps(times))
    return folder


def run(monkeypatch, tmp_path, old, new, *topics) -> tuple[int, dict]:
    trees = [str(tree(tmp_path / name, t)) for name, t in (("old", old), ("new", new))]
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["compare", *trees, "--only", *topics, "--out", str(out)])
    status = compare.main()
    assert (out / "compare.md").read_text()
    return status, json.loads((out / "compare.json").read_text())


def test_a_row_slower_by_more_than_a_percent_is_flagged(monkeypatch, tmp_path):
    old = {"steps": {"same": 1.0, "slow": 1.0, "gone": 1.0}}
    new = {"steps": {"same": 1.009, "slow": 1.011, "added": 1.0}}
    status, found = run(monkeypatch, tmp_path, old, new, "steps")
    flags = {line["case"]: (line["ratio"], line["flag"]) for line in found["rows"]}
    assert flags == {"same": (1.009, ""), "slow": (1.011, "SLOWER")}
    assert found["rows"][1]["new_rounds_ms"] == [1.011, 1.011]
    assert found["only in old"] == ["steps / gone / rangeops"]
    assert found["only in new"] == ["steps / added / rangeops"]
    assert status == 1


def test_a_failing_topic_is_named_and_the_others_are_compared(monkeypatch, tmp_path):
    times = {"steps": {"same": 1.0}, "broken": {"half": 2.0}}
    status, found = run(monkeypatch, tmp_path, times, times, "broken", "steps")
    assert [line["case"] for line in found["rows"]] == ["half", "same"]
    assert len(found["failed"]) == 4
    assert found["failed"][0] == "broken of old, round 1: status 1: RuntimeError: no such luck"
    assert status == 1


def test_equal_trees_pass(monkeypatch, tmp_path):
    times = {"steps": {"same": 1.0}}
    assert run(monkeypatch, tmp_path, times, times, "steps")[0] == 0


def test_rounds_that_overlap_are_said_to():
    key = ("steps", "mlp", "rangeops")
    (line,) = compare.compared({key: [1.0, 1.2]}, {key: [1.1, 1.3]})
    assert line["flag"] == "slower, rounds overlap"


def test_a_peer_is_noise_and_no_fault(monkeypatch, tmp_path):
    old, new = {"steps": {"numba launch": 1.0}}, {"steps": {"numba launch": 2.0}}
    status, found = run(monkeypatch, tmp_path, old, new, "steps")
    assert found["rows"][0]["flag"] == "peer" and status == 0
    assert "peers, new / old: 2.0 to 2.0, 2.0000" in (tmp_path / "out" / "compare.md").read_text()
