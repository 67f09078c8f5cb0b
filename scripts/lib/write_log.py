"""The log of writes that QEMU's `blklogwrites` keeps (the format of dm-log-writes), and the states that a
device may be in after a power cut."""
import os
import struct

MAGIC = 0x6A736677736872
SUPER = struct.Struct("<QQQI")
ENTRY = struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD = 1, 2, 4
SECTOR = 512


class Entry:
    def __init__(self, offset, size, flags, at):
        self.offset, self.size, self.flags, self.at = offset, size, flags, at


def entries(log):
    """All entries of a log, as far as it was written."""
    with open(log, "rb") as file:
        magic, version, _count, sector = SUPER.unpack(file.read(SUPER.size))
        if magic != MAGIC or version != 1:
            raise ValueError(f"{log} is no log of writes")
        end = os.fstat(file.fileno()).st_size
        at, found = sector, []
        while at + sector <= end:
            file.seek(at)
            place, count, flags, length = ENTRY.unpack(file.read(ENTRY.size))
            if (place, count, flags, length) == (0, 0, 0, 0):
                break
            content = 0 if flags & DISCARD else count * sector
            found.append(Entry(place * sector, count * sector, flags, at + sector))
            at += sector + content
    return found


def copy(log, entry, device, unit=None, survives=None):
    """Puts an entry into a device: all of it, or those units of it that survive."""
    unit = unit or max(entry.size, 1)
    for start in range(0, entry.size, unit):
        length = min(unit, entry.size - start)
        if survives is not None and not survives():
            continue
        if entry.flags & DISCARD:
            os.pwrite(device, bytes(length), entry.offset + start)
        else:
            os.pwrite(device, os.pread(log, length, entry.at + start), entry.offset + start)
