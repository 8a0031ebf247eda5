//! Tests what a confined process is refused, in another process: this test program, started once more.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use super::*;

/// Variable that tells the started process what to try.
const VARIABLE: &str = "PAGEFOLD_TEST_CONFINED";

fn try_confined(what: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "confine::tests::inside", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, what)
        .output()
        .unwrap()
}

#[test]
fn inside() {
    let Ok(what) = std::env::var(VARIABLE) else { return };
    let figures = server(Confine::Auto).unwrap();
    if !figures.system_calls {
        println!("no filter here: {:?}", figures.missing);
        return;
    }
    match what.as_str() {
        "work" => work(&figures),
        "ptrace" => drop(call(libc::SYS_ptrace, [0, 0, 0])),
        "bpf" => drop(call(libc::SYS_bpf, [0, 0, 0])),
        "execve" => drop(call(libc::SYS_execve, [0, 0, 0])),
        "mount" => drop(call(libc::SYS_mount, [0, 0, 0])),
        "umount2" => drop(call(libc::SYS_umount2, [0, 0, 0])),
        "fsopen" => drop(call(libc::SYS_fsopen, [0, 0, 0])),
        "move_mount" => drop(call(libc::SYS_move_mount, [-1, 0, -1])),
        "init_module" => drop(call(libc::SYS_init_module, [0, 0, 0])),
        "unshare" => drop(call(libc::SYS_unshare, [0, 0, 0])),
        other => panic!("{other} is not known here"),
    }
    println!("survived");
}

/// Makes a system call and returns its errno; zero if it succeeds.
fn call(number: libc::c_long, arguments: [libc::c_long; 3]) -> i32 {
    let [a, b, c] = arguments;
    // SAFETY: the callers' arguments name no memory that the kernel would write to, and no descriptor that is in use.
    let done = unsafe { libc::syscall(number, a, b, c, -1, 0, 0) };
    if done >= 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) }
}

/// Checks that a server's own work is allowed, and that calls it never makes are refused.
fn work(figures: &ConfinementFigures) {
    assert_eq!(figures.capabilities, Vec::<String>::new());
    std::thread::spawn(|| vec![0_u8; 8 << 20].len()).join().unwrap();
    std::os::unix::net::UnixStream::pair().unwrap();
    assert!(std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains("/proc"));
    assert!(std::thread::available_parallelism().is_ok());
    let fork = libc::c_long::from(libc::SIGCHLD);
    assert_eq!(call(libc::SYS_clone, [fork, 0, 0]), libc::ENOSYS, "a process");
    assert_eq!(call(libc::SYS_clone3, [0, 0, 0]), libc::ENOSYS, "clone3");
    assert_eq!(call(libc::SYS_setuid, [0, 0, 0]), libc::ENOSYS, "setuid");
    assert_eq!(call(libc::SYS_kill, [1, 0, 0]), libc::ENOSYS, "kill");
    let dump = libc::c_long::from(libc::PR_SET_DUMPABLE);
    assert_eq!(call(libc::SYS_prctl, [dump, 1, 0]), libc::ENOSYS, "prctl");
    // 0x5412 is TIOCSTI, which types into a terminal.
    assert_eq!(call(libc::SYS_ioctl, [0, 0x5412, 0]), libc::ENOSYS, "ioctl");
    let code = libc::c_long::from(libc::PROT_READ | libc::PROT_EXEC);
    assert_eq!(call(libc::SYS_mmap, [0, 4096, code]), libc::ENOSYS, "code");
    let error = std::net::TcpStream::connect("127.0.0.1:9").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSYS), "a connection");
    if figures.paths {
        for path in ["/etc/passwd", "/etc", "/"] {
            let error = std::fs::File::open(path).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{path}");
        }
        let error = std::fs::write("/proc/self/comm", "x").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    }
}

#[test]
fn a_confined_process_does_its_work_and_nothing_else() {
    let output = try_confined("work");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("survived") || text.contains("no filter here"), "{text}");
}

#[test]
fn what_only_an_intruder_calls_ends_the_process() {
    for what in
        ["ptrace", "bpf", "execve", "mount", "umount2", "fsopen", "move_mount", "init_module", "unshare"]
    {
        let output = try_confined(what);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains("survived"), "{what} did not end it");
        assert!(
            output.status.signal() == Some(libc::SIGSYS) || text.contains("no filter here"),
            "{what}: {text}"
        );
    }
}

#[test]
fn what_is_missing_is_an_error_only_where_all_is_wanted() {
    let missing: Step<'_> = ("paths", &|| Err("there is none".to_owned()));
    let auto = Steps::take(Confine::Auto, &[missing]);
    assert!(auto.check("server").is_ok() && auto.missing.contains(&"paths: there is none".to_owned()));
    let on = Steps::take(Confine::On, &[missing]);
    assert!(on.check("server").unwrap_err().to_string().contains("paths: there is none"));
    assert!(Steps::take(Confine::Off, &[missing]).missing.is_empty());
}
