################################################################################
#
# mobifs
#
# Put this directory into package/mobifs of Buildroot (or of a BR2_EXTERNAL tree), and a line
# `source "package/mobifs/Config.in"` into package/Config.in.
#
################################################################################

MOBIFS_VERSION = 0.1.0
MOBIFS_SITE = $(call github,mobifs,mobifs,v$(MOBIFS_VERSION))
MOBIFS_LICENSE = MIT or Apache-2.0
MOBIFS_LICENSE_FILES = LICENSE-MIT LICENSE-APACHE
# Of the workspace only the product: the laboratory is for machines that develop.
MOBIFS_CARGO = cd $(@D) && $(TARGET_MAKE_ENV) $(TARGET_CONFIGURE_OPTS) $(PKG_CARGO_ENV) \
	cargo build --offline --locked --manifest-path Cargo.toml
# Programs that abort when they panic need no tables for unwinding. Written so, the flag is added to those of Buildroot.
MOBIFS_NO_TABLES = "-C", "link-arg=-Wl,--script=$(@D)/scripts/lib/no-unwinding.ld"

# Buildroot's own commands have --release, which goes with no other profile.
define MOBIFS_BUILD_CMDS
	$(MOBIFS_CARGO) --profile dist --package mobifs-cli --package mobifs-top \
		--config 'target."cfg(all())".rustflags=[$(MOBIFS_NO_TABLES)]'
	$(MOBIFS_CARGO) --profile dist-library --package mobifs-run-preload
endef

define MOBIFS_LINUX_CONFIG_FIXUPS
	$(call KCONFIG_ENABLE_OPT,CONFIG_FUSE_FS)
endef

define MOBIFS_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0755 $(@D)/target/$(RUSTC_TARGET_NAME)/dist/mobifs $(TARGET_DIR)/usr/bin/mobifs
	$(INSTALL) -D -m 0755 $(@D)/target/$(RUSTC_TARGET_NAME)/dist/mobifs-top $(TARGET_DIR)/usr/bin/mobifs-top
	$(INSTALL) -D -m 0755 $(@D)/target/$(RUSTC_TARGET_NAME)/dist-library/libmobifs_run.so \
		$(TARGET_DIR)/usr/lib/mobifs/libmobifs_run.so
	$(INSTALL) -D -m 0644 $(@D)/dist/etc/mobifs.toml $(TARGET_DIR)/etc/mobifs/mobifs.toml
	mkdir -p $(TARGET_DIR)/sbin
	ln -sfn ../usr/bin/mobifs $(TARGET_DIR)/sbin/mount.fuse.mobifs
	ln -sfn ../usr/bin/mobifs $(TARGET_DIR)/sbin/umount.fuse.mobifs
	ln -sfn ../usr/bin/mobifs $(TARGET_DIR)/sbin/umount.fuseblk.mobifs
endef

define MOBIFS_INSTALL_INIT_SYSV
	$(INSTALL) -D -m 0755 $(@D)/dist/init/S50mobifs $(TARGET_DIR)/etc/init.d/S50mobifs
endef

define MOBIFS_INSTALL_INIT_SYSTEMD
	$(MAKE) -C $(@D) install-units PREFIX=/usr DESTDIR=$(TARGET_DIR)
endef

$(eval $(cargo-package))
