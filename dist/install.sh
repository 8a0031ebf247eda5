#!/bin/sh
# Installs the program without its symbols, the symbols beside it (in bin/.debug, where debuggers and backtraces look for them),
# the helpers for mount(8) and umount(8), the systemd units and generator, manual pages and completions.
#
#   dist/install.sh PROGRAM            PROGRAM: the pagefold binary that was built
#   dist/install.sh --uninstall
#
# PREFIX (default /usr/local) and DESTDIR say where. mount(8) and umount(8) look for helpers in /sbin only, so the helpers go
# there whatever PREFIX is; SBINDIR moves them.
set -eu

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
SBINDIR=${SBINDIR:-/sbin}
UNITDIR=${UNITDIR:-/lib/systemd/system}
GENERATORDIR=${GENERATORDIR:-/lib/systemd/system-generators}
here=$(cd "$(dirname "$0")" && pwd)

bindir=$PREFIX/bin
symbols=$bindir/.debug/pagefold.debug
mandir=$PREFIX/share/man/man8
units="pagefold@.service pagefold-backup.service pagefold-backup.timer pagefold-replicate@.service"
helpers="mount.pagefold mount.fuse.pagefold umount.pagefold umount.fuse.pagefold"
bash_completion=$PREFIX/share/bash-completion/completions/pagefold
zsh_completion=$PREFIX/share/zsh/site-functions/_pagefold
fish_completion=$PREFIX/share/fish/vendor_completions.d/pagefold.fish

uninstall() {
    rm -f "$DESTDIR$bindir/pagefold" "$DESTDIR$symbols"
    rmdir "$DESTDIR$bindir/.debug" 2>/dev/null || true
    for unit in $units; do
        rm -f "$DESTDIR$UNITDIR/$unit"
    done
    rm -f "$DESTDIR$mandir/pagefold.8" "$DESTDIR$mandir"/pagefold-*.8
    rm -f "$DESTDIR$bash_completion" "$DESTDIR$zsh_completion" "$DESTDIR$fish_completion"
    for link in $helpers; do
        remove_link "$SBINDIR/$link"
    done
    remove_link "$GENERATORDIR/pagefold-generator"
}

# Removes a link. Anything that is not a link was not installed by this script, and stays.
remove_link() {
    if [ -L "$DESTDIR$1" ]; then
        rm -f "$DESTDIR$1"
    fi
}

# Writes each file beside the old one, and then renames it over the old one, because the program may be running. A program that
# `make dist` has packed has its symbols split off already.
install_program() {
    mkdir -p "$DESTDIR$bindir/.debug"
    if [ -f "$program.debug" ]; then
        put "$program" "$program.debug"
        return
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$here/split.sh" "$program" "$work"
    put "$work/pagefold" "$work/pagefold.debug"
}

put() {
    install -m 644 "$2" "$DESTDIR$symbols.new"
    mv -f "$DESTDIR$symbols.new" "$DESTDIR$symbols"
    install -m 755 "$1" "$DESTDIR$bindir/pagefold.new"
    mv -f "$DESTDIR$bindir/pagefold.new" "$DESTDIR$bindir/pagefold"
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
install_program
for helper in $helpers; do
    ln -sf "$bindir/pagefold" "$DESTDIR$SBINDIR/$helper"
done
# systemd runs generators before anything is mounted. If PREFIX is on a file system of its own, the generator is not there yet;
# that does no harm.
ln -sf "$bindir/pagefold" "$DESTDIR$GENERATORDIR/pagefold-generator"
for unit in $units; do
    sed "s|@BINDIR@|$bindir|" "$here/systemd/$unit" >"$DESTDIR$UNITDIR/$unit"
    chmod 644 "$DESTDIR$UNITDIR/$unit"
done
"$program" man "$DESTDIR$mandir"
complete_for bash "$bash_completion"
complete_for zsh "$zsh_completion"
complete_for fish "$fish_completion"
