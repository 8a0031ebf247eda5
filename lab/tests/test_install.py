"""Installation from the sources and from the archive that `make dist` packs, and removal, which leaves nothing
behind."""

import os
import subprocess
import zlib
from pathlib import Path

import pytest

from lab.paths import ROOT, pagefold

BIN = "usr/local/bin"


def installed(root):
    """Returns the paths of all files and links below a directory, relative to it."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file())


def install(script, root, *arguments):
    subprocess.run([script, *map(str, arguments)], check=True, env=os.environ | {"DESTDIR": str(root), "PREFIX": "/usr/local"})


def link_of(program):
    """Returns name and checksum of the file with the symbols, as the program names them (gdb's manual, "Separate Debug
    Files")."""
    out = program.parent / "link"
    subprocess.run(["objcopy", "--dump-section", f".gnu_debuglink={out}", program, "/dev/null"], check=True)
    section = out.read_bytes()
    out.unlink()
    return section.split(b"\0", 1)[0].decode(), int.from_bytes(section[-4:], "little")


def test_what_is_installed_has_no_symbols_and_knows_where_they_are(tmp_path):
    install(ROOT / "dist/install.sh", tmp_path, pagefold())
    program, symbols = tmp_path / BIN / "pagefold", tmp_path / BIN / ".debug/pagefold.debug"
    assert program.stat().st_size < 0.6 * Path(pagefold()).stat().st_size
    assert "no symbols" in subprocess.run(["nm", program], capture_output=True, text=True).stderr
    assert link_of(program) == ("pagefold.debug", zlib.crc32(symbols.read_bytes()))
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("pagefold ")
    for helper in ["mount.pagefold", "umount.pagefold", "mount.fuse.pagefold", "umount.fuse.pagefold"]:
        assert os.readlink(tmp_path / "sbin" / helper) == f"/{BIN}/pagefold"

    # Files that are not ours stay, even one with the name of a helper.
    other = tmp_path / BIN / ".debug/other.debug"
    other.write_text("")
    helper = tmp_path / "sbin/umount.fuse.pagefold"
    helper.unlink()
    helper.write_text("")
    install(ROOT / "dist/install.sh", tmp_path, "--uninstall")
    assert installed(tmp_path) == ["sbin/umount.fuse.pagefold", f"{BIN}/.debug/other.debug"]


@pytest.mark.long
def test_the_archive_installs_the_same(tmp_path):
    """The archive of `make dist`, unpacked elsewhere, installs the same files; packed again, it is the same archive."""
    packed = []
    for at in ["first", "second"]:
        out = tmp_path / at
        subprocess.run([ROOT / "dist/pack.sh", pagefold(), out], check=True)
        archive = next(out.glob("pagefold-*.tar.gz"))
        subprocess.run(["sha256sum", "--check", "--quiet", f"{archive.name}.sha256"], cwd=out, check=True)
        packed.append(archive.read_bytes())
    assert packed[0] == packed[1]
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    install(unpacked / "install.sh", tmp_path / "archive", unpacked / "pagefold")
    install(ROOT / "dist/install.sh", tmp_path / "sources", pagefold())
    names = installed(tmp_path / "archive")
    assert names == installed(tmp_path / "sources")
    for name in names:
        one, other = tmp_path / "archive" / name, tmp_path / "sources" / name
        assert one.is_symlink() and os.readlink(one) == os.readlink(other) or one.read_bytes() == other.read_bytes(), name
