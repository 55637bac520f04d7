#!/usr/bin/env bash
# Tests that need an RDMA device, in a guest that has one (software RDMA, by the kernel's rdma_rxe): builds them with
# the feature `verbs`, boots, and ends with their exit code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
deploy/bootstrap.sh guest
built=${CARGO_TARGET_DIR:-target}/guest
# What needs no device runs here.
cargo test --locked --quiet --target-dir "$built" -p gradwire-fabric --features verbs --lib verbs::
test=$(cargo test --locked --quiet --target-dir "$built" -p gradwire-fabric --features verbs \
    --test verbs_pair --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
tests/guest/build.sh daemons rdma_train > /dev/null
tests/guest/base.sh "$built/base"
# Under one name, whatever its hash.
cp "$test" "$built/bin/verbs_pair"
tests/guest/boot.sh -t 300 "$built/base" tests/guest/fabric.sh "$built/bin/verbs_pair"
exec tests/guest/boot.sh -t 300 -m 3000 "$built/base" tests/guest/train.sh "$built"/bin/gradwire{-scheduler,-server,-worker} \
    "$built/bin/rdma_train" "$(command -v setpriv)" examples/digits/digits.csv
