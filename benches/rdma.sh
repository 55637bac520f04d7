#!/usr/bin/env bash
# Measures Gradwire over an RDMA device beside perftest on the same one, in one boot of the guest of tests/guest, whose
# device is software on an emulated CPU. Writes the results as JSON, and plots, into benches/results; those of a run
# that is told anything else than the whole into the target folder.
# rdma.sh [JSON-FILE [ARGUMENT...]]: arguments of `gradwire-bench rdma`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
json=${1:-}
shift $(($# > 0))
deploy/bootstrap.sh guest
built=${CARGO_TARGET_DIR:-target}/guest
tests/guest/build.sh bench > /dev/null
tests/guest/base.sh "$built/base"

results=benches/results
[ -z "$*" ] || results=$built/bench-rdma
mkdir -p "$results"
script=$(mktemp)
trap 'rm -f "$script"' EXIT
{
    printf 'RDMA=%q\n' "$*"
    cat tests/guest/bench.sh
} > "$script"
log=$built/bench-rdma.log
# The line of JSON is for the report.
tests/guest/boot.sh -m 4000 -t 900 "$built/base" "$script" "$built"/bin/gradwire{-bench,-scheduler,-server} |
    tee "$log" | grep --line-buffered -v '^json: ' || {
    echo "bench-rdma: the guest failed; what it printed is in $log" >&2
    exit 1
}
"$built/bin/gradwire-bench" rdma-report "$log" --json "${json:-$results/rdma.json}" --plots "$results"
