# `bitbake -c update_crates mobifs` writes mobifs-crates.inc, the crates of Cargo.lock with their sums, beside this file.
SUMMARY = "Memory-speed storage over the filesystem you have"
HOMEPAGE = "https://github.com/mobifs/mobifs"
LICENSE = "MIT | Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE-MIT;md5=0042c0b55679ba1a0813a0addc3ac0aa"

SRC_URI = "git://github.com/mobifs/mobifs.git;protocol=https;branch=main;tag=v${PV}"
S = "${WORKDIR}/git"

inherit cargo cargo-update-recipe-crates systemd update-rc.d
include mobifs-crates.inc

# Of the workspace only the product: the laboratory is for machines that develop.
CARGO_BUILD_FLAGS += "--package mobifs-cli --package mobifs-top --package mobifs-run-preload"

do_install() {
    install -D -m 0755 ${B}/target/${CARGO_TARGET_SUBDIR}/mobifs ${D}${bindir}/mobifs
    install -D -m 0755 ${B}/target/${CARGO_TARGET_SUBDIR}/mobifs-top ${D}${bindir}/mobifs-top
    install -D -m 0755 ${B}/target/${CARGO_TARGET_SUBDIR}/libmobifs_run.so ${D}${prefix}/lib/mobifs/libmobifs_run.so
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
