"""What an op takes of a foreign buffer: its own type or plain bytes, of a plain array."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig, PlanError, Range
from rangeops import Arena, elementwise_op, ops
from rangeops.kernels.spec import HALVES, updated
from rangeops.launch.op import REGISTRY
from tests.helpers import small_plan

SPANS = {"p": Range(0, 4096), "g": Range(4096, 4096)}
BYTES = Range(0, 4096)


def plain(dtype):
    """Return 8 KiB of ones."""
    return np.ones(8192 // np.dtype(dtype).itemsize, dtype)


class Quantity(np.ndarray):
    """An array that keeps NumPy's indexing."""


class Reversed(np.ndarray):
    """An array that reads its elements from behind."""

    def __getitem__(self, index):
        return super().__getitem__(-1 - index)


STRANGE = {
    "matrix": lambda: np.asmatrix(np.ones((8, 256), np.float32)),
    "MaskedArray": lambda: np.ma.masked_array(plain("f4"), mask=False),
    "recarray": lambda: np.rec.array(np.zeros(512, [("x", "f4")])),
    "Reversed": lambda: plain("f4").view(Reversed),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", STRANGE)
def test_an_array_that_indexes_in_its_own_way_is_refused(kind):
    buffer = STRANGE[kind]()
    plan = small_plan()
    for use in (
        Arena.wrap,
        lambda b: ops.clear(b, BYTES),
        lambda b: ops.sgd(b, **SPANS, lr=0.5),
        lambda b: Arena(plan, device="cpu", buffer=b),
    ):
        with pytest.raises(TypeError, match=f"wrap: got {kind}, whose elements .*, expected a pla"):
            use(buffer)


def test_pythons_objects_are_refused():
    objects = np.array([{} for _ in range(1024)])
    with pytest.raises(TypeError, match=r"got an array of object, expected numbers; .* convert it"):
        ops.clear(objects, BYTES)
    assert objects[0] == {}


def test_subclasses_with_numpys_own_indexing_are_taken(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=2048)
    for data in (mapped, plain("f4").view(Quantity)):
        data[:] = 1
        ops.sgd(data, **SPANS, lr=0.5)
        assert (np.asarray(data)[:1024] == 0.5).all()


ELEMENTS = {"f4": "<f4", "f8": "<f8", ">f4": ">f4", "i4": "<i4", "f2": "<f2", "u2": "<u2",
            "i1": "|i1", "?": "|b1", "u1": None, ml_dtypes.bfloat16: "bfloat16"}  # fmt: skip


@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
def test_an_arena_knows_the_element_of_its_buffer(dtype):
    assert Arena.wrap(plain(dtype)).element == ELEMENTS[dtype]
    assert Arena.wrap(plain(dtype).view("u1")).element is None


def test_a_planned_arenas_elements_are_the_plans():
    arena = Arena(small_plan("sgd"), device="cpu", buffer=np.zeros(1 << 15, np.float64))
    ops.begin_step(arena)
    ops.sgd(arena)


@pytest.mark.parametrize("dtype", [d for d in ELEMENTS if d not in ("f4", "u1")], ids=str)
def test_a_float_operand_takes_no_other_type(dtype):
    data = plain(dtype)
    before = data.tobytes()
    for memory in (data, Arena.wrap(data)):
        with pytest.raises(
            TypeError,
            match=r"sgd: range p got a buffer of .*, expected <f4; give its bytes by .view\(\"u1\"",
        ):
            ops.sgd(memory, **SPANS, lr=0.5)
    assert data.tobytes() == before
    ops.clear(data, BYTES)
    assert not any(data.tobytes()[:4096]) and data.tobytes()[4096:] == before[4096:]


def test_plain_bytes_are_whatever_the_operand_is():
    data = np.ones(2048, np.float32)
    ops.sgd(data.view("u1"), **SPANS, lr=0.5)
    assert (data[:1024] == 0.5).all()


@pytest.fixture
def halve():
    """Return an op on one half range, declared for the test alone."""
    yield elementwise_op(
        "halve_of_tests",
        formula="x = x/2",
        operands=(updated("x", "half"),),
        rule=half_rule,
        reference=half_rule,
        flags={"half": HALVES},
    )
    del REGISTRY["halve_of_tests"]


def half_rule(x):
    """Return x / 2."""
    return x * 0.5


@pytest.mark.parametrize(
    ("dtype", "given", "value"),
    [
        ("f2", None, 0.5),
        ("f2", "fp16", 0.5),
        (ml_dtypes.bfloat16, None, 0.5),
        (ml_dtypes.bfloat16, "bf16", 0.5),
    ],
)
def test_a_half_buffer_says_its_own_format(halve, dtype, given, value):
    data = plain(dtype)
    halve(data, x=BYTES, half=given)
    assert (data[:2048] == value).all() and (data[2048:] == 1).all()


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("as_type", ["u2", "u1"])
def test_bits_are_of_the_format_that_the_caller_says(halve, half, as_type):
    data = plain({"fp16": "f2", "bf16": ml_dtypes.bfloat16}[half])
    halve(data.view(as_type), x=BYTES, half=half)
    assert (data[:2048] == 0.5).all()


def test_half_ranges_refuse_other_types_and_the_other_format(halve):
    for dtype in ("f4", "f8", ">f2", ">u2", "i2", "i4"):
        with pytest.raises(TypeError, match=r"range x got a buffer of .*, expected .*<f2.*<u2; gi"):
            halve(plain(dtype), x=BYTES)
    with pytest.raises(ValueError, match="half got 'bf16', the buffer's halves are fp16; leave"):
        halve(plain("f2"), x=BYTES, half="bf16")
    with pytest.raises(ValueError, match="half got 'fp16', the buffer's halves are bf16; leave"):
        halve(plain(ml_dtypes.bfloat16), x=BYTES, half="fp16")


class Exporter:
    """An object that offers its memory by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Closed:
    """An object that says it has DLPack and has not."""

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        raise BufferError("no")


def test_dlpack_says_its_type_as_well():
    data = plain("f4")
    ops.sgd(Exporter(data), **SPANS, lr=0.5)
    assert (data[:1024] == 0.5).all()
    with pytest.raises(TypeError, match="range p got a buffer of <f8, expected <f4"):
        ops.sgd(Exporter(plain("f8")), **SPANS, lr=0.5)
    with pytest.raises(TypeError, match=r"got Closed that gives no memory away \(no\), expected"):
        Arena.wrap(Closed())


WHERE = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def torch():
    """Return torch, which may not be installed."""
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("where", WHERE)
def test_torch_tensors_are_of_their_type(torch, halve, where):
    full = torch.ones(2048, device=where)
    ops.sgd(full, **SPANS, lr=0.5)
    assert bool((full[:1024] == 0.5).all())
    for name, element in (("float64", "<f8"), ("int32", "<i4"), ("bfloat16", "bfloat16")):
        wrong = torch.ones(4096, dtype=getattr(torch, name), device=where)
        with pytest.raises(TypeError, match=f"range p got a buffer of {element}, expected <f4; .*"):
            ops.sgd(wrong, **SPANS, lr=0.5)
        ops.clear(wrong, BYTES)
        assert not wrong.view(torch.uint8)[:4096].any() and wrong[-1] == 1
    for dtype in (torch.float16, torch.bfloat16):
        data = torch.ones(64, 64, dtype=dtype, device=where)
        arena = Arena.wrap(data)
        assert arena.framework == "torch" and arena.ptr == data.data_ptr()
        halve(data, x=BYTES)
        assert bool((data.reshape(-1)[:2048] == 0.5).all())
        assert bool((data.reshape(-1)[2048:] == 1).all())
    small = torch.ones((), dtype=torch.bfloat16, device=where)
    assert Arena.wrap(small).nbytes == 2


@pytest.mark.parametrize("where", WHERE)
def test_torch_tensors_that_nobody_may_write_are_one_sentence(torch, where):
    wanted = {
        "requires grad, expected one outside autograd, .*; give tensor.detach()": torch.ones(
            2048, device=where, requires_grad=True
        ),
        "a tensor that requires grad": torch.nn.Parameter(torch.ones(2048, device=where)),
        "strides": torch.ones(64, 64, device=where).T,
        "got Tensor, whose elements are not what lies in its memory": torch.ones(
            64, 64, device=where
        ).to_sparse(),
    }
    for message, tensor in wanted.items():
        with pytest.raises((TypeError, ValueError), match=message):
            ops.sgd(tensor, **SPANS, lr=0.5)
    ops.sgd(torch.nn.Parameter(torch.ones(2048, device=where)).detach(), **SPANS, lr=0.5)


def test_torch_tensors_of_other_classes_or_without_memory_are_refused(torch):
    class Turned(torch.Tensor):
        def __getitem__(self, index):
            return super().__getitem__(-1 - index)

    with pytest.raises(TypeError, match="got Turned, whose elements are not what lies in its mem"):
        Arena.wrap(torch.ones(64).as_subclass(Turned))
    with pytest.raises(TypeError, match="got Tensor, whose elements are not what lies in its mem"):
        Arena.wrap(torch.ones(4, dtype=torch.complex64).conj())
    with pytest.raises(TypeError, match=r"got Tensor that gives no memory away \(.*meta"):
        Arena.wrap(torch.ones(64, device="meta"))


@pytest.mark.gpu
def test_cupy_arrays_are_of_their_type(halve):
    import cupy

    data = cupy.ones(2048, cupy.float32)
    ops.sgd(data, **SPANS, lr=0.5)
    assert (data[:1024].get() == 0.5).all()
    for dtype in ("f8", "i4", "f2"):
        with pytest.raises(TypeError, match="range p got a buffer of .*, expected <f4"):
            ops.sgd(cupy.ones(4096, dtype), **SPANS, lr=0.5)
    half = cupy.ones(4096, cupy.float16)
    halve(half, x=BYTES)
    assert (half[:2048].get() == 0.5).all() and (half[2048:].get() == 1).all()


def test_a_descriptor_on_a_wrapped_buffer_says_type_and_place():
    plan = MemoryPlan(PlanConfig("sgd"))
    w = plan.parameter("w", "fc_weight", (64,)).weight
    plan.finalize()
    data = np.zeros(plan.total_bytes // 4, np.float32)
    arena = Arena.wrap(data)
    arena[w] = 2.0
    assert data[w.offset // 4] == 2.0 and arena.download(w).sum() == 128
    with pytest.raises(TypeError, match="range x got a buffer of <f8"):
        ops.average(Arena.wrap(data.view("f8")), x=w)
    with pytest.raises(
        PlanError, match=r"arena: \['w'\] got bytes .*, expected them inside 0 .. 1"
    ):
        Arena.wrap(data[: w.offset // 4 + 4])[w]
    early = MemoryPlan().alloc_fc_weight((3,), "w")
    with pytest.raises(PlanError, match=r"arena: \['w'\] got bytes -1 .. 11, expected them inside"):
        arena[early] = 1.0
