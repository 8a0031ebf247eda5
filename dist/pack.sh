#!/bin/sh
# Makes out/pagefold-VERSION-ARCHITECTURE.tar.gz and a file with its checksum. The archive has everything that a machine without
# the sources needs to install the program.
#
#   dist/pack.sh PROGRAM [DIRECTORY]   DIRECTORY: where the files go in place of out
set -eu

here=$(cd "$(dirname "$0")" && pwd)
version=$("$1" --version | cut -d' ' -f2)
name=pagefold-$version-$(uname -m)
out=${2:-out}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/$name/systemd"
"$here/split.sh" "$1" "$work/$name"
cp "$here/install.sh" "$work/$name/"
cp "$here"/systemd/* "$work/$name/systemd/"
cp "$here/../LICENSE" "$here/../README.md" "$work/$name/"
# Order, owners and times are fixed, so the same content gives the same archive.
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" -c "$name" | gzip -n >"$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
ls -l "$out/$name.tar.gz"
echo "to install it: tar -xf $name.tar.gz && sudo $name/install.sh $name/pagefold"
