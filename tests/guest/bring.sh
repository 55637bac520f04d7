#!/usr/bin/env bash
# bring.sh ROOT FILE...: puts programs into ROOT/bin, with the shared libraries they are linked to, and other files to
# where they lie here.
set -euo pipefail
root=$1
shift
mkdir -p "$root/bin"
for file in "$@"; do
    if [ ! -x "$file" ]; then
        file=$(realpath "$file")
        mkdir -p "$root$(dirname "$file")"
        cp "$file" "$root$file"
        continue
    fi
    rm -f "$root/bin/$(basename "$file")"
    cp -L "$file" "$root/bin/"
    # A static program has none.
    ldd "$file" 2>/dev/null | grep -oE '/[^ ]+\.so[^ ]*' || true
done | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
