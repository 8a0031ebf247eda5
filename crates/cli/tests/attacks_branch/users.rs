//! Processes of ours and servers of users: what they inherit, and what they see of each other's.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::run;
use crate::common::{Sandbox, bounded, can_mount, parent};

/// Fields of a process.
struct Process {
    status: String,
    files: Vec<String>,
    environment: String,
    stat: Vec<String>,
    limits: String,
}

impl Process {
    fn of(pid: i32) -> Self {
        let at = |name: &str| format!("/proc/{pid}/{name}");
        let files = fs::read_dir(at("fd")).unwrap().flatten();
        let files = files.filter_map(|file| fs::read_link(file.path()).ok());
        let stat = fs::read_to_string(at("stat")).unwrap();
        let stat = stat.rsplit_once(") ").unwrap().1.split(' ').map(str::to_owned).collect();
        Self {
            status: fs::read_to_string(at("status")).unwrap(),
            files: files.map(|file| file.to_string_lossy().into_owned()).collect(),
            environment: String::from_utf8_lossy(&fs::read(at("environ")).unwrap()).into_owned(),
            stat,
            limits: fs::read_to_string(at("limits")).unwrap(),
        }
    }

    fn line(&self, name: &str) -> &str {
        self.status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t")).unwrap()
    }
}

#[test]
fn our_processes_inherit_nothing_that_was_not_meant_for_them() {
    if !can_mount() {
        return;
    }
    let options = ["takeover=off", "takeover=on"];
    for options in options.iter().take(if pagefold_fuse::kernel_resends() { 2 } else { 1 }) {
        let sandbox = Sandbox::new();
        sandbox.dir("mnt");
        sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M"]);
        let script = format!(
            "exec 9>{0}/lock 8</etc/passwd; flock -n 9 || exit 9; trap '' HUP INT TERM QUIT CHLD USR1; umask 000; ulimit -c unlimited; cd {0}/mnt/..; \
             exec nice -n 5 {1} mount -o {options} tank mnt",
            sandbox.path("").display(),
            env!("CARGO_BIN_EXE_pagefold")
        );
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]).envs(sandbox.environment()).stdin(Stdio::null());
        command
            .env("PGPASSWORD", "secret")
            .env("LD_PRELOAD_X", "secret")
            .env("TMPDIR", "/x")
            .env("NOTIFY_SOCKET", "/x");
        // SAFETY: it takes a session of its own, so that no terminal of the test's is there; it allocates nothing.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                Ok(())
            });
        }
        let mounted = bounded(command);
        assert!(mounted.status.success(), "{}", mounted.stderr);
        let server = i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap();
        let mut all = vec![server];
        if *options == "takeover=on" {
            all.push(parent(server));
        }
        let children =
            fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap_or_default();
        let mounter: Vec<i32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(mounter.len(), 1, "{children}");
        all.extend(mounter);
        for pid in all {
            let process = Process::of(pid);
            assert!(
                !process.files.iter().any(|file| file.ends_with("/lock") || file == "/etc/passwd"),
                "{pid}: {:?}",
                process.files
            );
            for secret in ["secret", "TMPDIR", "NOTIFY_SOCKET"] {
                assert!(!process.environment.contains(secret), "{pid}: {}", process.environment);
            }
            assert_eq!(process.line("Umask"), "0077", "{pid}");
            let ignored = u64::from_str_radix(process.line("SigIgn"), 16).unwrap();
            // SIGCHLD, SIGUSR1, SIGQUIT: none of ours ignores these.
            assert_eq!(ignored & (1 << 16 | 1 << 9 | 1 << 2), 0, "{pid}: {ignored:x}");
            // Terminal and niceness: fields 7 and 19.
            assert_eq!((process.stat[4].as_str(), process.stat[16].as_str()), ("0", "0"), "{pid}");
            assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"), "{pid}");
            let core = process.limits.lines().find(|line| line.starts_with("Max core")).unwrap();
            assert!(core.contains(" 0  "), "{pid}: {core}");
        }
        let free = Command::new("flock").arg("-n").arg(sandbox.path("lock")).arg("true").status().unwrap();
        assert!(free.success(), "the lock is still held");
        sandbox.ok(&["unmount", "tank"]);
    }
}

/// Takes a user's mount away, also after a failure: its server ends with it.
struct Detached(PathBuf);

impl Drop for Detached {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-lq").arg(&self.0).output();
    }
}

/// A user without any privilege, whose mounts fusermount3 makes.
const USER: u32 = 65_534;

#[test]
fn users_mount_nothing_over_the_system_and_see_nothing_of_each_others_servers() {
    if !can_mount() || !Path::new("/usr/bin/fusermount3").exists() {
        return;
    }
    let sandbox = Sandbox::new();
    fs::set_permissions(sandbox.path(""), Permissions::from_mode(0o755)).unwrap();
    // For this test alone everybody may open it.
    let fuse = sandbox.path("fuse");
    mknodat(CWD, &fuse, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(10, 229)).unwrap();
    fs::set_permissions(&fuse, Permissions::from_mode(0o666)).unwrap();
    rustix::mount::mount_bind(&fuse, "/dev/fuse").unwrap();
    let user = sandbox.dir("user");
    for dir in ["user", "user/mnt", "user/run", "user/state", "user/log", "user/real"] {
        chown(sandbox.dir(dir), Some(USER), Some(USER)).unwrap();
        fs::set_permissions(sandbox.path(dir), Permissions::from_mode(0o700)).unwrap();
    }
    let _detached = Detached(user.join("mnt"));
    let program = sandbox.path("mount.pagefold");
    let pagefold = sandbox.path("pagefold");
    for copy in [&program, &pagefold] {
        // By another process: what this one has open for writing, a child of another test may have, too, and it could not be run.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_pagefold")).arg(copy).status().unwrap();
        assert!(copied.success());
    }
    let as_user = |program: &Path, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words).current_dir(&user).uid(USER).gid(USER).stdin(Stdio::null());
        for (name, dir) in [("STATE", "state"), ("RUNTIME", "run"), ("LOG", "log")] {
            command.env(format!("PAGEFOLD_{name}_DIR"), user.join(dir));
        }
        bounded(command)
    };
    let ok = |words: &[&str]| {
        let output = as_user(&pagefold, words);
        assert!(output.status.success(), "{words:?}: {}", output.stderr);
        output.stdout
    };
    ok(&["create", "tank", "tank.pf", "--size", "256M"]);
    let roots = sandbox.dir("roots");
    symlink("/etc", user.join("etc")).unwrap();
    lchown(user.join("etc"), Some(12_345), Some(12_345)).unwrap();
    for dir in ["/", "/etc", "/proc/self", "/usr/bin", "/root", roots.to_str().unwrap()] {
        for program in [&pagefold, &program] {
            let words: &[&str] = if program == &pagefold { &["mount", "tank", dir] } else { &["tank", dir] };
            assert!(!as_user(program, words).status.success(), "{dir}");
        }
    }
    for options in ["suid", "dev", "allow_other"] {
        let tried = as_user(&pagefold, &["mount", "-o", options, "tank", "mnt"]);
        let line = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        let line = line.lines().find(|line| line.contains("/user/mnt ")).unwrap_or_default().to_owned();
        assert!(!line.contains("allow_other"), "{line}");
        if tried.status.success() {
            assert!(line.contains("nosuid") && line.contains("nodev"), "{options}: {line}");
            ok(&["unmount", "tank"]);
        }
    }
    ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    let told: serde_json::Value = serde_json::from_str(&ok(&["status", "tank", "--json"])).unwrap();
    let pid = told["pools"][0]["pid"].as_i64().unwrap();
    // Not even the user's other processes look into a server: it has what files of others say.
    let look = format!("cat /proc/{pid}/environ || ls /proc/{pid}/fd || head -c 1 /proc/{pid}/mem");
    let looked = as_user(Path::new("/bin/sh"), &["-c", &look]);
    assert!(!looked.status.success(), "{}", looked.stdout);
    // Root may not enter, nor does it hang where it tries.
    assert!(!run(&sandbox, &["du", user.join("mnt").to_str().unwrap()]).status.success());
    ok(&["unmount", "tank"]);
}
