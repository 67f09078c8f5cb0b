#!/usr/bin/env python3
"""Makes the root filesystem of a guest that uses no files of this machine while it runs (a device of the 9p
protocol does not outlive a sleep): installed Debian packages with all that they need, other directories over them.

    guest_root.py IMAGE DIRECTORY...

Each DIRECTORY lies over those before it.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

WANTED = """base-files base-passwd bash btrfs-progs coreutils dash dbus e2fsprogs findutils grep hostname
libc-bin libpam-systemd mawk mount procps python3 sed sqlite3 systemd util-linux""".split()
LEFT_OUT = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info")
# Of the machine's own settings: what programs need to run, and nothing that makes them do something.
SETTINGS = """alternatives dbus-1 group ld.so.cache ld.so.conf ld.so.conf.d login.defs nsswitch.conf pam.conf pam.d
passwd security shells""".split()
SIZE = "1G"


def installed():
    """What each package needs, as lists of alternatives; and which package provides a name."""
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f=${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n"],
        capture_output=True, text=True, check=True,
    ).stdout
    needs, providers = {}, {}
    for line in listed.splitlines():
        name, provided, needed = line.split("\t")
        groups = [group for group in needed.split(",") if group.strip()]
        needs[name] = [[re.split(r"[ (:]", one.strip())[0] for one in group.split("|")] for group in groups]
        for one in provided.split(","):
            if one.strip():
                providers.setdefault(one.split()[0], name)
    return needs, providers


def with_needed(wanted):
    needs, providers = installed()
    found, rest = set(), list(wanted)
    while rest:
        name = rest.pop()
        name = name if name in needs else providers.get(name)
        if name is None or name in found:
            continue
        found.add(name)
        for alternatives in needs[name]:
            rest += [one for one in alternatives if one in needs or one in providers][:1]
    return sorted(found)


def copy_packages(root):
    listed = subprocess.run(["dpkg", "-L", *with_needed(WANTED)], capture_output=True, text=True, check=True).stdout
    paths = {line for line in listed.splitlines() if line.startswith("/") and not line.startswith(LEFT_OUT)}
    # Where /lib is /usr/lib, packages still name files by the shorter path.
    paths = {os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) for path in paths}
    files = sorted(path for path in paths if os.path.islink(path) or os.path.isfile(path))
    packed = subprocess.Popen(
        ["tar", "-C", "/", "-c", "--no-recursion", "--null", "-T", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    unpacked = subprocess.Popen(["tar", "-C", root, "-x", "-p"], stdin=packed.stdout)
    packed.stdin.write(b"\0".join(path.lstrip("/").encode() for path in files))
    packed.stdin.close()
    if packed.wait() or unpacked.wait():
        sys.exit("guest: the files of packages could not be copied")


def copy_over(directory, root):
    """Directories may be symbolic links on the other side, as /lib is."""
    packed = subprocess.Popen(["tar", "-C", directory, "-c", "."], stdout=subprocess.PIPE)
    unpack = ["tar", "-C", root, "-x", "-p", "--keep-directory-symlink", "--no-overwrite-dir"]
    if subprocess.run(unpack, stdin=packed.stdout, check=False).returncode or packed.wait():
        sys.exit(f"guest: the files of {directory} could not be copied")


def main():
    image, *over = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(image))) as root:
        for name in ("bin", "sbin", "lib", "lib64"):
            os.makedirs(os.path.join(root, "usr", name))
            os.symlink(f"usr/{name}", os.path.join(root, name))
        copy_packages(root)
        # What the packages brought as an example is the machine's own to set.
        shutil.rmtree(os.path.join(root, "etc"), ignore_errors=True)
        os.mkdir(os.path.join(root, "etc"))
        for name in SETTINGS:
            if os.path.exists(f"/etc/{name}"):
                subprocess.run(["cp", "-a", f"/etc/{name}", os.path.join(root, "etc")], check=True)
        for name in ("dev", "proc", "sys", "run", "tmp", "var/lib", "var/log", "root", "mnt", "srv"):
            os.makedirs(os.path.join(root, name), exist_ok=True)
        for directory in over:
            copy_over(directory, root)
        subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-d", root, image, SIZE], check=True)


if __name__ == "__main__":
    main()
