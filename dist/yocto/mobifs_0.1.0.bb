# `bitbake -c update_crates mobifs` writes mobifs-crates.inc, the crates of Cargo.lock with their sums, beside this file.
SUMMARY = "Memory-speed storage over the filesystem you have"
DESCRIPTION = "MobiFS keeps what programs write in memory, in order, and commits it in transactions when a policy finds \
that it pays: fsync returns at memory speed, and after a crash every app finds a state that really existed."
SECTION = "base"
HOMEPAGE = "https://github.com/mobifs/mobifs"
LICENSE = "MIT | Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE-MIT;md5=0042c0b55679ba1a0813a0addc3ac0aa"

SRC_URI = "git://github.com/mobifs/mobifs.git;protocol=https;branch=main;tag=v${PV}"
# Where the source is, is the default of Yocto 5.3, the first with a Rust that is new enough (1.88).

inherit cargo cargo-update-recipe-crates systemd update-rc.d
require mobifs-crates.inc

# Of the workspace only the product: the laboratory is for machines that develop. The profile of packages makes the program
# half as large as `release` does; it aborts when it panics, and needs no tables for unwinding.
CARGO_BUILD_FLAGS += "--package mobifs-cli --package mobifs-top"
BUILD_MODE = "--profile dist"
BUILD_DIR = "dist"
RUSTFLAGS:append = " -C link-arg=-Wl,--script=${S}/scripts/lib/no-unwinding.ld"

# The library of `mobifs run` keeps its tables.
do_compile:append() {
    unset RUSTFLAGS
    "${CARGO}" build -v --frozen --target ${RUST_HOST_SYS} --profile dist-library --package mobifs-run-preload \
        --manifest-path=${CARGO_MANIFEST_PATH}
}

do_install() {
    install -D -m 0755 ${B}/target/${CARGO_TARGET_SUBDIR}/mobifs ${D}${bindir}/mobifs
    install -D -m 0755 ${B}/target/${CARGO_TARGET_SUBDIR}/mobifs-top ${D}${bindir}/mobifs-top
    install -D -m 0755 ${B}/target/${RUST_HOST_SYS}/dist-library/libmobifs_run.so ${D}${prefix}/lib/mobifs/libmobifs_run.so
    install -D -m 0644 ${S}/dist/etc/mobifs.toml ${D}${sysconfdir}/mobifs/mobifs.toml
    install -d ${D}${base_sbindir}
    for helper in mount.fuse.mobifs umount.fuse.mobifs umount.fuseblk.mobifs; do
        ln -s ${bindir}/mobifs ${D}${base_sbindir}/$helper
    done
    install -D -m 0755 ${S}/dist/init/S50mobifs ${D}${sysconfdir}/init.d/mobifs
    oe_runmake -C ${S} install-units PREFIX=${prefix} DESTDIR=${D}
}

INITSCRIPT_NAME = "mobifs"
INITSCRIPT_PARAMS = "start 50 S . stop 50 0 6 ."
SYSTEMD_SERVICE:${PN} = "mobifs-sleep.service"
SYSTEMD_AUTO_ENABLE = "disable"
FILES:${PN} += "${prefix}/lib/mobifs ${prefix}/lib/systemd"
CONFFILES:${PN} = "${sysconfdir}/mobifs/mobifs.toml"
RRECOMMENDS:${PN} = "kernel-module-fuse"
