# SPDX-License-Identifier: MIT OR Apache-2.0
"""Files that wait by policy, and arrays larger than memory."""

from ._dwell import DwellError, File, Memory

_MODES = {"r": (False, False), "r+": (True, False), "w+": (True, True)}


def open(path, mode="r", *, direct=False, sync=False, policy="adaptive"):
    """Opens a file, a block device or an address such as `emu:z-nand`.

    mode    "r" reads, "r+" also writes, "w+" also makes the file if it is missing
    direct  bypasses the page cache; sizes and offsets must then fit the device's blocks
    sync    makes each write durable before it returns
    policy  decides how each request is waited for

    Requests of threads run beside each other: the interpreter lock is released meanwhile. In
    asyncio, await `aread_at` and `awrite_at`.
    """
    if mode not in _MODES:
        raise DwellError(f"mode {mode!r}: there are r, r+ and w+")
    write, create = _MODES[mode]
    return File(path, write=write, create=create, direct=direct, sync=sync, policy=policy)


def memmap(path, dtype="uint8", *, mode="r", shape=None, offset=0, budget=1 << 28, spill=None, fallback=False):
    """A NumPy array over a file, of which at most `budget` bytes are in DRAM.

    mode      "r" reads; "r+" also writes, and `array.base` chains to the `Memory` whose `sync()` makes
              changes durable; "c" changes a copy that the file never sees
    offset    bytes of the file before the array
    budget    bytes of DRAM for pages of the file
    spill     directory for changed pages of mode "c" that the budget has no room for
    fallback  takes the kernel's own mapping where userfaultfd is not allowed; there is no budget then

    Page faults are served by a thread of the region's, so that system calls, BLAS and other threads
    may touch the array. A process that was forked may not.
    """
    import numpy

    kind = numpy.dtype(dtype)
    memory = Memory(path, mode, budget, spill, fallback)
    bytes_left = len(memory) - offset
    if offset < 0 or bytes_left < 0:
        raise DwellError(f"offset {offset}: {path} has {len(memory)} bytes")
    if shape is None:
        if bytes_left % kind.itemsize:
            raise DwellError(f"{path}: {bytes_left} bytes are no multiple of {kind.itemsize}, the size of {kind}")
        shape = (bytes_left // kind.itemsize,)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    wanted = kind.itemsize
    for length in shape:
        wanted *= length
    if wanted > bytes_left:
        raise DwellError(f"shape {shape} of {kind} takes {wanted} bytes; {path} has {bytes_left} from {offset} on")
    count = wanted // kind.itemsize if kind.itemsize else 0
    return numpy.frombuffer(memory, dtype=kind, count=count, offset=offset).reshape(shape)
