"""The device seam: each device keeps the protocol's promises, the host in their trivial form."""

from __future__ import annotations

import numpy as np
import pytest

from rangeops import Arena
from rangeops.device import adopt, find
from rangeops.device.streams import gpu_count
from tests.helpers import HAVE_GPU, small_plan


def test_a_name_has_one_device(device):
    arena = Arena(small_plan(), device=device)
    assert arena.backend is find(device) and arena.backend is find(arena.device)
    assert arena.backend.name == arena.device
    assert arena.backend.kind == arena.device.partition(":")[0]
    assert (arena.backend.index >= 0) == (HAVE_GPU and device == "cuda") == arena.on_gpu


def test_without_a_name_it_is_the_gpu_or_its_simulator():
    assert find().kind == ("cuda" if HAVE_GPU else "simulator")
    assert find(0) is find("cuda:0")


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "cudaX", ""])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(ValueError, match="expected 'cuda', 'cuda:N' or 'cpu'"):
        find(name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cuda:x", "cuda:-1", "cuda:"])
def test_a_number_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match="expected 'cuda', 'cuda:N' or 'cpu'"):
        find(name)


@pytest.mark.gpu
def test_a_gpu_too_many_is_refused():
    with pytest.raises(ValueError, match=f"the driver offers {gpu_count()}; give a smaller"):
        find(f"cuda:{gpu_count()}")


@pytest.mark.skipif(HAVE_GPU, reason="a machine without a GPU says so")
def test_no_gpu_is_one_sentence(monkeypatch):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "0")
    assert find() is find("cpu")
    with pytest.raises(RuntimeError, match="the driver offers no GPU; use device='cpu'"):
        find("cuda")


def test_a_foreign_buffer_is_adopted_where_it_lies():
    values = np.arange(6, dtype=np.float32)
    place, memory = adopt(values)
    assert place is find("cpu") and memory is values
    assert adopt(values, "simulator")[0] is find("simulator")
    with pytest.raises(TypeError, match="Arena.wrap: got list, expected a NumPy or CuPy array"):
        adopt([1.0])


def test_copies_go_there_and_back(device):
    place = find(device)
    stream = place.stream()
    memory, stale = place.allocate(1000)
    address = place.address(memory)
    assert address % 256 == 0
    for part in stale:
        memory[part.base_offset : part.end] = 0
    place.synchronize()
    source, target = place.pinned(1000), place.pinned(1000)
    assert not source.any() and place.is_pinned(source)
    source[:] = np.arange(1000) % 251
    place.upload(address, source, stream.handle, wait=False)
    place.download(target, address, stream.handle)
    np.testing.assert_array_equal(target, source)
    plain = np.full(1 << 17, 7, np.uint8)
    place.upload(address, plain[:500], stream.handle)
    plain[:] = 0
    place.download(plain[:1000], address, stream.handle)
    assert (plain[:500] == 7).all()
    np.testing.assert_array_equal(plain[500:1000], source[500:])


def test_an_event_is_done_before_its_first_record_and_after_its_work(device):
    place = find(device)
    event, streams = place.event(), [place.stream(), place.stream()]
    assert event.done
    event.synchronize()
    event.record(streams[0].handle)
    event.hold(streams[1].handle)
    event.synchronize()
    assert event.done and not place.capturing(streams[0].handle)


def test_inside_its_with_a_device_is_current(device):
    place = find(device)
    with place.current():
        assert place.is_current()
    place.use()
    assert place.is_current()


def test_captured_calls_run_when_they_are_launched(device):
    """A value goes from word to word, so the order of the calls shows."""
    place = find(device)
    memory, _ = place.allocate(1024)
    memory[:] = 0
    words, seen = memory[:12].view("f4"), []
    words[...] = 1.0
    place.synchronize()

    def copy(target, source):
        def call(stream=None):
            seen.append(stream)
            words[target : target + 1] = words[source : source + 1]

        return call

    copy(1, 0)()
    graph = place.capture([copy(1, 0), copy(2, 1)], "cupy")
    words[1:] = 0.0
    stream = place.stream()
    place.synchronize()
    for value in (1.0, 3.0):
        words[:1] = value
        place.synchronize()
        graph.launch(stream.handle)
        place.synchronize()
        assert words.tolist() == [value, value, value]
    assert None not in seen[1:]


def test_what_a_call_raises_while_captured_comes_out_and_the_next_capture_works(device):
    place = find(device)

    def wrong(stream=None):
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        place.capture([wrong], "cupy").launch(0)
    stream = place.stream()
    place.capture([lambda stream=None: None], "cupy").launch(stream.handle)
    place.synchronize()
