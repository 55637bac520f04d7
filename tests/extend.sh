#!/usr/bin/env bash
# Does an extension change at most four existing files? Each patch of tests/extend is applied to a copy of the work tree; the commands
# that CONTRIBUTING.md ("Extensions") names are run; the changed files are counted; its tests are built and run.
#   tests/extend.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
deploy/bootstrap.sh test
readonly files_max=4
root=$PWD
# Kept, so that a second run compiles what has changed only.
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")/extend
export CARGO_TARGET_DIR

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --create | tar --extract --directory="$copy"
cd "$copy"
git init --quiet
git add --all
git -c user.name=test -c user.email=test@localhost commit --quiet --message=base

# Applies a patch, runs a command that completes it, and counts.
extend() {
    local patch=$1
    shift
    git apply "$root/tests/extend/$patch.patch"
    "$@"
    local changed
    changed=$(git diff --name-only --diff-filter=M)
    printf '%s changes these existing files:\n%s\n' "$patch" "$changed"
    if [ "$(wc -l <<< "$changed")" -gt "$files_max" ]; then
        printf 'these are more than %s\n' "$files_max" >&2
        return 1
    fi
}

update_rule() {
    cargo run --quiet --locked -p gradwire-proto-common --example rules
    cargo run --quiet --locked -p gradwire-c --example header
    bindings/reference.py
}

element_type() {
    cargo run --quiet --locked -p gradwire-c --example header
}

transport() {
    cargo build --quiet --locked -p gradwire-cli
    "$CARGO_TARGET_DIR/debug/gradwire" config sample > deploy/gradwire.toml
    "$CARGO_TARGET_DIR/debug/gradwire" env --markdown > docs/environment.md
}

# So that the next patch is applied to what the first one was.
restore() {
    git checkout --quiet .
    git clean --quiet --force -d
}

extend update-rule update_rule
cargo test --locked -p gradwire-proto-common --lib optimizer
cargo test --locked -p gradwire-proto-common --test rules
cargo test --locked -p gradwire-c --test header
cargo test --locked -p gradwire-server --lib kernel
restore

extend element-type element_type
cargo test --locked -p gradwire-proto-data --lib element
cargo test --locked -p gradwire-server --lib storage
cargo test --locked -p gradwire-c --test header --test u16
restore

extend transport transport
cargo test --locked -p gradwire-drivers
cargo test --locked -p gradwire-fabric --lib devices
cargo test --locked -p gradwire-proto-common --lib meaning
cargo test --locked -p gradwire-proto-common --lib transport
restore
