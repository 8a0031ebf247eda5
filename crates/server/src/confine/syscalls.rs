//! Filters system calls (seccomp). A call that is not allowed returns ENOSYS, as from a kernel without it, so that
//! libraries fall back on older calls; a call that only an intruder makes ends the process.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls that none of our processes ever makes, nor any program that a later version could start: they reach into other
/// processes, into the kernel or into the whole machine.
const NEVER: &[c_long] = &[
    // Calls that reach into other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // Calls that reach into the kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_syslog,
    // Calls that change the machine.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    // Calls that make views of it that the rules for paths do not cover.
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_fanotify_init,
    libc::SYS_personality,
];

/// Further calls that end a server: it starts no programs, and another process mounts for it.
const NEVER_SERVER: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_move_mount,
];

/// Calls that a server makes once its devices are open, allowed with any arguments.
const ALLOWED: &[c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Threads and time.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getcpu,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getrusage,
    // Signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Identity of the process.
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_capget,
    // Descriptors: devices, the kernel's requests, the log.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_memfd_create,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fstat,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Paths: /proc, /sys, /dev/fuse, the control socket.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_unlinkat,
    // Sockets that exist: the control socket and its clients, the line to the supervisor.
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
];

/// Calls of C libraries on x86-64; other architectures have only the newer calls.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OLD: &[c_long] = &[];

/// Allowed requests of ioctl: to discard and to ask about a device (`BLKDISCARD`, `BLKROGET`, `BLKSSZGET`), to clone
/// `/dev/fuse`, to ask whether a file is a terminal, to set non-blocking mode, to close on exec.
const IOCTLS: &[u64] = &[0x1277, 0x125E, 0x1268, 0x8004_E500, 0x5401, 0x5421, 0x5451];

/// Allowed operations of prctl: names of threads and of memory, and huge pages.
const PRCTLS: &[libc::c_int] =
    &[libc::PR_SET_NAME, PR_SET_VMA, libc::PR_GET_THP_DISABLE, libc::PR_SET_THP_DISABLE];
const PR_SET_VMA: libc::c_int = 0x5356_4d41;

/// Has the kernel end this process, and those that it starts, at calls that no process of ours makes.
pub(super) fn forbid() -> Result<(), String> {
    install(compile(unconditional(&[NEVER]), SeccompAction::Allow, SeccompAction::KillProcess))
}

/// Has the kernel end this process if it starts a program, or mounts.
pub(super) fn no_programs() -> Result<(), String> {
    install(compile(unconditional(&[NEVER_SERVER]), SeccompAction::Allow, SeccompAction::KillProcess))
}

/// Allows a server only the calls that it needs.
pub(super) fn only_needed() -> Result<(), String> {
    no_programs()?;
    install(needed().and_then(|rules| {
        compile(rules, SeccompAction::Errno(libc::ENOSYS.cast_unsigned()), SeccompAction::Allow)
    }))
}

fn needed() -> Result<Rules, String> {
    let failed = |error: BackendError| error.to_string();
    let mut rules = unconditional(&[ALLOWED, ALLOWED_OLD]);
    let mut when = |call: c_long, conditions: Vec<Result<SeccompCondition, BackendError>>| {
        let each = conditions.into_iter().map(|condition| SeccompRule::new(vec![condition?]));
        let each: Vec<SeccompRule> = each.collect::<Result<_, _>>().map_err(failed)?;
        rules.insert(call, each);
        Ok::<(), String>(())
    };
    // Only threads may be made: no processes, and no namespaces. The flags of clone3 cannot be inspected; libraries
    // fall back to clone.
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    when(libc::SYS_clone, vec![masked(0, thread, thread)])?;
    // No memory may hold code.
    let code = u64::from(libc::PROT_EXEC.cast_unsigned());
    when(libc::SYS_mmap, vec![masked(2, code, 0)])?;
    when(libc::SYS_mprotect, vec![masked(2, code, 0)])?;
    when(libc::SYS_ioctl, IOCTLS.iter().map(|&request| equal(1, request)).collect())?;
    when(libc::SYS_prctl, PRCTLS.iter().map(|&what| equal(0, u64::from(what.cast_unsigned()))).collect())?;
    // Signals and limits only of the process itself.
    let own = u64::from(std::process::id());
    when(libc::SYS_tgkill, vec![equal(0, own)])?;
    when(libc::SYS_prlimit64, vec![equal(0, 0)])?;
    let local = u64::from(libc::AF_UNIX.cast_unsigned());
    when(libc::SYS_socket, vec![equal(0, local)])?;
    when(libc::SYS_socketpair, vec![equal(0, local)])?;
    Ok(rules)
}

fn equal(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}

fn unconditional(lists: &[&[c_long]]) -> Rules {
    lists.iter().copied().flatten().map(|&call| (call, Vec::new())).collect()
}

fn compile(rules: Rules, other: SeccompAction, matched: SeccompAction) -> Result<BpfProgram, String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let filter = SeccompFilter::new(rules, other, matched, arch).map_err(|error| error.to_string())?;
    filter.try_into().map_err(|error: BackendError| error.to_string())
}

fn install(program: Result<BpfProgram, String>) -> Result<(), String> {
    apply_filter(&program?).map_err(|error| error.to_string())
}
