#!/usr/bin/env bash
# Builds programs with the driver for RDMA devices, into a target folder of their own, as the feature changes what
# everything else is built with. build.sh NAME...: "daemons", "bench", or an integration test of the crate `tests`. They
# lie in FOLDER/bin then, under their names; prints FOLDER.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${CARGO_TARGET_DIR:-target}/guest
mkdir -p "$folder/bin"
for name in "$@"; do
    if [ "$name" = daemons ]; then
        cargo build --quiet --release --locked --target-dir "$folder" --bins -p gradwire -p gradwire-scheduler \
            -p gradwire-server -p gradwire-worker --features gradwire-server/verbs,gradwire-worker/verbs
        cp "$folder"/release/gradwire{,-scheduler,-server,-worker} "$folder/bin/"
        continue
    fi
    if [ "$name" = bench ]; then
        cargo build --quiet --release --locked --target-dir "$folder" -p gradwire-benches --features verbs
        cp "$folder/release/gradwire-bench" "$folder/bin/"
        continue
    fi
    file=$(cargo test --quiet --release --locked --target-dir "$folder" -p gradwire-tests --features verbs \
        --test "$name" --no-run --message-format=json | grep "\"name\":\"$name\"" |
        sed -n "s/.*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -n 1)
    cp "$file" "$folder/bin/$name"
done
echo "$folder"
