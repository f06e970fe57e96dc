"""Write v1.snapshot by the description in core/snapshot/doc.go, with nothing of the code it tests."""

import struct
from pathlib import Path

table = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    table.append(n)


def crc32c(crc: int, data: bytes) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def varint(n: int) -> bytes:
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def text(data: bytes) -> bytes:
    return varint(len(data)) + data


def u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


out = b"DGOSNAP\x1a" + struct.pack("<I", 1)
crc = crc32c(0, out)


def section(kind: int, payload: bytes) -> None:
    global out, crc
    framed = bytes([kind]) + struct.pack("<I", len(payload)) + payload
    crc = crc32c(crc, framed)
    out += framed + struct.pack("<I", crc)


def run(flags: int, ranks: bytes, references: int, parent: bytes, blocks: list[tuple[int, int]]) -> bytes:
    body = b"".join(u64(*block) for block in blocks)
    return bytes([flags]) + ranks + varint(references) + parent + varint(len(blocks)) + body


# Block size 16, 2026-01-02T03:04:05.678901Z, three ranks.
section(1, varint(16) + u64(1767323045678901) + text(b"xxh3-64/1337/chained") + varint(3))
section(2, u64(7) + struct.pack("<I", 0) + b"\0" + varint(3) + text(b""))
section(2, u64(7) + struct.pack("<I", 1) + b"\0" + varint(300) + text(b"snapshot: hidden"))
feed = u64(1000, 99) + varint(2) + u64(0xAAAA, 0xBBBB) + text(b"history_gone: 5") + text(b"\0\0\0")
section(2, u64(2**64 - 1) + struct.pack("<I", 3) + b"\1" + varint(2) + text(b"") + feed)
section(
    3,
    # Ranks 0 and 2 hold two blocks, once; rank 0 alone another below them, twice.
    run(2, varint(2) + varint(0) + varint(2), 1, b"", [(11, 111), (2**64 - 1, 2**63)])
    + run(3, varint(1) + varint(0), 2, u64(2**63), [(33, 333)])
    # Ranks 0 and 2 again: on disk, on the host.
    + run(0x20, varint(0), 1, b"", [(44, 444)])
    + run(0x11, varint(0), 1, u64(444), [(55, 555)]),
)
section(3, run(2, varint(1) + varint(1), 4096, b"", [(66, 666)]))
section(4, varint(5) + varint(6))
Path(__file__).with_name("v1.snapshot").write_bytes(out)
