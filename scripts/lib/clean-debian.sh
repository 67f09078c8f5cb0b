# A Debian of nothing but what is named. To be sourced.

# clean_debian SUITE PACKAGES DIRECTORY LOG: installs it from the mirror of this machine.
clean_debian() {
  local mirror
  mirror=$(apt-cache policy dpkg | sed -nE 's/^ +[0-9]+ ([a-z]+:[^ ]+) .*/\1/p' | head -n 1)
  debootstrap --variant=minbase --include="$2" "$1" "$3" "$mirror" >"$4" 2>&1 && return
  tail -n 5 "$4" >&2
  return 1
}
