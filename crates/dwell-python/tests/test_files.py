# SPDX-License-Identifier: MIT OR Apache-2.0
import asyncio
import concurrent.futures
import contextlib
import mmap
import os
import socket
import tempfile
import threading

import dwell
import numpy
import pytest


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    numpy.arange(1 << 20, dtype="<u4").tofile(path)
    return path


def test_a_file_is_read_and_written_at_offsets(data):
    with dwell.open(data, "r+") as file:
        assert file.size == 4 << 20
        assert file.read_at(8, 4096) == data.read_bytes()[4096:4104]
        file.write_at(b"hello", 10)
        file.write_at(numpy.full(4, 7, dtype="u1"), 4096)
        file.sync()
        buffer = bytearray(5)
        assert file.read_into(buffer, 10) == 5 and buffer == b"hello"
        assert file.read_at(100, (4 << 20) - 10) == data.read_bytes()[-10:]
        assert file.stats()
    assert data.read_bytes()[4096:4100] == b"\x07" * 4
    with pytest.raises(dwell.DwellError, match="closed"):
        file.read_at(1, 0)


def test_what_cannot_be_opened_or_written_is_named(tmp_path, data):
    with pytest.raises(FileNotFoundError, match="none"):
        dwell.open(tmp_path / "none")
    with pytest.raises(dwell.DwellError, match="mode 'x'"):
        dwell.open(data, "x")
    with pytest.raises(dwell.DwellError, match="no policy is called `guess`"):
        dwell.open(data, policy="guess")
    with dwell.open(data) as file:
        with pytest.raises(OSError, match="data"):
            file.write_at(b"x", 0)
        with pytest.raises(dwell.DwellError, match="read-only"):
            file.read_into(b"12345", 0)


def test_requests_of_threads_and_of_asyncio_run_beside_each_other(data):
    want = data.read_bytes()
    offsets = [4096 * at for at in range(200)]
    with dwell.open(data, "r+") as file:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda at: file.read_at(4096, at), offsets)) == [want[at:at + 4096] for at in offsets]

        async def all_of_them():
            found = await asyncio.gather(*(file.aread_at(4096, at) for at in offsets))
            await file.awrite_at(b"later", 5)
            return found

        assert asyncio.run(all_of_them()) == [want[at:at + 4096] for at in offsets]
        assert file.read_at(5, 5) == b"later"


def test_more_than_there_is_memory_for_is_a_memory_error(data):
    with dwell.open(data) as file:
        with pytest.raises(MemoryError):
            file.read_at(1 << 62, 0)

        async def awaited():
            await file.aread_at(1 << 62, 0)

        with pytest.raises(MemoryError):
            asyncio.run(awaited())
        assert file.read_at(4, 0) == data.read_bytes()[:4]


def available_bytes():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def test_a_read_goes_on_beyond_what_one_system_call_moves():
    if available_bytes() < 8 << 30:
        pytest.skip("less than 8 GiB of memory")
    # A hole of memory's own file system, with something behind it.
    size = (2 << 30) + 4096
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as large, mmap.mmap(-1, size + 4096) as buffer:
        large.truncate(size - 5)
        large.seek(0, os.SEEK_END)
        large.write(b"hello")
        large.flush()
        with contextlib.suppress(OSError):
            buffer.madvise(mmap.MADV_HUGEPAGE)
        with dwell.open(large.name) as file:
            assert file.read_into(buffer, 0) == size and buffer[size - 5:size] == b"hello"

            async def awaited():
                found = await file.aread_at(size + 4096, 0)
                return len(found), found[-5:]

            assert asyncio.run(awaited()) == (size, b"hello")


@pytest.fixture
def mapped(data):
    def of(*args, **more):
        try:
            return dwell.memmap(data, *args, **{"budget": 1 << 19, **more})
        except (dwell.DwellError, OSError) as error:
            if "userfaultfd" in str(error):
                pytest.skip(str(error))
            raise

    return of


def test_an_array_larger_than_its_budget_is_summed_sorted_and_multiplied(mapped):
    array = mapped("<u4")
    assert array.shape == (1 << 20,) and not array.flags.writeable
    assert int(array.sum(dtype="u8")) == (1 << 20) * ((1 << 20) - 1) // 2
    copy = mapped("<u4", mode="c")
    copy[:] = copy[::-1].copy()
    copy.sort()
    assert (copy == array).all()
    square = mapped("<u4", shape=(1024, 1024))
    floats = square[:64].astype("f8")
    assert numpy.array_equal(floats @ floats.T, numpy.array(square[:64], dtype="f8") @ numpy.array(square[:64], dtype="f8").T)


def test_system_calls_and_other_threads_touch_an_array(mapped, data, tmp_path):
    array = mapped("<u4")
    array.tofile(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data.read_bytes()
    ours, theirs = socket.socketpair()
    received = bytearray()

    def receive():
        while len(received) < 1 << 22:
            received.extend(theirs.recv(1 << 16))

    thread = threading.Thread(target=receive)
    thread.start()
    ours.sendall(memoryview(array).cast("B"))
    thread.join()
    assert received == data.read_bytes()


def test_what_is_written_reaches_the_file_or_never_does(mapped, data):
    before = data.read_bytes()
    copy = mapped("u1", mode="c")
    copy[::4096] = 9
    assert data.read_bytes() == before
    shared = mapped("u1", mode="r+")
    shared[::4096] = 9
    owner = shared
    while not isinstance(owner, dwell.Memory):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    owner.sync()
    after = data.read_bytes()
    assert after[::4096] == b"\x09" * 1024 and after[1::4096] == before[1::4096]
    assert dict(owner.stats())["faults"] >= 1


def test_shapes_that_do_not_fit_are_named(mapped, data):
    for wrong, names in [({"shape": (1 << 21,)}, "takes"), ({"offset": 1}, "multiple of 4"),
                         ({"offset": 1 << 30}, "offset"), ({"mode": "w"}, "mode `w`")]:
        with pytest.raises(dwell.DwellError, match=names):
            mapped("<u4", **wrong)
    os.truncate(data, 0)
    with pytest.raises((dwell.DwellError, OSError), match="data"):
        mapped("<u4")
