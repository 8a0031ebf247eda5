#!/bin/sh
# Installs the program, its helpers for mount(8) and umount(8), the systemd units and generator, manual pages and completions.
#
#   dist/install.sh PROGRAM            PROGRAM: the pagefold binary that was built
#   dist/install.sh --uninstall
#
# PREFIX (default /usr/local) and DESTDIR are honoured. mount(8) and umount(8) look for helpers in /sbin only, so these
# go there whatever the prefix (SBINDIR moves them).
set -eu

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
SBINDIR=${SBINDIR:-/sbin}
UNITDIR=${UNITDIR:-/lib/systemd/system}
GENERATORDIR=${GENERATORDIR:-/lib/systemd/system-generators}
here=$(cd "$(dirname "$0")" && pwd)

bindir=$PREFIX/bin
mandir=$PREFIX/share/man/man8
units="pagefold@.service pagefold-backup.service pagefold-backup.timer pagefold-replicate@.service"
helpers="mount.pagefold mount.fuse.pagefold umount.pagefold umount.fuse.pagefold"
bash_completion=$PREFIX/share/bash-completion/completions/pagefold
zsh_completion=$PREFIX/share/zsh/site-functions/_pagefold
fish_completion=$PREFIX/share/fish/vendor_completions.d/pagefold.fish

uninstall() {
    rm -f "$DESTDIR$bindir/pagefold"
    for unit in $units; do
        rm -f "$DESTDIR$UNITDIR/$unit"
    done
    rm -f "$DESTDIR$mandir/pagefold.8" "$DESTDIR$mandir"/pagefold-*.8
    rm -f "$DESTDIR$bash_completion" "$DESTDIR$zsh_completion" "$DESTDIR$fish_completion"
    for link in "$SBINDIR/mount.pagefold" "$SBINDIR/mount.fuse.pagefold" "$GENERATORDIR/pagefold-generator"; do
        # Only links that are ours.
        if [ -L "$DESTDIR$link" ]; then
            rm -f "$DESTDIR$link"
        fi
    done
}

complete_for() {
    mkdir -p "$(dirname "$DESTDIR$2")"
    "$program" completion "$1" >"$DESTDIR$2"
}

if [ "${1:-}" = --uninstall ]; then
    uninstall
    exit 0
fi
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
    echo "usage: dist/install.sh PROGRAM | --uninstall" >&2
    exit 2
fi
program=$1
mkdir -p "$DESTDIR$bindir" "$DESTDIR$mandir" "$DESTDIR$UNITDIR" "$DESTDIR$GENERATORDIR" "$DESTDIR$SBINDIR"
# Beside, then renamed over: the program may be running.
install -m 755 "$program" "$DESTDIR$bindir/pagefold.new"
mv -f "$DESTDIR$bindir/pagefold.new" "$DESTDIR$bindir/pagefold"
for helper in $helpers; do
    ln -sf "$bindir/pagefold" "$DESTDIR$SBINDIR/$helper"
done
# A generator runs before anything is mounted: with a PREFIX on a file system of its own it is not there yet, and does not matter.
ln -sf "$bindir/pagefold" "$DESTDIR$GENERATORDIR/pagefold-generator"
for unit in $units; do
    sed "s|@BINDIR@|$bindir|" "$here/systemd/$unit" >"$DESTDIR$UNITDIR/$unit"
    chmod 644 "$DESTDIR$UNITDIR/$unit"
done
"$program" man "$DESTDIR$mandir"
complete_for bash "$bash_completion"
complete_for zsh "$zsh_completion"
complete_for fish "$fish_completion"
