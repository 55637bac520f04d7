#!/usr/bin/env bash
# Tests that need an RDMA device, in a guest that has one (software RDMA, by the kernel's rdma_rxe): builds them with
# the feature `verbs`, boots, and ends with their exit code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
deploy/bootstrap.sh guest
built=${CARGO_TARGET_DIR:-target}
# A folder of its own: the feature changes what everything else is built with.
executable() {
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}
# What needs no device runs here.
cargo test --locked --quiet --target-dir "$built/guest" -p gradwire-fabric --features verbs --lib verbs::
tests/guest/base.sh "$built/guest/base"
# Under one name, whatever its hash.
mkdir -p "$built/guest/bin"
programs=()
for test in drivers verbs_faults; do
    cp "$(cargo test --locked --quiet --target-dir "$built/guest" -p gradwire-fabric --features verbs \
        --test "$test" --no-run --message-format=json | executable)" "$built/guest/bin/$test"
    programs+=("$built/guest/bin/$test")
done
# One device, then two with a wire between them. With memory enough that a region of 1 GiB, were it pinned as a whole,
# fails its test and not the machine.
for script in fabric netem; do
    tests/guest/boot.sh -m 1536 -t 300 "$built/guest/base" "tests/guest/$script.sh" "${programs[@]}"
done
