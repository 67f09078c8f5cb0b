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
MOBIFS_CARGO_BUILD_OPTS = --package mobifs-cli --package mobifs-top --package mobifs-run-preload --profile dist

define MOBIFS_LINUX_CONFIG_FIXUPS
	$(call KCONFIG_ENABLE_OPT,CONFIG_FUSE_FS)
endef

define MOBIFS_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0755 $(@D)/target/$(RUSTC_TARGET_NAME)/dist/mobifs $(TARGET_DIR)/usr/bin/mobifs
	$(INSTALL) -D -m 0755 $(@D)/target/$(RUSTC_TARGET_NAME)/dist/mobifs-top $(TARGET_DIR)/usr/bin/mobifs-top
	$(INSTALL) -D -m 0755 $(@D)/target/$(RUSTC_TARGET_NAME)/dist/libmobifs_run.so \
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
