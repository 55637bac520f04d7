#!/usr/bin/env bash
# Builds what runs in the guest: all programs, and the integration tests that are named.
# Optimised, because the guest's processor is emulated; from the crates that other release programs are built from.
# build.sh [NAME...]: they lie in FOLDER/bin then, under their names; prints FOLDER. With any test comes `fabric`, the library's
# own. `build.sh bench` builds the benchmark instead of tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
built=${CARGO_TARGET_DIR:-target}
folder=$built/guest
mkdir -p "$folder/bin"
# One choice of packages and features for all of it, or cargo would build some things twice.
cargo=(--quiet --release --locked)
for package in gradwire-cli gradwire-scheduler gradwire-server gradwire-trainer gradwire-fabric gradwire-tests; do
    cargo+=(-p "$package")
done
if [ "${1:-}" = bench ]; then
    shift
    cargo build "${cargo[@]}" -p gradwire-benches --bin gradwire-bench
    cp "$built/release/gradwire-bench" "$folder/bin/"
fi
cargo build --bins --examples "${cargo[@]}"
cp "$built"/release/gradwire{,-scheduler,-server,-worker} "$built/release/examples/copy_between_processes" "$folder/bin/"
if [ $# -gt 0 ]; then
    tests=$(cargo test --no-run --message-format=json "${cargo[@]}" --lib "${@/#/--test=}")
    for name in fabric "$@"; do
        file=$(grep "\"name\":\"$name\"" <<< "$tests" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
        cp "$file" "$folder/bin/$name"
    done
fi
echo "$folder"
