//! Starts the server on a restored dataset.

use std::path::PathBuf;

use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::raw::shown;

use crate::args::{BackupRestore, Mount};
use crate::datasets;
use crate::verbs::branch::data::DataDir;
use crate::verbs::branch::mariadb;
use crate::verbs::branch::owner::Owner;
use crate::verbs::branch::postgres::{self, Goal};
use crate::verbs::branch::record::{Options, Position, Product, Record};
use crate::verbs::branch::{ports, process, server};

/// A server that has recovered.
pub(super) struct Started {
    pub(super) mounted: PathBuf,
    pub(super) port: u16,
    pub(super) log: PathBuf,
    /// Command that stops it.
    pub(super) stop: String,
}

/// Mounts the dataset for everybody; returns where.
pub(super) fn mount(args: &BackupRestore, name: &Name) -> Result<PathBuf> {
    crate::verbs::mount::run_quietly(&Mount::of(name.to_string(), args.mountpoint.clone()))?;
    let mounted = datasets::find(name)?.mounted;
    mounted.ok_or_else(|| Failure::new(format!("{name} was mounted, and is not mounted any more")))
}

/// Starts the server on a mounted dataset; returns when it has recovered.
pub(super) fn start(
    args: &BackupRestore,
    name: &Name,
    mounted: PathBuf,
    data: &str,
    product: Product,
) -> Result<Started> {
    let path = data.to_owned();
    let data = DataDir::open(&mounted, data)?;
    let mut options = Options::default();
    options.update(&args.server)?;
    // The owner is checked before anything is begun, since the message is about that user.
    Owner::of(&data, options.user.as_deref())?;
    let turn = ports::turn()?;
    let port = match args.server.port {
        Some(port) => port,
        None => ports::choose(&turn, product)?,
    };
    let version = match product {
        Product::PostgreSql => postgres::version(&data)?.to_string(),
        Product::MariaDb => mariadb::version_and_position(&data)?.0,
    };
    let record = Record {
        product,
        version,
        data: path,
        port,
        position: Position::default(),
        options,
        made_mountpoint: false,
    };
    server::start_to(name, &record, &data, Goal::Point).map_err(|failure| {
        let advice = failure.advice().unwrap_or_default();
        Failure::new(failure.what())
            .hint(format!("{name} is restored and mounted at {}\n  {advice}", mounted.display()))
    })?;
    let stop = stop_command(&record, &data)?;
    Ok(Started { mounted, port, log: server::log_of(name)?, stop })
}

/// Returns the command that stops a server, which no verb does: the dataset is no branch.
fn stop_command(record: &Record, data: &DataDir) -> Result<String> {
    let owner = Owner::of(data, record.options.user.as_deref())?;
    Ok(match record.product {
        Product::PostgreSql => {
            let program = postgres::control_program(data, record, &owner)?;
            format!("{} -D {} stop", program.display(), shown(&data.path))
        }
        Product::MariaDb => match process::server_of(data) {
            Some(pid) => format!("kill {pid}"),
            None => return Err(Failure::new(format!("the server of {} has ended", shown(&data.path)))),
        },
    })
}
