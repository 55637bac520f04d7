#!/usr/bin/env bash
# Makes the .crate file of every package of the workspace, as `cargo publish` would upload it, and prints how many there are.
#   deploy/package/crates.sh [verify]
# With `verify`, cargo also compiles each of them from its file alone. A warning is a failure, because a registry would show it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
verify=--no-verify
if [ "${1:-}" = verify ]; then
  verify=
  # cargo keeps what it unpacked and compiled of a version, and would compile each package with those of the last run.
  export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/verify
  rm -rf "$CARGO_TARGET_DIR" "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/gradwire*
fi
out=${CARGO_TARGET_DIR:-target}/package
rm -f "$out"/*.crate
log=$(mktemp)
trap 'rm -f "$log"' EXIT
package() { cargo package --workspace --locked --allow-dirty $verify "$@" 2>&1 | tee "$log"; }
# The index that the build has left is enough, mostly; asking the registry again takes longer than all the rest.
package --offline || package
! grep -q '^warning' "$log" || { echo "cargo package warns; see above" >&2; exit 1; }
made=$(find "$out" -maxdepth 1 -name '*.crate' | wc -l)
echo "$made passed, 0 failed"
