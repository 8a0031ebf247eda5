//! `branch list`, and the messages about a branch that was made or started.

use pagefold_server::failure::Result;
use pagefold_server::{names, raw, units};
use serde_json::{Value, json};

use super::data::DataDir;
use super::process::Processes;
use super::record::Product;
use super::{Branch, server};
use crate::args::ListBranches;
use crate::failures::Failures;
use crate::table::{Align, Table, printable};
use crate::target;

/// The facts that are told of a branch.
struct BranchStatus {
    branch: Branch,
    /// Process of the server, if it runs.
    pid: Option<i32>,
    /// Socket in its data directory, if that is mounted.
    socket: Option<std::path::PathBuf>,
}

impl BranchStatus {
    fn of(branch: Branch, processes: &Processes) -> Self {
        let data = branch.mounted().and_then(|dir| DataDir::open(&dir, &branch.record.data)).ok();
        let pid = data.as_ref().and_then(|data| processes.server_of(data));
        let socket = data.map(|data| server::socket(&branch.record, &data.path));
        Self { branch, pid, socket }
    }

    /// Returns the address by which clients connect.
    fn connection(&self) -> String {
        let port = self.branch.record.port;
        match self.branch.record.product {
            Product::PostgreSql => format!("postgresql://localhost:{port}/postgres"),
            Product::MariaDb => format!("mariadb://127.0.0.1:{port}/"),
        }
    }

    fn state(&self) -> &'static str {
        match (self.pid, &self.branch.figures.mounted) {
            (Some(_), _) => "running",
            (None, Some(_)) => "stopped",
            (None, None) => "unmounted",
        }
    }

    fn of_what(&self) -> String {
        self.branch.figures.origin.clone().unwrap_or_else(|| "-".into())
    }

    fn lsn(&self) -> String {
        self.branch.record.position.lsn.clone().unwrap_or_else(|| "-".into())
    }

    fn age_seconds(&self) -> u64 {
        let now = units::now();
        now.saturating_sub(self.branch.figures.created)
    }

    fn json(&self) -> Value {
        let Branch { name, figures, record } = &self.branch;
        json!({
            "name": name.to_string(),
            "origin": figures.origin,
            "created": figures.created,
            "age_seconds": self.age_seconds(),
            "used_bytes": figures.used_bytes,
            "referenced_bytes": figures.referenced_bytes,
            "database": record.product,
            "version": record.version,
            "data": record.data,
            "mountpoint": figures.mountpoint,
            "mounted": figures.mounted.as_deref().map(raw::text),
            "lsn": record.position.lsn,
            "checkpoint_lsn": record.position.checkpoint_lsn,
            "system_identifier": record.position.system,
            "port": record.port,
            "options": record.options,
            "socket": self.socket.as_deref().map(raw::text),
            "connection": self.connection(),
            "state": self.state(),
            "pid": self.pid,
        })
    }
}

/// Lists branches.
pub fn run(args: &ListBranches) -> Result<()> {
    let targets = target::names(&args.targets)?;
    let processes = Processes::now();
    let mut all = Vec::new();
    let mut failures = Failures::new();
    for name in targets {
        let exists = if name.path.is_empty() { Ok(()) } else { crate::datasets::find(&name).map(drop) };
        let concerns = |branch: &Branch| {
            let of = branch.origin().is_some_and(|origin| {
                if name.is_snapshot() { origin == name } else { names::is_within(&origin.path, &name.path) }
            });
            of || !name.is_snapshot() && names::is_within(&branch.name.path, &name.path)
        };
        let found = failures.take(&name.to_string(), exists.and_then(|()| super::all(&name.pool)));
        let found = found.unwrap_or_default().into_iter().filter(concerns);
        all.extend(found.map(|branch| BranchStatus::of(branch, &processes)));
    }
    if args.output.json {
        let all: Vec<Value> = all.iter().map(BranchStatus::json).collect();
        crate::verbs::print_json(&json!({ "branches": all, "failures": failures.json() }))?;
    } else {
        print(&all, args);
    }
    failures.finish(args.targets.len(), "listed")
}

fn print(all: &[BranchStatus], args: &ListBranches) {
    let exact = args.output.exact;
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("OF", Align::Left),
        ("AGE", Align::Right),
        ("USED", Align::Right),
        ("REFER", Align::Right),
        ("DATABASE", Align::Left),
        ("LSN", Align::Left),
        ("STATE", Align::Left),
        ("CONNECT", Align::Left),
    ]);
    for told in all {
        let Branch { name, figures, record } = &told.branch;
        let age = told.age_seconds();
        table.row(vec![
            name.to_string(),
            printable(&told.of_what()),
            if exact { age.to_string() } else { units::age(age) },
            size(figures.used_bytes),
            size(figures.referenced_bytes),
            format!("{} {}", record.product.word(), printable(&record.version)),
            printable(&told.lsn()),
            told.state().into(),
            told.connection(),
        ]);
    }
    table.print(args.output.script);
}

/// Prints a message about a branch that was made or started.
pub fn print_one(branch: &Branch, as_json: bool) -> Result<()> {
    let told = BranchStatus::of(branch.clone(), &Processes::now());
    if as_json {
        return crate::verbs::print_json(&told.json());
    }
    let record = &branch.record;
    println!("{} of {}, {}", branch.name, told.of_what(), told.state());
    let dir = branch.figures.mounted.as_deref().map_or_else(|| "-".into(), |dir| printable(&raw::text(dir)));
    let (version, lsn) = (printable(&record.version), printable(&told.lsn()));
    println!("  {} {version} at {dir}, LSN {lsn}", record.product.name());
    println!("  {}", told.connection());
    if let Some(socket) = told.socket {
        println!("  {}", client(record.product, &socket, record.port));
    }
    Ok(())
}

/// Returns the command by which a client on this machine connects through the socket.
fn client(product: Product, socket: &std::path::Path, port: u16) -> String {
    match product {
        Product::PostgreSql => {
            let dir = printable(&raw::text(socket.parent().unwrap_or(socket)));
            format!("psql -h {dir} -p {port}")
        }
        Product::MariaDb => format!("mariadb --socket={}", printable(&raw::text(socket))),
    }
}
