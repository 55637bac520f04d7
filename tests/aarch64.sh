#!/usr/bin/env bash
# Is all of it right for 64-bit ARM? Lints over everything, and unit tests on an emulated processor: the suite aarch64. Emulation
# keeps the order of memory of the processor below it, so what it says of lock-free parts is little: loom is for them.
#   tests/aarch64.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
deploy/bootstrap.sh aarch64

export CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64-static -L /usr/aarch64-linux-gnu'
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
# The Python package is for any Python from 3.9 on, and needs none to be compiled.
export PYO3_CROSS_PYTHON_VERSION=3.9

cargo clippy --workspace --all-targets --locked -- -D warnings
# What must be the same on every host of a job: messages, batches, rules, checkpoints. Not the server's: under qemu 7.2 its unit
# tests took 22 GB, which is not understood yet.
cargo test --locked -p gradwire-proto-common -p gradwire-proto-data -p gradwire-checkpoint --lib
