"""stubs: the types of a module of ops, as the text of its ``.pyi``, from their declarations.

A declared op takes any keyword as Python sees it; with the stub a type checker knows its ranges,
flags, options and scalars, and refuses any other word.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from plan.scalars import FP32_SCALARS, INT32_SCALARS
from rangeops.arena.fields import COMPLEMENTS
from rangeops.kernels.spec import OpSpec
from rangeops.launch.op import RangeOp
from rangeops.launch.reference import decays_of

HEAD = '''"""Types of the ops; made by ``python -m rangeops.ops``, not by hand."""

# fmt: off
from collections.abc import Iterable
from typing import Any, Literal, SupportsIndex, TypedDict, Unpack

from plan import DTensor, Range, Region
from rangeops.arena.arena import Arena
from rangeops.launch.launch import BoundLaunch
'''

ALIASES = """_Bytes = Iterable[SupportsIndex]
Span = Range | Region | tuple[Region, Region] | DTensor | str | _Bytes | None
Part = Literal["all", "bias", "weight"]"""

COMMON = {"part": "Part", "half": "str | None", "state": "Arena | None", "step": "int | None"}
"""What every op takes beside its own."""

WIDTH = 100


def stub(module: ModuleType) -> str:
    """Return the text of the ``.pyi`` of a module whose public names are ops and functions."""
    names = {name: getattr(module, name) for name in module.__all__}
    ops = {name: value for name, value in names.items() if isinstance(value, RangeOp)}
    others = [(RangeOp.__module__, "RangeOp")]
    others += [(_home(v), f"{name} as {name}") for name, v in names.items() if name not in ops]
    others.sort(key=lambda pair: (pair[0], not pair[1].startswith("REGISTRY"), pair[1]))
    imports = "\n".join(f"from {home} import {name}" for home, name in others)
    parts = [HEAD + imports, ALIASES, _scalars(), *map(_op, ops.values())]
    return "\n\n".join(parts) + "\n"


def _home(value: object) -> str:
    """Return the module that a public name comes from; of the registry, that of its ops' class."""
    return str(getattr(value, "__module__", RangeOp.__module__))


def _scalars() -> str:
    types = dict.fromkeys((*FP32_SCALARS, *COMPLEMENTS), "float")
    types |= {name: "int" for name in INT32_SCALARS if name not in COMMON}
    lines = [f"    {name}: {kind}" for name, kind in types.items()]
    return "\n".join(["class _Scalars(TypedDict, total=False):", *lines])


def _op(op: OpSpec) -> str:
    """Return the class of one op and its one member."""
    kind = f"_{op.name.title().replace('_', '')}"
    return "\n".join(
        [
            f"class {kind}(RangeOp):",
            f'    """{op.formula}"""',
            "",
            *_method("bind", [*_parameters(op), _REST], "BoundLaunch"),
            *_method("__call__", [*_parameters(op), "stream: Any = ...", _REST], "None"),
            f"{op.name}: {kind}",
        ]
    )


_REST = "**scalars: Unpack[_Scalars]"


def _parameters(op: OpSpec) -> Iterator[str]:
    yield from ("self", "arena: Any", *(f"{o.name}: Span = ..." for o in op.operands), "*")
    for name, values in op.flags.items():
        if name != "half":
            kind = "bool" if True in values else f"Literal[{', '.join(map(repr, values))}]"
            yield f"{name}: {kind} = ..."
    yield from (f"{name}: bool = ..." for name in op.options)
    decays = decays_of(op)
    if decays:
        yield f"decay: Literal[{', '.join(map(repr, decays))}] | None = ..."
    yield from (f"{name}: float = ..." for name in op.scalars)
    yield from (f"{name}: {kind} = ..." for name, kind in COMMON.items())


def _method(name: str, parameters: list[str], result: str) -> Iterator[str]:
    """Yield a method's lines, as many parameters in one as go."""
    line = f"    def {name}("
    for parameter in (*(f"{p}, " for p in parameters[:-1]), f"{parameters[-1]}) -> {result}: ..."):
        if len(line) + len(parameter.rstrip()) > WIDTH:
            yield line.rstrip()
            line = " " * 8
        line += parameter
    yield line
