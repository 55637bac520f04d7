#!/usr/bin/env bash
# Builds what runs in the guest: all programs, and the integration tests that are named.
# build.sh [NAME...]: they lie in FOLDER/bin then, under their names; prints FOLDER. With any test comes `fabric`, the library's
# own. `build.sh bench` builds the benchmark instead of tests.
# GUEST_PROFILE=dev takes the programs and tests of the common build, so that nothing but an example is compiled. Without it they are
# optimised, because the guest's processor is emulated: trainings and measurements need that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
built=${CARGO_TARGET_DIR:-target}
folder=$built/guest
mkdir -p "$folder/bin"
# One choice of packages and features for all of it, or cargo would build some things twice.
if [ "${GUEST_PROFILE:-release}" = dev ]; then
    out=$built/debug
    cargo=(--quiet --locked --workspace)
    examples=(--example copy_between_processes)
else
    out=$built/release
    cargo=(--quiet --release --locked)
    for package in gradwire-cli gradwire-scheduler gradwire-server gradwire-trainer gradwire-fabric gradwire-tests; do
        cargo+=(-p "$package")
    done
    examples=(--examples)
fi
if [ "${1:-}" = bench ]; then
    shift
    cargo build "${cargo[@]}" -p gradwire-benches --bin gradwire-bench
    cp "$out/gradwire-bench" "$folder/bin/"
fi
cargo build --bins "${examples[@]}" "${cargo[@]}"
cp "$out"/gradwire{,-scheduler,-server,-worker} "$out/examples/copy_between_processes" "$folder/bin/"
if [ $# -gt 0 ]; then
    if [ "$out" = "$built/debug" ]; then
        compile=(build --lib --bins --tests)
    else
        compile=(test --no-run --lib "${@/#/--test=}")
    fi
    built_tests=$(cargo "${compile[@]}" --message-format=json "${cargo[@]}")
    for name in fabric "$@"; do
        file=$(grep "\"name\":\"$name\"" <<< "$built_tests" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
        cp "$file" "$folder/bin/$name"
    done
fi
echo "$folder"
