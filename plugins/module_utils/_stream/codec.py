# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Zstandard with whatever a host has: Python's own module, the zstandard package, the C library, or the program.

Every way makes and reads the same thing: one frame, no dictionary, content size and checksum in it (RFC 8878).
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import importlib
import shutil
import subprocess
import threading
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Tuple, Type, Union, cast

Buffer = Union[bytes, bytearray, memoryview]

LIBRARY = "libzstd.so.1"
PROGRAM = "zstd"
MAGIC = b"\x28\xb5\x2f\xfd"
LONGEST_HEADER = 18
PROBE = b"compressed and read back when a codec is found " * 4

# From zstd.h, stable since 1.4.0.
PARAMETER_LEVEL, PARAMETER_CHECKSUM = 100, 201


class CodecError(Exception):
    """A block cannot be compressed, or compressed data is damaged; the message is for people."""


class Codec(abc.ABC):
    """A way to make and read zstd frames on this host. Several threads may use it at once."""

    backend = ""

    @abc.abstractmethod
    def compress(self, data: Buffer, level: int) -> bytes:
        """``data`` as one whole frame; ``level`` is 1 to 19."""

    def decompress(self, data: Buffer, size: int) -> bytes:
        """The content of one frame, exactly ``size`` bytes; raises CodecError when it is anything else.

        The frame's word for its size is not trusted: a hostile one costs about ``size`` bytes of memory, no more.
        """
        named = content_size(data)
        if named != size:
            found = "is not a zstd frame with a size" if named is None else f"says it holds {named} bytes"
            raise CodecError(f"compressed data is damaged: a block of {size} bytes {found}")
        content = self._content(data, size)
        if len(content) != size:
            raise CodecError(f"compressed data is damaged: a block of {size} bytes holds {len(content)} or more")
        return content

    @abc.abstractmethod
    def _content(self, data: Buffer, size: int) -> bytes:
        """What the frame holds, read up to a little more than ``size``; raises CodecError when that fails."""


def content_size(data: Buffer) -> Optional[int]:
    """The content's size in bytes as the frame's header names it; None without one."""
    head = bytes(memoryview(data)[:LONGEST_HEADER])
    if not head.startswith(MAGIC) or len(head) == len(MAGIC):
        return None
    descriptor = head[len(MAGIC)]
    single_segment = descriptor >> 5 & 1
    width = (single_segment, 2, 4, 8)[descriptor >> 6]
    start = len(MAGIC) + 1 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    field = head[start : start + width]
    if width == 0 or len(field) < width:
        return None
    return int.from_bytes(field, "little") + (256 if width == 2 else 0)


class StandardCodec(Codec):
    """Python 3.14's own module."""

    backend = "compression.zstd"

    def __init__(self) -> None:
        self._zstd: Any = importlib.import_module("compression.zstd")
        self._parameter: Any = self._zstd.CompressionParameter
        self._own = _Compressors()

    def compress(self, data: Buffer, level: int) -> bytes:
        options = {self._parameter.compression_level: level, self._parameter.checksum_flag: 1}
        compressors = self._own.by_level
        try:
            if level not in compressors:
                compressors[level] = self._zstd.ZstdCompressor(options=options)
            frame: bytes = compressors[level].compress(data, self._zstd.ZstdCompressor.FLUSH_FRAME)
        except self._zstd.ZstdError as error:
            raise CodecError(f"compression.zstd cannot compress at level {level}: {error}") from error
        return frame

    def _content(self, data: Buffer, size: int) -> bytes:
        decompressor = self._zstd.ZstdDecompressor()
        try:
            # One byte more, since the end of the frame is only seen by a reader that still wants something.
            content: bytes = decompressor.decompress(data, size + 1)
        except self._zstd.ZstdError as error:
            raise CodecError(f"compressed data is damaged: {error}") from error
        if len(content) <= size and (not decompressor.eof or decompressor.unused_data):
            raise CodecError("compressed data is damaged: it does not end where its frame ends")
        return content


class PackageCodec(Codec):
    """The zstandard package from 0.22 on; an older one lacks an argument, fails its trial and is passed over."""

    backend = "zstandard"

    def __init__(self) -> None:
        self._zstd: Any = importlib.import_module("zstandard")
        self._own = _Compressors()

    def compress(self, data: Buffer, level: int) -> bytes:
        compressors = self._own.by_level
        try:
            if level not in compressors:
                compressors[level] = self._zstd.ZstdCompressor(level=level, write_checksum=True)
            frame: bytes = compressors[level].compress(data)
        except self._zstd.ZstdError as error:
            raise CodecError(f"zstandard cannot compress at level {level}: {error}") from error
        return frame

    def _content(self, data: Buffer, size: int) -> bytes:
        try:
            # It allocates what the header says, which decompress has held against size.
            content: bytes = self._zstd.ZstdDecompressor().decompress(data, allow_extra_data=False)
        except self._zstd.ZstdError as error:
            raise CodecError(f"compressed data is damaged: {error}") from error
        return content


class _Compressors(threading.local):
    """A thread's own compressors by level: each serves one block at a time, and a new one has tables to allocate."""

    def __init__(self) -> None:
        self.by_level: Dict[int, Any] = {}


class LibraryCodec(Codec):
    """The C library through ctypes, which lets other threads run meanwhile."""

    backend = "libzstd"

    def __init__(self) -> None:
        self._library = _load_library()
        self._own = _LibraryContexts(self._library)

    def compress(self, data: Buffer, level: int) -> bytes:
        library, own = self._library, self._own
        source, length = _address(data)
        buffer = own.buffer_of(library.ZSTD_compressBound(length))
        code = library.ZSTD_CCtx_setParameter(own.compressor.address, PARAMETER_LEVEL, level)
        if not library.ZSTD_isError(code):
            code = library.ZSTD_compress2(own.compressor.address, buffer, len(buffer), source, length)
        if library.ZSTD_isError(code):
            raise CodecError(f"{LIBRARY} cannot compress at level {level}: {self._reason(code)}")
        return ctypes.string_at(buffer, code)

    def _content(self, data: Buffer, size: int) -> bytes:
        library, own = self._library, self._own
        source, length = _address(data)
        buffer = own.buffer_of(size)
        # Its capacity is size even where the buffer is larger from before, so that too much is an error.
        code = library.ZSTD_decompressDCtx(own.decompressor.address, buffer, size, source, length)
        if library.ZSTD_isError(code):
            raise CodecError(f"compressed data is damaged: {self._reason(code)}")
        return ctypes.string_at(buffer, code)

    def _reason(self, code: int) -> str:
        reason: bytes = self._library.ZSTD_getErrorName(code)
        return reason.decode("ascii", "replace")


def _load_library() -> Any:
    """The C library with the signatures of what is used; raises OSError or AttributeError when there is none."""
    library = ctypes.CDLL(LIBRARY)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for name, result, arguments in (
        ("ZSTD_compressBound", size, [size]),
        ("ZSTD_createCCtx", pointer, []),
        ("ZSTD_freeCCtx", size, [pointer]),
        ("ZSTD_CCtx_setParameter", size, [pointer, number, number]),
        ("ZSTD_compress2", size, [pointer, pointer, size, pointer, size]),
        ("ZSTD_createDCtx", pointer, []),
        ("ZSTD_freeDCtx", size, [pointer]),
        ("ZSTD_decompressDCtx", size, [pointer, pointer, size, pointer, size]),
        ("ZSTD_isError", ctypes.c_uint, [size]),
        ("ZSTD_getErrorName", ctypes.c_char_p, [size]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _LibraryContexts(threading.local):
    """A thread's own contexts and output buffer; they go when the thread ends."""

    def __init__(self, library: Any) -> None:
        self.compressor = _Context(library.ZSTD_createCCtx, library.ZSTD_freeCCtx)
        self.decompressor = _Context(library.ZSTD_createDCtx, library.ZSTD_freeDCtx)
        library.ZSTD_CCtx_setParameter(self.compressor.address, PARAMETER_CHECKSUM, 1)
        self._buffer = ctypes.create_string_buffer(0)

    def buffer_of(self, size: int) -> ctypes.Array[ctypes.c_char]:
        """At least ``size`` bytes to write to, the same ones each time where they suffice."""
        if len(self._buffer) < size:
            self._buffer = ctypes.create_string_buffer(size)
        return self._buffer


class _Context:
    """Memory of the C library, freed together with this object."""

    def __init__(self, create: Callable[[], Optional[int]], free: Callable[[Optional[int]], int]) -> None:
        self._free = free
        self.address = create()
        if self.address is None:
            raise CodecError(f"{LIBRARY} got no memory")

    def __del__(self) -> None:
        self._free(self.address)


def _address(data: Buffer) -> Tuple[Any, int]:
    """``data`` as a pointer argument, which keeps it alive, and its length in bytes. Only a read-only view is copied."""
    if not isinstance(data, bytes):
        view = memoryview(data)
        if view.nbytes and not view.readonly:
            return ctypes.byref(ctypes.c_char.from_buffer(view)), view.nbytes
        data = bytes(view)
    return data, len(data)


class ProgramCodec(Codec):
    """The zstd program, one process a block."""

    backend = "zstd"

    def __init__(self) -> None:
        program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path="/usr/bin")
        if program is None:
            raise FileNotFoundError(PROGRAM)
        self._program = program

    def compress(self, data: Buffer, level: int) -> bytes:
        length = memoryview(data).nbytes
        # A frame is never much longer than its content.
        limit = length + length // 128 + 4096
        frame, status = self._run([f"-{level}", "--single-thread", f"--stream-size={length}"], data, limit)
        if status:
            raise CodecError(f"{self._program} cannot compress at level {level}: it ended with status {status}")
        return frame

    def _content(self, data: Buffer, size: int) -> bytes:
        content, status = self._run(["-d"], data, size)
        if status and len(content) <= size:
            raise CodecError(f"compressed data is damaged: {self._program} ended with status {status}")
        return content

    def _run(self, options: List[str], data: Buffer, limit: int) -> Tuple[bytes, int]:
        """What the program makes of ``data`` and its exit status. It is ended when that is more than ``limit`` bytes."""
        with subprocess.Popen(  # pylint: disable=ansible-bad-function  # an agent has no module's run_command
            [self._program, "-q", "-c", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            feeder = threading.Thread(target=_feed, args=(process.stdin, data), daemon=True)
            feeder.start()
            output = cast(BinaryIO, process.stdout).read(limit + 1)
            if len(output) > limit:
                process.kill()
            feeder.join()
            return output, process.wait()


def _feed(pipe: BinaryIO, data: Buffer) -> None:
    with contextlib.suppress(OSError), pipe:  # the program may end before it has read all
        pipe.write(data)


BACKENDS: Tuple[Type[Codec], ...] = (StandardCodec, PackageCodec, LibraryCodec, ProgramCodec)


def find_codec(wanted: str = "") -> Optional[Codec]:
    """The best way to do zstd on this host, or the one named ``wanted``; None when there is none that works."""
    for kind in BACKENDS:
        if wanted in ("", kind.backend):
            try:
                codec: Codec = kind()
                if codec.decompress(codec.compress(PROBE, 1), len(PROBE)) == PROBE:
                    return codec
            except Exception:  # whatever a foreign module or library does, the next one may be sound
                continue
    return None
