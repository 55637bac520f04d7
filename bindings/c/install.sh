#!/bin/sh
# Installs headers, libraries and the pkg-config file below a prefix.
# usage: install.sh LIBGRADWIRE_A PREFIX VERSION; DESTDIR is put before the prefix, NEEDS are further libraries of a program.
set -eu
archive=$1 prefix=$2 version=$3
here=$(dirname "$0")
to=${DESTDIR:-}$prefix
mkdir -p "$to/lib/pkgconfig" "$to/include"
install -m 644 "$archive" "$to/lib/libgradwire.a"
"$here/shared.sh" "$archive" "$to/lib/libgradwire.so.1"
ln -sf libgradwire.so.1 "$to/lib/libgradwire.so"
cp -R "$here/include/." "$to/include/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" -e "s|@NEEDS@|${NEEDS:+$NEEDS }|" "$here/gradwire.pc.in" > "$to/lib/pkgconfig/gradwire.pc"
