#!/bin/sh
# Installs headers, libraries, and the files for pkg-config and CMake below a prefix:
#
#   install.sh LIBGRADWIRE_A PREFIX VERSION
#
# DESTDIR is put before the prefix. LIBDIR is the directory of libraries below the prefix (lib). The headers of ps-lite
# get a directory of their own, include/gradwire/ps-lite: an installed ps-lite stays as it is.
set -eu
archive=$1 prefix=$2 version=$3
libdir=${LIBDIR:-lib}
here=$(dirname "$0")
to=${DESTDIR:-}$prefix
mkdir -p "$to/$libdir/pkgconfig" "$to/$libdir/cmake/gradwire" "$to/include/gradwire/ps-lite"
install -m 644 "$archive" "$to/$libdir/libgradwire.a"
"$here/shared.sh" "$archive" "$to/$libdir/libgradwire.so.1"
ln -sf libgradwire.so.1 "$to/$libdir/libgradwire.so"
install -m 644 "$here/include/gradwire.h" "$to/include/gradwire.h"
cp -R "$here/include/ps" "$here/include/dmlc" "$to/include/gradwire/ps-lite/"

# From the directory of libraries up to the prefix.
up=$(printf '%s' "$libdir" | sed 's|[^/][^/]*|..|g')
fill() {
    sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" -e "s|@UP@|$up|" \
        "$here/install/$1.in" > "$2/$1"
}
fill gradwire.pc "$to/$libdir/pkgconfig"
fill gradwire-ps.pc "$to/$libdir/pkgconfig"
fill gradwire-config.cmake "$to/$libdir/cmake/gradwire"
fill gradwire-config-version.cmake "$to/$libdir/cmake/gradwire"
