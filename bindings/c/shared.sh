#!/bin/sh
# Links the static library into the shared one that is installed: only gradwire_* is shown, under version GRADWIRE_1.
# usage: shared.sh LIBGRADWIRE_A OUTPUT
set -eu
here=$(dirname "$0")
exec "${CC:-cc}" -shared -o "$2" -Wl,-soname,libgradwire.so.1 -Wl,--version-script="$here/gradwire.map" \
    -Wl,--gc-sections -Wl,-z,relro,-z,now -Wl,--no-undefined \
    -Wl,-u,gradwire_last_error -Wl,--whole-archive "$1" -Wl,--no-whole-archive -lpthread -ldl -lm -lgcc_s -lc
