"""The record of an op: what it reads and writes, and the three spellings of its kernel.

Everything above reads these records: the generator, the launch machinery, the documentation, the
tests.  Of the library this file imports the plan's tables alone.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plan.dtype import DType
from plan.scratch import STATE_OF

ELEMENT_BYTES = {"u1": 1} | {dtype.element: dtype.itemsize for dtype in DType}
"""Bytes of an operand's element: a byte, or what ``plan.DType`` calls one."""

HALVES = tuple(dtype.label for dtype in DType if dtype.is_half)
"""The half formats."""


@dataclass(frozen=True)
class Operand:
    """One range of an op.

    Attributes:
        name: keyword by which a caller gives the range, and the kernel's argument.
        element: "f4", "half" (16 bits, fp16 or bf16) or "u1" (bytes).
        role: "read", "updated" (read and written) or "written".
        series: letter of the plan's series that is taken when no range is given; "" if the
            caller has to give one.
        flag: the op's flag without which the operand does not exist; "" if it always does.
        instead_of: the FP32 operand whose elements this half one has from ``half_start`` on.
        copy_of: the FP32 operand of which this half one is a copy from ``half_start`` on.

    """

    name: str
    element: str
    role: str
    series: str = ""
    flag: str = ""
    instead_of: str = ""
    copy_of: str = ""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.element]

    @property
    def from_half_start(self) -> bool:
        """Whether its first element belongs to element ``half_start`` of the others."""
        return bool(self.instead_of or self.copy_of)


def read(name: str, element: str, series: str = "", flag: str = "", **more: str) -> Operand:
    """Declare a range that is only read."""
    return Operand(name, element, "read", series, flag, **more)


def updated(name: str, element: str, series: str = "", flag: str = "", **more: str) -> Operand:
    """Declare a range that is read and written."""
    return Operand(name, element, "updated", series, flag, **more)


def written(name: str, element: str, series: str = "", flag: str = "", **more: str) -> Operand:
    """Declare a range that is written without being read."""
    return Operand(name, element, "written", series, flag, **more)


@dataclass(frozen=True)
class Stage:
    """One rule of an elementwise op.

    Attributes:
        targets: what its results are, in order: operands, or names for the stages behind it.
        rule: scalars in, scalars out (one value, or a tuple of as many as there are targets).
        reference: the same in NumPy, spelled on its own; arrays in, arrays out.
        flag: the op's flag with which the stage runs; "!flag": without which; "": always.
        when: the coefficient that has to be other than 0 for the stage to run; "": always.
        resting: whether it runs for tensors that rest as well, if the op is gated.

    """

    targets: tuple[str, ...]
    rule: Callable[..., Any]
    reference: Callable[..., Any]
    flag: str = ""
    when: str = ""
    resting: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the rule's arguments."""
        return tuple(inspect.signature(self.rule).parameters)

    def runs(self, flags: Mapping[str, Any]) -> bool:
        """Return whether the stage is part of the variant."""
        off = self.flag.startswith("!")
        return not self.flag or bool(flags.get(self.flag.removeprefix("!"))) != off


@dataclass(frozen=True, eq=False)
class Kernel:
    """The three spellings of an op, all with one argument list.

    The arguments are the operands' pointers, the state's pointers, then int64 ``integers``; a CPU
    loop has ``start, stop`` behind them.

    Attributes:
        name: unique; part of the cubin's cache key.
        arguments: (name, element) of every pointer in order.
        integers: names of the int64 arguments, from the menu of ``rangeops.launch.launch``.
        gpu: ``gpu(x, **flags)`` returns the kernel for a vocabulary of ``rangeops.kernels.cuda``.
        cpu: ``cpu(x, **flags)`` returns the loop for the vocabulary of ``rangeops.kernels.cpu``.
        reference: ``reference(**flags)`` returns the NumPy spelling; it works on arrays in place.
        per_thread: elements (bytes for byte ranges) that one GPU thread handles.
        count: "n", "tensors", "chunks", "folds", "totals" or "one": over what threads are spread;
            of chunks, folds and totals a whole warp takes one.
        serial: the CPU loop has to see all elements in one call.
        operands: the ranges among the arguments, where the kernel was made from them.
        stages: the rules, where the kernel was made from them.

    """

    name: str
    arguments: tuple[tuple[str, str], ...]
    integers: tuple[str, ...]
    gpu: Callable[..., Any]
    cpu: Callable[..., Any]
    reference: Callable[..., Any]
    per_thread: int = 4
    count: str = "n"
    serial: bool = False
    operands: tuple[Operand, ...] = ()
    stages: tuple[Stage, ...] = ()

    @property
    def pointers(self) -> tuple[str, ...]:
        """The element types of the pointer arguments as they lie in memory."""
        return tuple("u2" if element == "half" else element for _, element in self.arguments)


HALF_GRAD: dict[str, tuple[Any, ...]] = {"half": (None, *HALVES), "half_grad": (False, True)}
"""The flags of an op that reads gradients, FP32 or half."""


def half_where_used(flags: Mapping[str, Any]) -> bool:
    """Whether flags make a kernel of their own: a half format exactly where halves are used."""
    used = flags.get("half_grad", False) or flags.get("half_copy", False)
    return (flags["half"] is not None) == used


@dataclass(frozen=True, eq=False)
class OpSpec:
    """One range operation as it is declared: what it reads and writes, and its kernel.

    Attributes:
        name: the op's name.
        origin: the name of the origin's range op, or a word in brackets where it has none.
        formula: what it computes, in ASCII.
        operands: its ranges; the first one counts the elements.
        kernel: its three spellings.
        bytes_per_element: ``bytes_per_element(flags)``: bytes moved for one element.
        flags: compile-time choices, name -> values; each combination is a kernel of its own.
        hyper: the scalars that a caller may give by name.
        options: bits of one integer argument, which choose at run time.
        elementwise: whether every element is computed from the same elements of the ranges.
        valid: whether a combination of flags makes a kernel of its own.
        settings: of an optimizer, the options that it wants by its nature; else None.
        scalars: FP32 scalars of the op's own with their initial values; the kernel takes each as
            an argument "scalar.<name>".
        source: where the formula comes from: papers, with equation.

    """

    name: str
    origin: str
    formula: str
    operands: tuple[Operand, ...]
    kernel: Kernel
    bytes_per_element: Callable[[Mapping[str, Any]], float]
    flags: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    hyper: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    elementwise: bool = True
    valid: Callable[[Mapping[str, Any]], bool] = lambda flags: True
    settings: Mapping[str, bool] | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def variants(self) -> Iterator[dict[str, Any]]:
        """Yield every combination of compile-time flags that makes a kernel of its own."""
        for values in itertools.product(*self.flags.values()):
            flags = dict(zip(self.flags, values, strict=True))
            if self.valid(flags):
                yield flags


def arguments_of(operands: tuple[Operand, ...], *state: str) -> tuple[tuple[str, str], ...]:
    """Return a kernel's pointer arguments: the operands', then the named parts of the state."""
    return (
        *((o.name, o.element) for o in operands),
        *((name, STATE_OF[name].element) for name in state),
    )
