//! TCP ports of branches: each branch keeps a port of its own.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};

use pagefold_server::control::Client;
use pagefold_server::failure::{Failure, Result};
use pagefold_server::files;

use super::record::Product;
use crate::file_lock;

/// Last port that branches get; it lies below those that kernels give to outgoing connections.
const LAST: u16 = 32_767;

/// The turn to choose a port, held until the choice is stored.
pub struct Turn {
    _lock: File,
}

/// Waits for the turn.
pub fn turn() -> Result<Turn> {
    let dir = files::runtime_dir();
    files::make_private(&dir)?;
    let lock = files::lock_file(&dir.join("branch-ports"))?;
    file_lock::wait(&lock, "another branch that chooses its port")?;
    Ok(Turn { _lock: lock })
}

/// Returns a port on which nobody listens, and that no branch of a mounted pool has.
pub fn choose(_turn: &Turn, product: Product) -> Result<u16> {
    let mut taken = Vec::new();
    for client in Client::all()? {
        taken.extend(super::all(client.pool())?.into_iter().map(|branch| branch.record.port));
    }
    let first = match product {
        Product::PostgreSql => 15_432,
        Product::MariaDb => 13_306,
    };
    let free = (first..=LAST).find(|port| !taken.contains(port) && is_free(*port));
    free.ok_or_else(|| Failure::new("no port is free").hint("name one: --port N"))
}

/// Returns true if nobody listens on the port.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
