"""The caching pool: every invariant of its specification, with a fake driver (S25, S27, S28)."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from rangeops.pool import CachingPool, OutOfMemory, capacity_of, size_class, use_in_numba
from rangeops.pool.adapters import cupy_allocator
from tests.helpers import HAVE_GPU

MIB, GIB = 1 << 20, 1 << 30


class FakeDriver:
    """Memory of two devices as numbers; every call is written down."""

    def __init__(self, memory=1 << 40):
        self.memory = memory
        self.here = threading.local()
        self.lock = threading.Lock()
        self.blocks = {}
        self.next = {0: 1 << 44, 1: 2 << 44}
        self.calls, self.capture, self.waits = [], set(), []

    def current_device(self):
        return getattr(self.here, "device", 0)

    def current_stream(self):
        return getattr(self.here, "stream", 7)

    def capturing(self, stream):
        return stream in self.capture

    def allocate(self, device, nbytes):
        with self.lock:
            self.calls.append(("allocate", device, nbytes))
            used = sum(n for (d, _), n in self.blocks.items() if d == device)
            if used + nbytes > self.memory:
                raise OutOfMemory(f"fake: {nbytes}")
            pointer = self.next[device]
            self.next[device] += nbytes
            self.blocks[device, pointer] = nbytes
            return pointer

    def clear(self, pointer, nbytes, stream):
        self.calls.append(("clear", pointer, nbytes, stream))

    def free(self, device, pointer):
        with self.lock:
            self.calls.append(("free", device, pointer))
            del self.blocks[device, pointer]

    def synchronize(self, device):
        self.calls.append(("synchronize", device))

    def wait_for(self, device, waiting, other):
        self.waits.append((waiting, other))


def made(**options):
    driver = FakeDriver(**options)
    return driver, CachingPool(driver)


def test_s27_the_classes_of_the_specification():
    sizes = (1, 512, 513, MIB, MIB + 1, 8 * MIB + 1, 40 * GIB, 70 * GIB + 1)
    classes = [512, 512, 1024, MIB, 2 * MIB, 16 * MIB, 64 * GIB, 128 * GIB]
    assert [size_class(n) for n in sizes] == classes
    assert [capacity_of(n) for n in sizes[:6]] == classes[:6]
    assert capacity_of(40 * GIB) == 40 * GIB
    assert capacity_of(70 * GIB + 1) == 70 * GIB + 2 * MIB
    with pytest.raises(ValueError, match="got -1 bytes, expected 0 or more"):
        size_class(-1)


def test_s27_out_of_memory_gives_the_cache_back_and_tries_again():
    driver, pool = made(memory=GIB)
    pool.release(pool.acquire(512 * MIB))
    block = pool.acquire(768 * MIB)  # a class of 1 GiB: fits only without the cached block
    assert block.capacity == GIB
    assert [c[0] for c in driver.calls] == [
        "allocate", "allocate", "synchronize", "free", "allocate",
    ]  # fmt: skip
    with pytest.raises(OutOfMemory):
        pool.acquire(1)
    limited = CachingPool(FakeDriver(), limit=MIB)
    limited.release(limited.acquire(600_000))
    limited.acquire(700_000)
    with pytest.raises(OutOfMemory, match="has .* bytes reserved and needs 524288 more, expected"):
        limited.acquire(MIB // 2)


def test_s27_empty_blocks_never_share_an_address():
    _, pool = made()
    one, two = pool.acquire(0), pool.acquire(0)
    assert one.pointer != two.pointer
    pool.release(one)
    pool.release(two)
    three = pool.acquire(512)
    assert three.pointer in (one.pointer, two.pointer)


def test_reuse_calls_no_driver_after_the_warm_up_and_keeps_lengths_apart():
    driver, pool = made()
    shapes = [100, 4096, 4096, 3 * MIB, 513]
    for _ in range(50):
        blocks = [pool.acquire(n) for n in shapes]
        assert [b.nbytes for b in blocks] == shapes
        assert all(b.capacity >= b.nbytes for b in blocks)
        for block in blocks:
            pool.release(block)
    assert len(driver.calls) == len(shapes)
    found = pool.statistics()[0]
    assert (found.misses, found.hits, found.live_bytes) == (5, 245, 0)
    assert found.cached_bytes == found.reserved_bytes == found.peak_live_bytes
    assert pool.trim() == found.cached_bytes and not driver.blocks


def test_only_who_asks_gets_zeros_and_only_the_bytes_asked_for():
    driver, pool = made()
    for nbytes in (1000, 0):
        pool.release(pool.acquire(nbytes))
        block = pool.acquire(nbytes, zero=True)
    assert [c for c in driver.calls if c[0] == "clear"] == [
        ("clear", driver.next[0] - 512 - 1024, 1000, 7)
    ]
    assert block.nbytes == 0


def test_blocks_of_one_stream_never_reach_another():
    driver, pool = made()
    driver.here.stream = 1
    first = pool.acquire(1000)
    pool.release(first)
    driver.here.stream = 2
    other = pool.acquire(1000)
    assert other.pointer != first.pointer
    driver.here.stream = 1
    assert pool.acquire(1000).pointer == first.pointer


def test_a_release_waits_for_other_streams_that_used_the_block():
    driver, pool = made()
    block = pool.acquire(1000)
    for stream in (9, 8, 7):
        block.used_on(stream)
    pool.release(block)
    assert sorted(driver.waits) == [(7, 8), (7, 9)]


def test_s28_a_block_returns_to_its_own_device():
    driver, pool = made()
    block = pool.acquire(1000)

    def elsewhere():
        driver.here.device = 1
        pool.release(block)
        assert pool.acquire(1000).device == 1

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    again = pool.acquire(1000)
    assert (again.device, again.pointer) == (0, block.pointer)
    assert pool._pool(0).lock is not pool._pool(1).lock


def test_s28_a_second_release_and_a_foreign_block_are_refused():
    _, pool = made()
    block = pool.acquire(1000)
    pool.release(block)
    with pytest.raises(ValueError, match="no live block of device 0, expected one acquired"):
        pool.release(block)
    assert sum(map(len, pool._pool(0).free.values())) == 1
    _, other = made()
    foreign = other.acquire(1000)
    with pytest.raises(ValueError, match="no live block"):
        pool.release(foreign)
    again = pool.acquire(1000)  # the same address, another life
    with pytest.raises(ValueError, match="no live block"):
        pool.release(block)
    pool.release(again)


def test_s28_threads_never_hold_overlapping_blocks():
    driver, pool = made()
    sizes, failures = (64, 700, 5000, MIB, 3 * MIB), []
    held, guard = {}, threading.Lock()

    def work(number):
        driver.here.device, driver.here.stream = number % 2, number
        for k in range(10_000):
            block = pool.acquire(sizes[(k + number) % 5])
            with guard:
                if block.pointer in held:
                    failures.append(block)
                held[block.pointer] = number
            with guard:
                del held[block.pointer]
            pool.release(block)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = pool.statistics()
    assert sum(s.live_bytes for s in found.values()) == 0
    assert sum(s.hits + s.misses for s in found.values()) == 80_000
    assert len(driver.calls) == 8 * 5


def test_s28_a_forked_process_is_told(capfd):
    _, pool = made()
    block = pool.acquire(100)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pool.acquire(100)
        except RuntimeError as error:
            status = 0 if "forked process, expected the one that made the pool" in str(error) else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pool.release(block)


def test_s25_a_miss_in_a_capture_is_refused_and_a_hit_is_not():
    driver, pool = made()
    pool.release(pool.acquire(1000))
    driver.capture.add(7)
    before = list(driver.calls)
    block = pool.acquire(1000)
    with pytest.raises(RuntimeError, match="no cached block of 1024 while the stream is capturing"):
        pool.acquire(1000)
    assert driver.calls == before
    driver.capture.clear()
    pool.release(block)
    pool.acquire(5000)


def test_blocks_of_a_capture_never_reach_eager_work():
    driver, pool = made()
    held = pool.acquire(1000)
    driver.capture.add(7)
    with pytest.raises(RuntimeError, match="no cached block"):
        pool.acquire(1000)
    pool.release(held)  # an eager block whose last use may have been captured
    again = pool.acquire(1000)
    assert again.pointer == held.pointer and again.captured
    driver.capture.clear()
    pool.release(again)
    eager = pool.acquire(1000)
    assert eager.pointer != again.pointer
    found = pool.statistics()[0]
    assert (found.captured_bytes, found.cached_bytes, found.live_bytes) == (1024, 1024, 1024)
    assert pool.trim() == 0 and (0, again.pointer) in driver.blocks
    driver.capture.add(7)
    assert pool.acquire(1000).pointer == again.pointer
    driver.capture.clear()
    pool.release(next(b for b in pool._pool(0).live if b.pointer == again.pointer))
    assert pool.trim(captured=True) == 1024 and (0, again.pointer) not in driver.blocks


def test_s28_the_collector_may_release_inside_an_acquire():
    driver, pool = made(memory=4 * MIB)
    doomed = pool.acquire(MIB)
    allocate = driver.allocate

    def collecting(device, nbytes):
        if doomed in pool._pool(0).live:
            pool.release(doomed)
        return allocate(device, nbytes)

    driver.allocate = collecting
    block = pool.acquire(2 * MIB)
    found = pool.statistics()[0]
    assert (found.live_bytes, found.cached_bytes, found.reserved_bytes) == (
        2 * MIB, MIB, 3 * MIB,
    )  # fmt: skip
    assert block.pointer != doomed.pointer
    assert pool.acquire(MIB).pointer == doomed.pointer


def test_streams_have_one_name_each():
    _, pool = made()
    pool.release(pool.acquire(1000, stream=1))
    assert pool.acquire(1000, stream=0).stream == 0 and pool.statistics()[0].hits == 1
    with pytest.raises(ValueError, match="per-thread default stream, .* make one and use it"):
        pool.acquire(1000, stream=2)
    block = pool.acquire(1000)
    with pytest.raises(ValueError, match="per-thread"):
        block.used_on(2)


def test_cupy_memory_is_released_with_its_last_holder():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    _, pool = made()
    memory = cupy_allocator(pool)(1000)
    view = memory + 256
    assert (memory.ptr, memory.mem.size, memory.mem.device_id) == (1 << 44, 1000, 0)
    del memory
    assert pool.statistics()[0].live_bytes == 1024
    del view
    assert pool.statistics()[0].live_bytes == 0


@pytest.mark.skipif(HAVE_GPU, reason="tells what happens without a GPU")
def test_the_simulator_has_no_memory_managers():
    with pytest.raises(RuntimeError, match="simulator, which has no memory managers, expected a"):
        use_in_numba(made()[1])


class Machine(RuleBasedStateMachine):
    """Acquire, release, trim and run out of memory in any order: nothing overlaps, sums agree."""

    blocks = Bundle("blocks")

    def __init__(self):
        super().__init__()
        self.driver, self.pool = made(memory=64 * MIB)
        self.live = []
        self.seen_in_captures = set()

    @rule(target=blocks, nbytes=st.integers(0, 20 * MIB), stream=st.integers(3, 5))
    def acquire(self, nbytes, stream):
        try:
            block = self.pool.acquire(nbytes, stream)
        except OutOfMemory:
            found = self.pool.statistics()[0]
            assert found.cached_bytes == found.captured_bytes
            return None
        except RuntimeError:
            assert stream in self.driver.capture
            return None
        assert block.captured == (stream in self.driver.capture)
        assert block.captured or block.pointer not in self.seen_in_captures
        assert block.capacity >= nbytes
        self.live.append(block)
        return block

    @rule(block=consumes(blocks))
    def release(self, block):
        if block is not None:
            self.pool.release(block)
            self.live.remove(block)
            if block.captured:
                self.seen_in_captures.add(block.pointer)

    @rule(stream=st.integers(3, 5))
    def capture(self, stream):
        self.driver.capture ^= {stream}

    @rule()
    def trim(self):
        self.pool.trim(captured=True)
        reserved = sum(self.driver.blocks.values())
        assert reserved == sum(b.capacity for b in self.live)

    @invariant()
    def nothing_overlaps_and_sums_agree(self):
        spans = sorted((b.pointer, b.pointer + b.capacity) for b in self.live)
        assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
        for found in self.pool.statistics().values():
            assert found.live_bytes == sum(b.capacity for b in self.live)
            assert found.reserved_bytes == sum(self.driver.blocks.values()) <= 64 * MIB


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
