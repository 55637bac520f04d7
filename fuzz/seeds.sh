#!/usr/bin/env bash
# The inputs that are kept of each fuzz target, in fuzz/seeds/TARGET.hex: one a line, in hexadecimal.
#   fuzz/seeds.sh unpack TARGET   puts them where the target starts from, fuzz/corpus/TARGET
#   fuzz/seeds.sh keep TARGET     adds what reaches more than they do: of the corpus, and of what once failed; long ones are not
#                                 kept, because they repeat what short ones do
set -euo pipefail
cd "$(dirname "$0")/.."
order=${1:?unpack or keep} target=${2:?which target: cargo fuzz list}
longest_bytes=512 kept=fuzz/seeds/$target.hex corpus=fuzz/corpus/$target failed=fuzz/artifacts/$target

unpack() {
    mkdir -p "$1"
    [ -e "$kept" ] || return 0
    perl -ne 'BEGIN { $into = shift } chomp; open(my $f, ">", "$into/kept-$.") or die "$!\n"; print $f pack("H*", $_)' \
        "$1" < "$kept"
}

pack() {
    find "$1" -type f -size -"$((longest_bytes + 1))"c -print0 | sort -z | xargs -0 perl -0777 -ne 'print unpack("H*", $_), "\n"; close ARGV if eof' |
        LC_ALL=C sort -u | sed '/^$/d'
}

case $order in
unpack) unpack "$corpus" ;;
keep)
    mkdir -p "$corpus"
    all=$(mktemp -d)
    trap 'rm -rf "$all"' EXIT
    unpack "$all"
    find "$failed" -type f -name 'minimized-*' -exec cp -t "$all" {} + 2> /dev/null || true
    cargo fuzz run "$target" "$all" "$corpus" -- -set_cover_merge=1 2>&1 | tail -n 1
    mkdir -p fuzz/seeds
    pack "$all" > "$kept.new"
    mv "$kept.new" "$kept"
    echo "$target: $(wc -l < "$kept") inputs"
    ;;
*) echo "fuzz/seeds.sh: unpack or keep, not $order" >&2; exit 64 ;;
esac
