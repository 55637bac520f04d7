#!/usr/bin/env bash
# Packs the wheel of the Python package:
#
#   bindings/python/wheel.sh BUILT OUT              with the four programs in it, so that `pip install` is enough to train
#   bindings/python/wheel.sh --bare BUILT OUT       the Python package alone
#
# BUILT is cargo's output directory (target/release or target/debug) with lib_native.so and gradwire, gradwire-scheduler,
# gradwire-server and gradwire-worker. Nothing is compiled here. maturin writes the metadata, and the tool `wheel` the archive; both
# are installed into target/python/packing where they are missing. The last line of the output is the wheel's path.
#
# The wheel's platform tag is the oldest C library that has all symbols which its files need (manylinux_2_34, for example). A file
# that needs a library beyond those which manylinux allows is an error.
set -euo pipefail
bare=
[ "${1:-}" != --bare ] || { bare=1; shift; }
[ $# -eq 2 ] || { echo "usage: bindings/python/wheel.sh [--bare] BUILT OUT" >&2; exit 2; }
built=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
cd "$here/../.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/python/packing
needs='maturin>=1.9,<2 wheel>=0.45,<1'
# Suites that run side by side share the tools.
mkdir -p "$(dirname "$tools")"
exec 9> "$tools.lock"
flock 9
if [ "$(cat "$tools/needs" 2>/dev/null)" != "$needs" ]; then
    rm -rf "$tools"
    "${PYTHON:-/usr/bin/python3}" -m venv "$tools"
    # shellcheck disable=SC2086
    "$tools/bin/pip" install --quiet --disable-pip-version-check $needs
    printf '%s\n' "$needs" > "$tools/needs"
fi
flock -u 9

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
information=$(cd "$here" && "$tools/bin/maturin" pep517 write-dist-info --metadata-directory "$work" --interpreter "$tools/bin/python" \
    2> "$work/maturin.log" | tail -n 1) || { cat "$work/maturin.log" >&2; exit 1; }
name=${information%.dist-info}
tree=$work/$name
scripts=$tree/$name.data/scripts
mkdir -p "$scripts"
mv "$work/$information" "$tree/"
cp -R "$here/python/gradwire" "$tree/"
find "$tree" -name __pycache__ -prune -exec rm -rf {} +
find "$tree" -name '*.so' -delete
strip --strip-debug -o "$tree/gradwire/_native.abi3.so" "$built/lib_native.so"
if [ -n "$bare" ]; then
    rmdir "$scripts" "$tree/$name.data"
else
    for program in gradwire gradwire-scheduler gradwire-server gradwire-worker; do
        strip --strip-all -o "$scripts/$program" "$built/$program"
        chmod 755 "$scripts/$program"
    done
fi

# manylinux: few libraries, and of the C library no newer symbols than the tag promises.
binaries=$(find "$tree" -type f \( -name '*.so' -o -path '*.data/scripts/*' \))
# shellcheck disable=SC2086
needed=$(objdump -p $binaries)
foreign=$(sed -n 's/^ *NEEDED *//p' <<< "$needed" |
    grep -vE '^(libc|libm|libdl|librt|libpthread|libgcc_s|ld-linux-[a-z0-9_-]*)\.so\.[0-9]+$' | sort -u || true)
[ -z "$foreign" ] || { echo "wheel: not every Linux system has $foreign" >&2; exit 1; }
glibc=$(grep -oE 'GLIBC_2\.[0-9]+' <<< "$needed" | sort -Vu | tail -n 1)
sed -i "s/^Tag: .*/Tag: cp39-abi3-manylinux_2_${glibc#GLIBC_2.}_$(uname -m)/" "$tree/$information/WHEEL"
"$tools/bin/wheel" pack --dest-dir "$out" "$tree" > /dev/null
echo "$out/$name-cp39-abi3-manylinux_2_${glibc#GLIBC_2.}_$(uname -m).whl"
