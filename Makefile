# Every target is one script; run `make` for the list.
PREFIX  ?= /usr/local
DESTDIR ?=
# mount(8) looks for its helpers here and nowhere else.
HELPERDIR ?= /sbin
HELPERS := mount.fuse.mobifs umount.fuse.mobifs umount.fuseblk.mobifs
# umount.fuse, which umount(8) looks for, belongs to all FUSE filesystems: what another package has
# put there stays. Ours hands what is not MobiFS back to umount(8). SHARED_HELPER=no leaves the name alone.
SHARED_HELPER ?= yes
# PRELOAD=no: without the library of `mobifs run`, which a static program cannot be.
PRELOAD ?= yes
# Where cargo builds.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# Where binaries and manual pages are taken from.
BUILD ?= $(TARGET_DIR)/release
# The library of `mobifs run`, where it is built with a profile of its own (`dist-library`).
LIBRARIES ?= $(BUILD)
MANUALS ?= $(TARGET_DIR)/manuals
# The prefix that units name.
UNIT_PREFIX ?= $(PREFIX)
ZSH_COMPLETIONS ?= $(PREFIX)/share/zsh/site-functions
# Where crash-campaign-disks lets MobiFS lie.
FILESYSTEMS ?= ext4,btrfs,xfs

.DEFAULT_GOAL := help
.PHONY: help setup build static manuals install install-programs install-manuals install-units install-lab \
	install-sqlite uninstall deb tarball package-test sqlite-conformance sqlite-tcl wheel wheel-portable \
	package-check memory-floor sizes site session replay demo test check explore lint test-32bit targets bench \
	bench-flash bench-native bench-native-cost bench-sqlite-vfs bench-neighbours bench-together bench-servers bench-record sim-native \
	bench-recovery bench-responsiveness fuzz tsan room room-f2fs crash-campaign crash-campaign-disks \
	crash-campaign-f2fs native-campaign native-guest native-systemd adopt-guest package-guest systemd-check kill-campaign kill-search \
	poison-campaign postmark-cuts flash-campaign defrag-campaign defrag-comparison frag-f2fs sqlite-campaign \
	sqlite-histories corpus soak servers frag-report persist-report clean

# Pages and completions of one program. Completions of zsh are in another directory on each system.
define install_manuals
	[ -d $(MANUALS)/$(1) ] || { echo "there are no manual pages in $(MANUALS): run make build (or make manuals)" >&2; exit 1; }
	install -d $(DESTDIR)$(PREFIX)/share $(DESTDIR)$(ZSH_COMPLETIONS)
	for part in man bash-completion fish; do cp -R $(MANUALS)/$(1)/share/$$part $(DESTDIR)$(PREFIX)/share/ || exit; done
	cp $(MANUALS)/$(1)/share/zsh/site-functions/* $(DESTDIR)$(ZSH_COMPLETIONS)/
endef

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing (system packages, test suites)
	scripts/setup.sh

build: ## Build the release binaries, manual pages and completions
	cargo build --release --locked
	$(TARGET_DIR)/release/mobifs-manuals $(MANUALS)

static: ## Build mobifs as one static program for x86_64 and aarch64 (musl; no C compiler needed)
	scripts/build-static.sh

manuals: ## Make manual pages and completions of bash, zsh and fish (into target/manuals)
	cargo run --release --locked -p mobifs-manuals -- $(MANUALS)

install: install-programs install-manuals install-units ## Install the mobifs command, its mount helpers, pages and units (PREFIX, DESTDIR, HELPERDIR)
	install -d $(DESTDIR)$(HELPERDIR)
	for name in $(HELPERS); do ln -sfn $(PREFIX)/bin/mobifs $(DESTDIR)$(HELPERDIR)/$$name || exit; done
	[ $(SHARED_HELPER) = no ] || [ -e $(DESTDIR)$(HELPERDIR)/umount.fuse ] || [ -L $(DESTDIR)$(HELPERDIR)/umount.fuse ] || \
		ln -sn $(PREFIX)/bin/mobifs $(DESTDIR)$(HELPERDIR)/umount.fuse

install-programs:
	install -D -m 755 $(BUILD)/mobifs $(DESTDIR)$(PREFIX)/bin/mobifs
	install -D -m 755 $(BUILD)/mobifs-top $(DESTDIR)$(PREFIX)/bin/mobifs-top
	[ $(PRELOAD) = no ] || \
		install -D -m 755 $(LIBRARIES)/libmobifs_run.so $(DESTDIR)$(PREFIX)/lib/mobifs/libmobifs_run.so

install-manuals:
	$(call install_manuals,mobifs)

install-units:
	for unit in dist/mobifs-sleep.service dist/mobifs@.service dist/mobifs-steer@.service; do \
		install -d $(DESTDIR)$(PREFIX)/lib/systemd/system && \
		sed 's#/usr/local/bin/#$(UNIT_PREFIX)/bin/#' $$unit > $(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/} || exit; done
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/user
	sed 's#/usr/local/bin/#$(UNIT_PREFIX)/bin/#' dist/user/mobifs@.service > $(DESTDIR)$(PREFIX)/lib/systemd/user/mobifs@.service

install-lab: ## Install mobifs-lab too: traces, simulation, the flash device, benches (PREFIX, DESTDIR)
	install -D -m 755 $(BUILD)/mobifs-lab $(DESTDIR)$(PREFIX)/bin/mobifs-lab
	$(call install_manuals,mobifs-lab)

install-sqlite: ## Install the SQLite extension and its header (PREFIX, DESTDIR)
	install -D -m 755 $(BUILD)/libmobifs.so $(DESTDIR)$(PREFIX)/lib/libmobifs.so
	install -D -m 644 $(BUILD)/libmobifs.a $(DESTDIR)$(PREFIX)/lib/libmobifs.a
	install -D -m 644 crates/sqlite-extension/include/mobifs.h $(DESTDIR)$(PREFIX)/include/mobifs.h

uninstall: ## Remove what install, install-lab and install-sqlite put there
	@! ls $(DESTDIR)/etc/mobifs/adopted/*.json >/dev/null 2>&1 || \
		{ echo "directories are adopted (mobifs adopt --list): mobifs unadopt DIR first" >&2; exit 1; }
	@# Users have their notes in their homes; the program knows all of them.
	@mobifs=$(PREFIX)/bin/mobifs all=; [ "$$(id -u)" != 0 ] || all=--all-users; \
		if [ -z "$(DESTDIR)" ] && [ -x "$$mobifs" ] && list=$$("$$mobifs" adopt --list $$all --json) && \
			{ printf %s "$$list" | grep -q '"directory"' || ! "$$mobifs" every adopted; }; then \
			echo "directories are adopted (mobifs adopt --list $$all): mobifs unadopt DIR first" >&2; exit 1; fi
	rm -f $(DESTDIR)$(PREFIX)/bin/mobifs $(DESTDIR)$(PREFIX)/bin/mobifs-top $(DESTDIR)$(PREFIX)/bin/mobifs-lab
	rm -f $(DESTDIR)$(PREFIX)/lib/mobifs/libmobifs_run.so
	rmdir $(DESTDIR)$(PREFIX)/lib/mobifs 2>/dev/null || :
	rm -f $(DESTDIR)$(PREFIX)/lib/libmobifs.so $(DESTDIR)$(PREFIX)/lib/libmobifs.a \
		$(DESTDIR)$(PREFIX)/include/mobifs.h
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/mobifs.1 $(DESTDIR)$(PREFIX)/share/man/man1/mobifs-*.1 \
		$(DESTDIR)$(PREFIX)/share/man/man5/mobifs.toml.5 $(HELPERS:%=$(DESTDIR)$(PREFIX)/share/man/man8/%.8)
	for name in mobifs mobifs-lab; do rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$name \
		$(DESTDIR)$(ZSH_COMPLETIONS)/_$$name $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$name.fish; done
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/user/mobifs@.service $(DESTDIR)$(PREFIX)/lib/systemd/system/mobifs@.service \
		$(DESTDIR)$(PREFIX)/lib/systemd/system/mobifs-steer@.service $(DESTDIR)$(PREFIX)/lib/systemd/system/mobifs-sleep.service
	rm -f $(HELPERS:%=$(DESTDIR)$(HELPERDIR)/%)
	[ "$$(readlink $(DESTDIR)$(HELPERDIR)/umount.fuse)" != $(PREFIX)/bin/mobifs ] || \
		rm -f $(DESTDIR)$(HELPERDIR)/umount.fuse

deb: ## Debian packages into target/deb (ARCH="amd64 arm64 armhf"; default: this machine's)
	scripts/deb.sh $(ARCH)

tarball: ## Archives of static programs into target/tarball (TARGETS; default: x86_64, aarch64, armv7 with musl)
	scripts/tarball.sh $(TARGETS)

package-test: ## Install, use, remove and purge the Debian packages in a clean Debian (root)
	scripts/package-test.sh

package-guest: ## The Debian package in a clean Debian under QEMU: installed, /var/log adopted, power cuts, back, purged (root)
	scripts/package-guest.sh

sqlite-conformance: ## CPython's tests and SQL logic tests through the VFS (CONFORMANCE_FLAGS)
	python3 scripts/sqlite_conformance.py --release $(CONFORMANCE_FLAGS)

sqlite-tcl: ## SQLite's own tests with the VFS as default (SUITE=veryquick, SQLITE_TCL_FLAGS)
	scripts/setup.sh --sqlite-tcl
	python3 scripts/sqlite_tcl.py --release --suite $(or $(SUITE),veryquick) $(SQLITE_TCL_FLAGS)

wheel: ## The Python package with the SQLite extension (into target/wheels)
	python3 bindings/python/backend/wheel_backend.py target/wheels

wheel-portable: ## Wheels for older distributions (manylinux_2_28), x86_64 and aarch64, and the npm package (MACHINES)
	scripts/wheels.sh $(MACHINES)

package-check: ## Every crate that is published, packed as for crates.io and built from there (PACKAGE_FLAGS=--no-verify)
	scripts/check-publish.sh $(PACKAGE_FLAGS)

memory-floor: ## What a mount takes of a small machine's memory, by its budget
	cargo build --release --locked -p mobifs-cli
	python3 scripts/memory_floor.py

sizes: ## Sizes of the packages, archives and wheels that were built
	@python3 scripts/sizes.py

site: ## The documents as a site, into target/site/html (SITE_FLAGS=--serve)
	scripts/site.sh $(SITE_FLAGS)

session: ## Record the terminal session of the site's first page again (root)
	cargo build --release --locked -p mobifs-cli
	python3 scripts/session.py record

replay: ## Play it here
	@python3 scripts/session.py play

demo: ## SQLite, git and a package on MobiFS and on the bare disk, then a power cut
	scripts/setup.sh --build-only
	cargo build --release --locked
	python3 scripts/demo.py

test: ## All tests and the lint, as CI runs them
	.ci/run

check: ## Before every commit: formatting, clippy, documents, unit tests; no root
	scripts/check.sh

explore: ## Random tests with a new seed, which is printed (SECONDS, SEED)
	scripts/explore.sh $(or $(SECONDS),60) $(SEED)

lint: ## Formatting, clippy, purity of the engine, file lengths, documents, licences
	scripts/lint.sh

test-32bit: ## Unit tests of base, engine and store on emulated 32-bit ARM (qemu-user)
	scripts/setup.sh --32bit
	scripts/test-32bit.sh

targets: ## Compile for 32-bit ARM, 64-bit ARM, musl and Android (cargo check)
	scripts/check-targets.sh

bench: ## Side-by-side benches (BENCH_FLAGS=--quick for a short run)
	scripts/setup.sh --build-only
	cargo build --release --locked
	python3 scripts/bench.py $(BENCH_FLAGS)

bench-flash: ## The same on a modelled eMMC, with what reached its cells (PRESET, root)
	scripts/setup.sh --build-only
	cargo build --release --locked
	python3 scripts/bench.py --flash $(or $(PRESET),emmc51) $(BENCH_FLAGS)

bench-native: ## Native mode beside a mount, the same filesystems without it, and tmpfs (BENCH_FLAGS, root)
	scripts/setup.sh --build-only
	cargo build --release --locked -p mobifs-cli -p mobifs-lab-cli -p mobifs-run-preload
	python3 scripts/bench_native.py $(BENCH_FLAGS)

bench-native-cost: ## CPU time and wake-ups of native mode's daemon, at rest and under load (BENCH_FLAGS, root)
	cargo build --release --locked -p mobifs-cli
	python3 scripts/bench_native_cost.py $(BENCH_FLAGS)

bench-sqlite-vfs: ## SQLite through the VFS beside SQLite without it (BENCH_FLAGS, root)
	cargo build --release --locked -p mobifs-cli -p mobifs-lab-cli
	python3 scripts/bench_sqlite_vfs.py $(BENCH_FLAGS)

bench-neighbours: ## Small operations beside an app that writes all it can, on ext4 and on a mount (BENCH_FLAGS, root)
	cargo build --release --locked -p mobifs-cli -p mobifs-lab-cli
	python3 scripts/bench_neighbours.py $(BENCH_FLAGS)

bench-together: ## Durable SQLite transactions of four programs at once, on ext4 and on a mount (BENCH_FLAGS, root)
	cargo build --release --locked -p mobifs-cli -p mobifs-lab-cli
	python3 scripts/bench_together.py $(BENCH_FLAGS)

bench-servers: ## PostgreSQL, Redis and etcd with durable transactions, on ext4 and on a mount (BENCH_FLAGS, root)
	cargo build --release --locked -p mobifs-cli -p mobifs-lab-cli
	python3 scripts/bench_servers.py $(BENCH_FLAGS)

bench-record: ## What --record costs, with and without it in turns (BENCH_FLAGS)
	cargo build --release --locked
	python3 scripts/bench_record.py $(BENCH_FLAGS)

sim-native: ## Native mode of `mobifs sim` beside a real ext4 (TRACES="a.parquet …", SIM_FLAGS, root)
	cargo build --release --locked
	python3 scripts/sim_native.py $(SIM_FLAGS) $(or $(TRACES),traces/sqlite.parquet)

bench-recovery: ## Mount after a power cut against what the journal holds, beside ext4 (root)
	cargo build --release --locked -p mobifs-cli
	cargo run --release --locked -p mobifs-campaigns -- recovery

bench-responsiveness: ## A user's reads while programs commit in the background, on a modelled eMMC (PRESET, root)
	scripts/setup.sh --build-only
	cargo build --release --locked
	python3 scripts/bench_responsiveness.py --preset $(or $(PRESET),emmc51) $(BENCH_FLAGS)

fuzz: ## Fuzzers of everything that reads what others wrote (SECONDS each, TARGET; nightly)
	scripts/fuzz.sh $(or $(SECONDS),60) $(TARGET)

tsan: ## Tests with several threads under ThreadSanitizer (nightly with rust-src)
	scripts/tsan.sh

room: ## Disks filled by files and directories of every shape, minutes (SHAPES, FILESYSTEMS, root)
	$(if $(SHAPES),MOBIFS_SHAPES=$(SHAPES)) $(if $(filter command line,$(origin FILESYSTEMS)),MOBIFS_FILESYSTEMS=$(FILESYSTEMS)) \
		cargo test --locked -p mobifs-cli --test mounted -- --ignored --nocapture disks_full_of_every_shape

room-f2fs: ## The same over f2fs, in a guest of QEMU (SHAPES)
	cargo build --locked -p mobifs-cli
	scripts/room-f2fs.sh $(SHAPES)

crash-campaign: ## Long crash search (SECONDS, SEED)
	cargo run --release --locked -p mobifs-testkit --bin crash-campaign -- \
		--seconds $(or $(SECONDS),600) --seed $(or $(SEED),1)

crash-campaign-disks: ## Power cuts of mounts on real filesystems (CUTS, SEED, FILESYSTEMS, root)
	cargo build --release --locked -p mobifs-cli
	cargo run --release --locked -p mobifs-campaigns -- cuts --filesystems $(FILESYSTEMS) \
		--cuts $(or $(CUTS),200) --seed $(or $(SEED),1)

crash-campaign-f2fs: ## The same over f2fs, in a guest of QEMU (CUTS, SEED)
	cargo build --release --locked -p mobifs-cli -p mobifs-campaigns
	scripts/crash-campaign-f2fs.sh $(or $(CUTS),200) $(or $(SEED),1)

native-campaign: ## Power cuts of a steered ext4 (CUTS, SEED, root), and a control that must fail; FILESYSTEM=btrfs
	cargo build --release --locked -p mobifs-cli -p mobifs-run-preload
	cargo run --release --locked -p mobifs-campaigns -- native --control --cuts 60 \
		--seed $(or $(SEED),1)
	cargo run --release --locked -p mobifs-campaigns -- native --cuts $(or $(CUTS),1000) \
		--seed $(or $(SEED),1) --filesystem $(or $(FILESYSTEM),ext4)

native-guest: ## Power cuts of some steered directories (`steer --only`), in a guest of QEMU (CUTS, SEED, root)
	cargo build --release --locked -p mobifs-cli -p mobifs-run-preload
	scripts/native-guest.sh $(or $(CUTS),200) $(or $(SEED),1)

native-systemd: ## Services, containers, jumps of the clock and real sleep in native mode, with power cuts, in a guest (CUTS, SEED, root)
	cargo build --release --locked -p mobifs-cli -p mobifs-run-preload
	scripts/native-systemd.sh $(or $(CUTS),100) $(or $(SEED),1)

adopt-guest: ## mobifs adopt of /var/log under the real systemd and journald, power cuts, in a guest of QEMU (CUTS)
	cargo build --release --locked -p mobifs-cli
	scripts/adopt-guest.sh $(or $(CUTS),4)

systemd-check: ## The real systemd, logind and UPower, in a guest of QEMU
	cargo build --release --locked -p mobifs-cli
	scripts/systemd-check.sh

kill-campaign: ## Daemons killed while programs work on the mount (KILLS, SEED, root)
	MOBIFS_KILLS=$(or $(KILLS),1000) MOBIFS_KILL_SEED=$(or $(SEED),1) cargo test --release \
		--locked -p mobifs-cli --test mounted kills::programs -- --nocapture

kill-search: ## Processes over the journal store killed at every instant; what is found is shrunk (SECONDS, SEED)
	cargo run --release --locked -p mobifs-testkit --bin crash-campaign -- --stage kills \
		--seconds $(or $(SECONDS),600) --seed $(or $(SEED),1)

poison-campaign: ## Daemons that cannot take over, wherever and however (ROUNDS, SEED, root)
	MOBIFS_POISON_ROUNDS=$(or $(ROUNDS),3) MOBIFS_POISON_SEED=$(or $(SEED),1) cargo test \
		--locked -p mobifs-cli --test mounted poison:: -- --nocapture --test-threads 1

postmark-cuts: ## A large PostMark, ten power cuts in each of its phases (root)
	cargo build --release --locked -p mobifs-cli
	cargo run --release --locked -p mobifs-campaigns -- postmark --files 10000 --transactions 20000

flash-campaign: ## Power cuts of an ext4 at work on the modelled device (CUTS, SEED, root)
	MOBIFS_FLASH_CUTS=$(or $(CUTS),200) MOBIFS_FLASH_SEED=$(or $(SEED),1) cargo test --locked \
		-p mobifs-device-server --test mounted campaign -- --nocapture

defrag-campaign: ## Power cuts of an ext4 whose files are being remapped (CUTS, SEED, root)
	MOBIFS_DEFRAG_CUTS=$(or $(CUTS),10000) MOBIFS_DEFRAG_SEED=$(or $(SEED),1) cargo test --locked \
		-p mobifs-defragmenter --test it power_cut -- --nocapture

defrag-comparison: ## e4defrag, copying and remapping on the same aged filesystems (MIB, root)
	MOBIFS_DEFRAG_MIB=$(or $(MIB),512) cargo test --locked -p mobifs-defragmenter --test it \
		full_filesystems -- --nocapture

frag-f2fs: ## Measure and defragment an f2fs, in a guest of QEMU
	scripts/frag-f2fs.sh

sqlite-campaign: ## Power cuts and kills under SQLite in the VFS (CUTS, DISK_CUTS, KILLS, SEED, root)
	MOBIFS_CUTS=$(or $(CUTS),100000) MOBIFS_CUT_SEED=$(or $(SEED),1) cargo test --release --locked \
		-p mobifs-sqlite --test power_cuts -- --nocapture
	MOBIFS_KILLS=$(or $(KILLS),1000) MOBIFS_KILL_SEED=$(or $(SEED),1) cargo test --release \
		--locked -p mobifs-sqlite --test killed -- --nocapture
	MOBIFS_FLASH_CUTS=$(or $(DISK_CUTS),500) MOBIFS_FLASH_SEED=$(or $(SEED),1) cargo test \
		--release --locked -p mobifs-device-server --test mounted databases_in_mobifs -- --nocapture

sqlite-histories: ## The VFS and plain SQLite do the same, call by call (HISTORIES, SEED, root)
	MOBIFS_HISTORIES=$(or $(HISTORIES),2000) MOBIFS_HISTORY_SEED=$(or $(SEED),1) cargo test \
		--release --locked -p mobifs-sqlite --test stateful -- --nocapture

corpus: ## Record real programs as traces (CORPUS_FLAGS=--install, or DIRECTORY PROGRAM...)
	cargo build --release --locked -p mobifs-cli -p mobifs-lab-cli
	scripts/record-corpus.sh $(CORPUS_FLAGS)

soak: ## Long load by stress-ng, fio, dbench and others; nothing may stay (SOAK_FLAGS, root)
	scripts/setup.sh --soak
	cargo build --release --locked
	python3 scripts/soak.py $(SOAK_FLAGS)

servers: ## PostgreSQL, MariaDB, Redis, etcd on a mount: kills, power cuts (SERVERS_FLAGS, root)
	cargo build --release --locked -p mobifs-cli -p mobifs-lab-cli
	python3 scripts/servers.py $(SERVERS_FLAGS)

frag-report: ## Published experiments with fragmented files as a page, criteria beside each (OUT, FULL=1, SEED, root)
	cargo build --release --locked -p mobifs-lab-cli
	$(TARGET_DIR)/release/mobifs-lab frag experiment all --out $(or $(OUT),$(TARGET_DIR)/frag-report) --seed $(or $(SEED),1) \
		$(if $(filter 1,$(FULL)),--full)

persist-report: ## What commits cost, by programs, journals and filesystems, as a page beside published values (OUT, FULL=1, TRACES, root)
	cargo build --release --locked -p mobifs-cli -p mobifs-lab-cli
	$(TARGET_DIR)/release/mobifs-lab persist report --out $(or $(OUT),$(TARGET_DIR)/persist-report) $(if $(filter 1,$(FULL)),--full) \
		$(or $(TRACES),$(if $(filter 1,$(FULL)),$(wildcard traces/*.parquet),traces/sqlite.parquet traces/packages.parquet))

clean: ## Remove build results and downloaded tools
	cargo clean
	rm -rf .cache test/fuzz/target test/fuzz/corpus test/fuzz/artifacts
