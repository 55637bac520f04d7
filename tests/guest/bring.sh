#!/usr/bin/env bash
# bring.sh ROOT PROGRAM...: puts programs into ROOT/bin, with the shared libraries they are linked to.
set -euo pipefail
root=$1
shift
mkdir -p "$root/bin"
for program in "$@"; do
    rm -f "$root/bin/$(basename "$program")"
    cp -L "$program" "$root/bin/"
    # A static program has none.
    ldd "$program" 2>/dev/null | grep -oE '/[^ ]+\.so[^ ]*' || true
done | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
