"""The laboratory itself: a verification that cannot fail, or a clean-up that misses something, proves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from lab import ledger, proc, storage, verify
from lab.load import payload
from lab.server import DISK_BACK, DISK_GONE
from lab.paths import ROOT


def rows(numbers):
    return [(n, payload(n)) for n in numbers]


def test_acknowledged_rows_must_all_be_there(tmp_path):
    record = tmp_path / "record"
    record.write_text("1\n2\n3\n")
    assert verify.acknowledged(rows([1, 2, 3, 4]), record) == 3
    with pytest.raises(AssertionError, match="1 acknowledged transactions are lost"):
        verify.acknowledged(rows([1, 3, 4]), record)
    with pytest.raises(AssertionError, match="something else"):
        verify.acknowledged([*rows([1, 2]), (3, payload(4))], record)
    with pytest.raises(AssertionError, match="twice"):
        verify.acknowledged(rows([1, 2, 3, 3]), record)
    record.write_text("")
    with pytest.raises(AssertionError, match="prove nothing"):
        verify.acknowledged(rows([1, 2, 3]), record)


def test_log_of_a_damaged_page_is_noticed(tmp_path):
    log = tmp_path / "log"
    log.write_text("LOG: ready\nHINT: This probably means that some data is corrupted and you will have to use the last backup.\n")
    verify.no_torn_pages(log)
    log.write_text("LOG: ready\nWARNING: page verification failed, calculated checksum 1 but expected 2\n")
    with pytest.raises(AssertionError, match="page verification failed"):
        verify.no_torn_pages(log)


def test_what_a_server_says_of_a_killed_file_system_is_not_damage(tmp_path):
    log = tmp_path / "log"
    says = "InnoDB: corruption in the InnoDB tablespace. Please refer to"
    log.write_text(f"LOG: ready\n{DISK_GONE}\n{says}\n{DISK_BACK}\nLOG: ready\n")
    verify.no_torn_pages(log)
    log.write_text(f"LOG: ready\n{DISK_GONE}\n{DISK_BACK}\n{says}\n")
    with pytest.raises(AssertionError, match="corruption in the InnoDB"):
        verify.no_torn_pages(log)


def test_kill_tree_spares_a_stranger_with_the_same_pid():
    with subprocess.Popen(["sleep", "60"]) as child:
        began = proc.start_time(child.pid)
        proc.kill_tree(child.pid, began + 1)
        assert child.poll() is None, "a process with another start time was killed"
        proc.kill_tree(child.pid, began)
        assert child.wait(5) == -signal.SIGKILL


SCRIPT = """
import sys, time
from pathlib import Path
from lab import proc
from lab.ledger import Run
from lab.storage import LoopFs
run = Run("orphan")
where = LoopFs(run, "ext4", 64 << 20)
where.create(); where.mount()
child = proc.spawn(["sleep", "600"], log=run.logs / "sleep")
run.process(child.pid, "sleep")
print(run.dir, where.mountpoint, where.loop.device, child.pid, flush=True)
time.sleep(600)
"""


def test_a_process_is_there_until_its_last_thread_has_ended():
    program = """
import ctypes, threading, time
threading.Thread(target=lambda: time.sleep(60)).start()
ctypes.CDLL(None).syscall(60, 0)  # exit(2) of the first thread alone
"""
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        began = proc.start_time(child.pid)
        while proc.start_time(child.pid) is not None:
            time.sleep(0.01)
        assert proc._is_there(child.pid, began), "its first thread is a zombie, the other one lives"
        child.kill()
        child.wait()
        assert not proc._is_there(child.pid, began)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_leaves_nothing(how):
    """After SIGKILL, `lab clean` undoes the run. After SIGINT, the run undoes itself, even if its parent has that
    signal ignored."""
    argv = ["env", "--ignore-signal=INT", sys.executable, "-c", SCRIPT]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        folder, mountpoint, device, pid = run.stdout.readline().split()
        assert ledger.is_mounted(mountpoint) and proc.start_time(int(pid)) is not None
        if how == signal.SIGKILL:
            subprocess.run([sys.executable, "-m", "lab", "clean"], cwd=ROOT, check=True, capture_output=True)
            assert ledger.is_mounted(mountpoint), "a run that lives was cleaned up"
        run.send_signal(how)
        run.wait(30)
    if how == signal.SIGKILL:
        subprocess.run([sys.executable, "-m", "lab", "clean"], cwd=ROOT, check=True, capture_output=True)
    deadline = time.monotonic() + 5
    while proc.start_time(int(pid)) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert proc.start_time(int(pid)) is None
    assert not ledger.is_mounted(mountpoint)
    assert not os.path.exists(folder)
    # Another test may have the loop device by now.
    assert folder not in proc.run(["losetup", "-n", "-O", "BACK-FILE", "-l", device], check=False)


def test_compsize_output_is_understood():
    text = "Processed 1 file, 8 regular extents (8 refs), 0 inline.\nType Perc Disk Usage Uncompressed Referenced\n"
    assert (
        storage.parse_compsize(text + "TOTAL 31% 331776 1048576 1048576\nzstd 31% 331776 1048576 1048576\n") == 331776
    )
    assert storage.parse_compsize("No files.\n") == 0
    with pytest.raises(ValueError, match="unknown"):
        storage.parse_compsize("something else")
