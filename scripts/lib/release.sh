# Builds what packages are made of. To be sourced by a script that stands in the repository's root:
#
#   release_build TARGET PROFILE CARGO_ARGUMENT...   binaries in $(release_directory TARGET PROFILE)
#   release_manuals PROFILE DIRECTORY                manual pages and completions
#   release_environment                              times and paths that do not depend on this machine
#   release_libraries PROGRAM...                     the packages that programs for another architecture need
#
# The same commit and toolchain make the same bytes, wherever the repository and cargo's home lie.

RELEASE_HOST=$(rustc -vV | sed -n 's/^host: //p')

# The profile `dist` is for the programs that a device carries, `dist-library` for what apps load into themselves; the
# laboratory and what only builds take `release`.
release_directory() { echo "${CARGO_TARGET_DIR:-target}/$1/$2"; }

# The version of the workspace.
release_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml; }

# The time of what is packed: that of the last commit, if it is not said.
release_environment() {
  SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
  export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
  umask 022
}

# release_paths: what rustc gets, so that no path of this machine is in the programs.
release_paths() {
  printf -- '--remap-path-prefix=%s=. --remap-path-prefix=%s=cargo' "$PWD" "${CARGO_HOME:-$HOME/.cargo}"
  # Where the source of the standard library is installed (rust-src), rustc has its path in messages of panics. Without,
  # it is this one.
  printf -- ' --remap-path-prefix=%s/lib/rustlib/src/rust=/rustc/%s' "$(rustc --print sysroot)" \
    "$(rustc -vV | sed -n 's/^commit-hash: //p')"
  # Sources that build scripts have written. Of those that fit, the last one counts.
  [ -z "${CARGO_TARGET_DIR:-}" ] || printf -- ' --remap-path-prefix=%s=./target' "$(realpath -m "$CARGO_TARGET_DIR")"
}

# release_flags TARGET PROFILE: what rustc gets. The programs of `dist` abort when they panic, so they need no tables for
# unwinding. Programs for musl are static and need no C compiler, for Rust brings the C library and the linker with these
# targets; the others are linked by Debian's cross compilers.
release_flags() {
  release_paths
  local script=$PWD/scripts/lib/no-unwinding.ld
  case "$2 $1" in
  # Rust calls its linker itself. A static program fills in its addresses itself: no C library of the machine has to know packed
  # ones, but musl does, from 1.2.4 on; Rust 1.93 brings 1.2.5.
  "dist "*-musl*)
    printf -- ' -C link-arg=--script=%s' "$script"
    [ "$(rustc --version | cut -d. -f2)" -lt 93 ] || printf -- ' -C link-arg=--pack-dyn-relocs=relr'
    ;;
  "dist "*) printf -- ' -C link-arg=-Wl,--script=%s' "$script" ;;
  esac
  case $1 in
  *-musl*) printf -- ' -C linker-flavor=ld.lld -C link-self-contained=yes -C target-feature=+crt-static' ;;
  esac
}

# release_has_no_path FILE...: fails if a program, without its debug symbols, names a directory of this machine.
release_has_no_path() {
  local file directory stripped
  stripped=$(mktemp)
  for file in "$@"; do
    "$(release_objcopy "$file")" --strip-debug "$file" "$stripped" || return 1
    for directory in "$PWD" "${CARGO_HOME:-$HOME/.cargo}" "$(rustc --print sysroot)" ${CARGO_TARGET_DIR:+"$CARGO_TARGET_DIR"}; do
      if grep -qaF "$directory/" "$stripped"; then
        echo "$file has a path of this machine in it, below $directory" >&2
        rm -f "$stripped"
        return 1
      fi
    done
  done
  rm -f "$stripped"
}

# release_objcopy FILE: a program that understands it: that of binutils knows its own machine, Debian's cross binutils
# have others.
release_objcopy() {
  local machine
  machine=$(LC_ALL=C readelf --file-header "$1" | sed -n 's/^ *Machine: *//p')
  case "${RELEASE_HOST%%-*} $machine" in
  "x86_64 Advanced Micro Devices X86-64" | "aarch64 AArch64" | "armv7 ARM") echo objcopy ;;
  *X86-64) echo x86_64-linux-gnu-objcopy ;;
  *AArch64) echo aarch64-linux-gnu-objcopy ;;
  *ARM) echo arm-linux-gnueabihf-objcopy ;;
  esac
}

# release_libraries PROGRAM...: prints debian/shlibs.local, which dpkg-shlibdeps reads, of the libraries of programs for
# another architecture. Those that it finds here belong to Debian's cross compilers, and name packages and a version of theirs.
release_libraries() {
  local library glibc
  glibc=$(readelf --wide --version-info "$@" | grep -o 'GLIBC_[0-9][0-9.]*' | sort --version-sort | tail -n 1) || return 1
  for library in "libc 6" "libm 6" "ld-linux-aarch64 1" "ld-linux-armhf 3" "ld-linux-x86-64 2"; do
    echo "$library libc6 (>= ${glibc#GLIBC_})"
  done
  echo "libgcc_s 1 libgcc-s1"
}

# release_has_no_cross_package PACKAGE...: fails if a package depends on one that only cross compilers need.
release_has_no_cross_package() {
  local package depends
  for package in "$@"; do
    depends=$(dpkg-deb --field "$package" Depends) || return 1
    case $depends in
    *-cross* | *[a-z0-9]:[a-z]*)
      echo "$package depends on $depends, which is not in a Debian of its architecture" >&2
      return 1
      ;;
    esac
  done
}

# release_linker TARGET: the program that links.
release_linker() {
  case $1 in
  *-musl*) echo rust-lld ;;
  "$RELEASE_HOST") echo cc ;;
  aarch64-unknown-linux-gnu) echo aarch64-linux-gnu-gcc ;;
  armv7-unknown-linux-gnueabihf) echo arm-linux-gnueabihf-gcc ;;
  x86_64-unknown-linux-gnu) echo x86_64-linux-gnu-gcc ;;
  *) echo "no linker is known for $1" >&2 && return 1 ;;
  esac
}

# release_has_std TARGET: whether the toolchain has the standard library of the target, or its server does.
release_has_std() {
  [ -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ] || rustup --quiet target add "$1" 2>/dev/null
}

# release_build TARGET PROFILE CARGO_ARGUMENT...
release_build() {
  local target=$1 profile=$2 name linker
  shift 2
  if ! release_has_std "$target"; then
    release_build_std "$target" "$profile" --locked --target "$target" "$@"
    return
  fi
  linker=$(release_linker "$target") || return 1
  name=$(echo "$target" | tr 'a-z-' 'A-Z_')
  # What builds C (zstd and SQLite, in the laboratory) looks for the compiler of the target.
  env "CARGO_TARGET_${name}_LINKER=$linker" "CARGO_TARGET_${name}_RUSTFLAGS=$(release_flags "$target" "$profile")" \
    cargo build --profile "$profile" --locked --target "$target" "$@"
}

# release_build_std TARGET PROFILE CARGO_ARGUMENT...: builds the standard library, too, from the sources that belong to the
# toolchain, by the compiler's own means for that; the C library and the unwinder are zig's.
release_build_std() {
  local target=$1 profile=$2 name flags source panic=panic_unwind
  shift 2
  case $target in
  *-musl*) ;;
  *) echo "there is no standard library of Rust for $target: rustup target add $target" >&2 && return 1 ;;
  esac
  source=$(rustc --print sysroot)/lib/rustlib/src/rust
  [ -d "$source/library" ] || rustup --quiet component add rust-src 2>/dev/null || {
    echo "there is no standard library of Rust for $target, and no source of it (rust-src): nothing is built for it" >&2
    return 1
  }
  echo "$target: the toolchain's server has no standard library of Rust for it, so it is built from its source" >&2
  . scripts/lib/zig.sh
  zig_tools || return 1
  name=$(echo "$target" | tr 'a-z-' 'A-Z_')
  flags=$(release_paths)
  [ "$profile" != dist ] || panic=panic_abort
  (
    export RUSTC_BOOTSTRAP=1 "CARGO_TARGET_${name}_RUSTFLAGS=$flags -C target-feature=+crt-static -C link-self-contained=no"
    zig_build -Z "build-std=std,$panic" --profile "$profile" "$@"
  )
}

# release_manuals PROFILE DIRECTORY: builds what makes the pages, and makes them. It contains the laboratory, so `dev`
# takes a fraction of the time of `release`, unless the laboratory is built with that profile anyway.
release_manuals() {
  [ -n "${BUILT:-}" ] || release_build "$RELEASE_HOST" "$1" -p mobifs-manuals
  rm -rf "$2"
  "$(release_directory "$RELEASE_HOST" "${1/dev/debug}")/mobifs-manuals" "$2"
}
