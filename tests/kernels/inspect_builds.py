"""Build kernels for every architecture and print what is wrong with them; no GPU needed.

Run by test_build.py in processes of their own, since the test process may have Numba's
simulator on, which compiles nothing.  Arguments: which share of the kernels, of how many.
"""

from __future__ import annotations

import re
import sys

from rangeops.device import linker
from rangeops.kernels import build
from tests.kernels.variants import built, kernels

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")

REGISTERS = {"n": 64, "chunks": 80}
"""Ceiling by what a kernel's threads are spread over.  At 64 registers an SM of any architecture
still holds 1024 threads, enough to hide memory; the widest update (Adam, halves, EMA, clear) needs
56.  A walk over a chunk has several loads of a thread under way at once."""


def vectors(op, flags) -> int:
    """Return the least number of 16-byte accesses that a variant must have."""
    full = [o for o in op.operands if not o.flag and o.element == "f4"]
    if op.name in ("clear", "copy"):
        return 1
    return len(full) if op.operands else 0


def faults(op, flags) -> list[str]:
    """Build one variant and return the sentences about it that should not be true."""
    key = tuple(sorted(flags.items()))
    code = build.ltoir(op.kernel, key)
    out = []
    reports = 0
    for arch in ARCHITECTURES:
        cubin, log = linker.link(code, arch)
        linker.entry_name(cubin)
        used = re.search(r"Used (\d+) registers", log)
        if used is None:
            continue
        reports += 1
        spills = sum(map(int, re.findall(r"(\d+) bytes spill", log)))
        stack = sum(map(int, re.findall(r"(\d+) bytes stack frame", log)))
        most = REGISTERS.get(op.kernel.count, 64)
        if int(used[1]) > most:
            out.append(f"{arch}: {used[1]} registers, expected at most {most}")
        if spills or stack:
            out.append(f"{arch}: {spills} bytes spilled, {stack} bytes of stack, expected none")
    # On a machine with a GPU nvJitLink 13.0 gave no report for a few sm_90 links of this process.
    if reports < len(ARCHITECTURES) - 1:
        out.append(f"the linker reported {reports} architectures, expected {len(ARCHITECTURES)}")
    ptx = linker.link(code, "sm_90", ptx=True)[0].decode(errors="replace")
    body = "\n".join(line for line in ptx.splitlines() if line.startswith("\t"))
    if re.search(r"\bfma\.", body):
        out.append("a fused multiply-add where none is written")
    if re.search(r"\.f64\b", body) and "f8" not in op.kernel.pointers:
        out.append("float64 arithmetic where none is meant")
    if re.search(r"\.ftz\b|\.approx\b|\bcall\b", body):
        out.append("a flushed, approximate or external operation")
    wide = len(re.findall(r"\b(?:ld|st)\.global\S*\.v4\.[bfu]32", body))
    if wide < vectors(op, flags):
        out.append(f"{wide} accesses of 16 bytes, expected at least {vectors(op, flags)}")
    return out


def main() -> int:
    """Inspect a share of the kernels; print a line per fault, then the number inspected."""
    share, shares = int(sys.argv[1]), int(sys.argv[2])
    everything = [(op, flags) for op, flags in kernels() if built(op, flags)]
    wrong = 0
    for op, flags in everything[share::shares]:
        for fault in faults(op, flags):
            wrong += 1
            print(f"{op.name} {flags}: {fault}")
    print(f"inspected {len(everything[share::shares])}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
