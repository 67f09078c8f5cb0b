# zig as compiler and linker, which brings C libraries and their older symbols: cargo-zigbuild and ziglang, from PyPI, in
# an environment of their own. To be sourced by a script that stands in the repository's root.

ZIGBUILD_VERSION=0.24.1
ZIG_VERSION=0.17.1
ZIG_TOOLS=${MOBIFS_TOOLS:-$PWD/.cache/tools}/zig

# zig_tools: installs them, if they are not there.
zig_tools() {
  [ "$("$ZIG_TOOLS/bin/cargo-zigbuild" --version 2>/dev/null)" = "cargo-zigbuild $ZIGBUILD_VERSION" ] && return
  python3 -m venv "$ZIG_TOOLS"
  "$ZIG_TOOLS/bin/pip" install --quiet "cargo-zigbuild==$ZIGBUILD_VERSION" "ziglang==$ZIG_VERSION"
}

# zig_build CARGO_ARGUMENT...: `cargo build` that links by zig.
zig_build() {
  CARGO_ZIGBUILD_PYTHON_PATH=$ZIG_TOOLS/bin/python PATH="$ZIG_TOOLS/bin:$PATH" cargo zigbuild "$@"
}
