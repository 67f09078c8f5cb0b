# A database in a shared mapping, in the manner of LMDB: pages are never overwritten while a
# meta page leads to them, and the two meta pages are written in turn, each after an msync of
# what it leads to. mapped.rs says the same and checks it.
import mmap, os, struct, sys, time, zlib

PAGE, PAGES, SLOTS = 4096, 512, 64
path, pause_us = sys.argv[1], int(sys.argv[2])
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
began = now()
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, PAGE * PAGES)
data = mmap.mmap(fd, PAGE * PAGES)

def meta(page):
    txn, root, check = struct.unpack_from("<QII", data, page * PAGE)
    return (txn, root) if check == zlib.crc32(data[page * PAGE:page * PAGE + 12]) else (0, 0)

def root_of(page):
    return list(struct.unpack_from(f"<{SLOTS}I", data, page * PAGE)) if page else [0] * SLOTS

txn, root = max(meta(0), meta(1))
before_txn, before_root = min(meta(0), meta(1))
tree = root_of(root)
# What the older meta page leads to must stay, too.
older = root_of(before_root) if before_txn and before_txn + 1 == txn else []
older_root = before_root
while True:
    txn += 1
    used = {0, 1, root, older_root, *tree, *older}
    free = (page for page in range(2, PAGES) if page not in used)
    older, older_root, tree = tree, root, list(tree)
    for number in range(1 + txn % 3):
        slot, page = (txn * 7 + number) % SLOTS, next(free)
        data[page * PAGE:(page + 1) * PAGE] = struct.pack("<QQ", slot, txn) * (PAGE // 16)
        tree[slot] = page
    root = next(free)
    body = struct.pack(f"<{SLOTS}I", *tree)
    data[root * PAGE:root * PAGE + len(body)] = body
    data.flush()
    at = txn % 2 * PAGE
    head = struct.pack("<QI", txn, root)
    data[at:at + 16] = head + struct.pack("<I", zlib.crc32(head))
    data.flush(at, PAGE)
    # As steps.rs has it.
    print(txn, began, now(), flush=True)
    time.sleep(pause_us * (txn * 7919 % 21 / 10) / 1e6)
    began = now()
