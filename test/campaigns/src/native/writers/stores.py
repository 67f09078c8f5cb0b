# Two stores into a shared mapping in each step, each followed by an msync: into one of the first pages in
# turn, and then into the last one. stores.rs says the same and checks it.
import mmap, os, struct, sys, time

PAGE, PAGES = 4096, 64
path, pause_us = sys.argv[1], int(sys.argv[2])
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, bytes(PAGE * PAGES))
data = mmap.mmap(fd, PAGE * PAGES)
step = 0
began = now()
while True:
    step += 1
    number = struct.pack("<Q", step)
    for page in step % (PAGES - 1), PAGES - 1:
        data[page * PAGE:page * PAGE + 8] = number
        data.flush(page * PAGE, PAGE)
    # As steps.rs has it.
    print(step, began, now(), flush=True)
    if pause_us:
        time.sleep(pause_us * (step * 7919 % 21 / 10) / 1e6)
    began = now()
