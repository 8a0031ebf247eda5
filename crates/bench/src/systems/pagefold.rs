//! Drives Pagefold by its program alone, as an owner would.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Activity, Driver, Options, umount};
use crate::bench::Bench;
use crate::host::cleanup::{Noted, note_server};
use crate::host::disk::Disk;
use crate::host::exec::run;

/// A pool, and the server that `pagefold mount` starts for it.
pub(super) struct Pagefold {
    program: PathBuf,
    codec: &'static str,
    pool: String,
    /// Folder of the pool cache, sockets and logs of the bench's pools, apart from the machine's.
    places: PathBuf,
    dir: PathBuf,
    memory: Option<u64>,
    /// Command that joins the cgroup and then runs `mount`, if there is a cgroup.
    prefix: Option<Command>,
    server: Option<(u32, Noted)>,
    exported: bool,
}

impl Pagefold {
    pub(super) fn new(bench: &Bench, codec: &'static str, options: &Options) -> Result<Self> {
        let program = bench.pagefold().to_owned();
        if !program.exists() {
            bail!(
                "{} is not there: build it with `cargo build --release` or name it with --pagefold",
                program.display()
            );
        }
        let places = bench.dir().join("pagefold");
        std::fs::create_dir_all(&places)?;
        Ok(Self {
            program,
            codec,
            pool: format!("bench-{codec}-{}", bench.serial()),
            places,
            dir: bench.dir().to_owned(),
            memory: options.memory,
            prefix: options.limit.map(|limit| limit.wrap(&Command::new("env"))),
            server: None,
            exported: false,
        })
    }

    fn with_places(&self, mut command: Command) -> Command {
        for (variable, folder) in
            [("PAGEFOLD_STATE_DIR", "state"), ("PAGEFOLD_RUNTIME_DIR", "run"), ("PAGEFOLD_LOG_DIR", "log")]
        {
            command.env(variable, self.places.join(folder));
        }
        command
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(verb);
        self.with_places(command)
    }

    /// Returns the command `pagefold mount`. It runs in the cgroup if there is one, so that the server that it leaves
    /// behind does, too.
    fn mount_command(&self, point: &Path) -> Command {
        let mut command = match &self.prefix {
            Some(prefix) => {
                let mut inside = Command::new(prefix.get_program());
                inside.args(prefix.get_args()).arg(&self.program);
                inside
            }
            None => Command::new(&self.program),
        };
        command.arg("mount").arg(&self.pool).arg(point);
        if let Some(bytes) = self.memory {
            command.arg("-o").arg(format!("cache={}M", bytes >> 20));
        }
        self.with_places(command)
    }

    /// Asks the pool's control socket for its status, by the program.
    fn status(&self) -> Result<Value> {
        let out = run(self.command("status").arg("--json").arg(&self.pool))?.stdout;
        serde_json::from_str(&out).context("read the output of `pagefold status --json`")
    }
}

/// Returns the first value of a key, wherever it is in a JSON document.
fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => map.get(key).or_else(|| map.values().find_map(|inner| find(inner, key))),
        Value::Array(items) => items.iter().find_map(|inner| find(inner, key)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Reads the output of `pagefold iostat --json` for its first pool.
fn activity(told: &Value) -> Option<Activity> {
    let text = |value: &Value, key| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let number = |value: &Value, key| value.get(key).and_then(Value::as_u64);
    let mut found = Activity::default();
    for one in find(told, "counters")?.as_array()? {
        let figures = (number(one, "operations")?, number(one, "bytes")?);
        found.counters.insert(text(one, "name")?, figures);
    }
    for kind in find(told, "rewrites")?.as_array()? {
        let lengths = kind.get("lengths")?.as_array()?.iter();
        let lengths = lengths.map(|one| Some((number(one, "at_most_bytes")?, number(one, "operations")?)));
        found.lengths.insert(text(kind, "name")?, lengths.collect::<Option<_>>()?);
    }
    Some(found)
}

fn alive(pid: u32) -> bool {
    // A zombie has ended, too; its parent may be slow to notice.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .is_some_and(|state| state != "Z")
    })
}

fn wait_gone(pid: u32, limit: Duration) -> Result<()> {
    let started = Instant::now();
    while alive(pid) {
        if started.elapsed() > limit {
            bail!("the server process {pid} still runs after {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Driver for Pagefold {
    fn format(&mut self, disk: &Disk) -> Result<()> {
        let codec = format!("compression={}", self.codec);
        // The disk is for benchmarks; another pool may have left its labels there.
        // As the others are made: without discards, which would take the room of the disc's file away, so that each
        // flush had to wait for its allocation again (measured: 305 us instead of 170 us).
        let create = ["-f", "--no-trim", "-o"];
        run(self.command("create").args(create).arg(codec).arg(&self.pool).arg(disk.path()))?;
        Ok(())
    }

    fn mount(&mut self, disk: &Disk, point: &Path) -> Result<f64> {
        let started = Instant::now();
        if self.exported {
            run(self.command("import").arg("-d").arg(disk.path()).arg(&self.pool))?;
            self.exported = false;
        }
        run(&mut self.mount_command(point))?;
        let seconds = started.elapsed().as_secs_f64();
        let status = self.status()?;
        let pid = find(&status, "pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok());
        let pid = pid.ok_or_else(|| anyhow!("`pagefold status --json {}` names no pid", self.pool))?;
        self.server = Some((pid, note_server(&self.dir, pid)?));
        Ok(seconds)
    }

    fn unmount(&mut self, point: &Path) -> Result<()> {
        run(self.command("unmount").arg(point))?;
        if let Some((pid, _noted)) = self.server.take() {
            wait_gone(pid, Duration::from_secs(60))?;
        }
        Ok(())
    }

    fn export(&mut self, point: &Path) -> Result<()> {
        self.unmount(point)?;
        run(self.command("export").arg(&self.pool))?;
        self.exported = true;
        Ok(())
    }

    fn hits_and_misses(&self) -> Result<Option<(u64, u64)>> {
        let status = self.status()?;
        let number = |key| find(&status, key).and_then(Value::as_u64);
        Ok(number("hits").zip(number("misses")))
    }

    fn activity(&self) -> Result<Option<Activity>> {
        let out = run(self.command("iostat").arg("--json").arg(&self.pool))?.stdout;
        let told: Value =
            serde_json::from_str(&out).context("read the output of `pagefold iostat --json`")?;
        activity(&told)
            .map(Some)
            .ok_or_else(|| anyhow!("`pagefold iostat --json` says something unknown: {told}"))
    }

    fn log_bytes(&self) -> Result<Option<u64>> {
        Ok(find(&self.status()?, "log_bytes").and_then(Value::as_u64))
    }

    fn sync(&mut self, _point: &Path) -> Result<()> {
        // sync(2) writes the kernel's dirty pages back to the server, which must then make them durable.
        rustix::fs::sync();
        run(self.command("sync").arg(&self.pool))?;
        Ok(())
    }

    fn server_pid(&self) -> Option<u32> {
        self.server.as_ref().map(|&(pid, _)| pid)
    }

    fn crash(&mut self, point: &Path) -> Result<()> {
        let (pid, _noted) = self.server.take().ok_or_else(|| anyhow!("no server runs"))?;
        let target = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let target = target.ok_or_else(|| anyhow!("process id {pid} is out of range"))?;
        kill_process(target, Signal::KILL)?;
        wait_gone(pid, Duration::from_secs(60))?;
        umount(point)
    }

    fn snapshot(&mut self, _point: &Path, name: &str) -> Result<f64> {
        Ok(run(self.command("snapshot").arg(format!("{}@{name}", self.pool)))?.seconds)
    }

    fn clone_snapshot(&mut self, _point: &Path, snapshot: &str, name: &str) -> Result<f64> {
        let words = [format!("{}@{snapshot}", self.pool), format!("{}/{name}", self.pool)];
        Ok(run(self.command("clone").args(words))?.seconds)
    }

    fn used_bytes(&self, _point: &Path) -> Result<u64> {
        let used = find(&self.status()?, "used_bytes").and_then(Value::as_u64);
        used.ok_or_else(|| anyhow!("`pagefold status --json {}` does not tell used_bytes", self.pool))
    }

    fn ratio(&self, _point: &Path) -> Result<Option<f64>> {
        let status = self.status()?;
        let number = |key| find(&status, key).and_then(Value::as_u64);
        Ok(number("logical_bytes")
            .zip(number("used_bytes"))
            .map(|(plain, used)| plain as f64 / used.max(1) as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_at_any_depth() {
        let value: Value = serde_json::from_str(r#"{"pools":[{"name":"a","server":{"pid":42}}]}"#).unwrap();
        assert_eq!(find(&value, "pid").and_then(Value::as_u64), Some(42));
        assert!(find(&value, "nothing").is_none());
    }

    #[test]
    fn activity_is_what_iostat_tells() {
        let told = r#"{"pools":[{"counters":[{"name":"trees","operations":1,"bytes":20}],"rewrites":[{"name":"rewritten_other",
            "operations":4,"bytes":50,"lengths":[{"at_most_bytes":12,"operations":3},{"at_most_bytes":15,"operations":1}]}]}]}"#;
        let found = activity(&serde_json::from_str(told).unwrap()).unwrap();
        assert_eq!(found.counters["trees"], (1, 20));
        assert_eq!(found.lengths["rewritten_other"], [(12, 3), (15, 1)].into());
        assert!(activity(&Value::Null).is_none());
    }
}
