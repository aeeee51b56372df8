"""``python -m rangeops.ops``: write the types of the ops, ``__init__.pyi``."""

from pathlib import Path

from rangeops import ops
from rangeops.launch.stubs import stub

if __name__ == "__main__":
    Path(__file__).with_name("__init__.pyi").write_text(stub(ops))
