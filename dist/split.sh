#!/bin/sh
# Copies a program without its symbols, and writes the symbols into a file beside it. The program has that file's name and checksum.
#
#   dist/split.sh PROGRAM DIR          makes DIR/pagefold and DIR/pagefold.debug
set -eu

if ! command -v objcopy >/dev/null; then
    echo "objcopy is missing: it is in the package binutils" >&2
    exit 1
fi
objcopy --only-keep-debug "$1" "$2/pagefold.debug"
chmod 644 "$2/pagefold.debug"
objcopy --strip-all --add-gnu-debuglink="$2/pagefold.debug" "$1" "$2/pagefold"
chmod 755 "$2/pagefold"
