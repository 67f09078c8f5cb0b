"""The log of writes that QEMU's `blklogwrites` keeps (the format of dm-log-writes), and the states that a
device may be in after a power cut."""
import os
import shutil
import struct
import subprocess

MAGIC = 0x6A736677736872
SUPER = struct.Struct("<QQQI")
ENTRY = struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD = 1, 2, 4
SECTOR = 512
# Parts of unflushed writes that survive a power cut.
SHARES = (0.0, 0.3, 0.6, 0.9, 1.0)


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


class Cuts:
    """What a device may have after power cuts at places of its log that come one after the other."""

    def __init__(self, image, log, work, chance):
        self.flushed, self.state = os.path.join(work, "flushed"), os.path.join(work, "state")
        shutil.copyfile(image, self.flushed)
        self.entries, self.applied, self.chance = entries(log), 0, chance
        self.source, self.device = os.open(log, os.O_RDONLY), os.open(self.flushed, os.O_RDWR)

    def at(self, place, unit):
        """The path of an image with all that was flushed before so many entries, and a random part of the rest."""
        before = range(self.applied, place)
        last = max((at for at in before if self.entries[at].flags & FLUSH), default=self.applied - 1)
        while self.applied <= last:
            copy(self.source, self.entries[self.applied], self.device)
            self.applied += 1
        subprocess.run(["cp", "--sparse=always", "--reflink=auto", self.flushed, self.state], check=True)
        torn, share = os.open(self.state, os.O_RDWR), self.chance.choice(SHARES)
        for entry in self.entries[self.applied : place]:
            survives = None if entry.flags & FUA else lambda: self.chance.random() < share
            copy(self.source, entry, torn, unit, survives)
        os.close(torn)
        return self.state
