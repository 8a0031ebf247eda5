//! `backup mount`: mounts a backup at a directory, or makes it a dataset of a pool whose pages come when they are read.

use std::fs;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagefold_backup::{Contents, Patience, Service};
use pagefold_engine::pool::{Guid, Origin as SnapshotOrigin, StreamHead};
use pagefold_lazy::{Link, Origin, Token, Wishes, skeleton};
use pagefold_server::control::DatasetFigures;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::incomplete::OF;
use pagefold_server::names::Name;
use pagefold_server::operations::Operation;
use pagefold_server::passage::passage;
use pagefold_server::spawn::{self, Purpose};
use pagefold_server::{files, mounts, raw, units};

use super::secret_bytes;
use crate::args::{Access, BackupMount, BackupMounts, Mount, Set};
use crate::reader::{self, MountSpec, Opening, RepositorySource, Task};
use crate::table::{Align, Table, printable};
use crate::verbs::{dataset, print_json, properties, send};
use crate::{backup_errors, datasets, mountpoint, target};

/// Prefix of the name of the snapshot that such a dataset is received as; it is destroyed at once.
const SKELETON: &str = "backup-mount-";
/// Variables that a reader of backups gets beside those that all of our processes get: they lead to the network, and to
/// keys that another program keeps.
const ENVIRONMENT: &[&str] = &[
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "SSH_AUTH_SOCK",
    "USER",
    "LOGNAME",
];

/// Mounts a backup.
pub fn run(args: &BackupMount) -> Result<()> {
    if target::is_path(&args.target) || args.target.ends_with('/') {
        return read_only(args);
    }
    if raw::path_of(&args.target).is_dir() && !args.target.contains('/') {
        return Err(Failure::usage(format!(
            "{} is a directory, and no POOL/DATASET",
            printable(&args.target)
        ))
        .hint(format!("as a directory it is written ./{}", printable(&args.target))));
    }
    writable(args)
}

fn source(repository: &str, access: &Access) -> Result<RepositorySource> {
    let remote = repository.contains("://");
    let path = raw::path_of(repository);
    let absolute =
        || std::path::absolute(&path).context(|| format!("cannot resolve {}", printable(repository)));
    Ok(RepositorySource {
        repository: if remote { repository.to_owned() } else { raw::text(&absolute()?) },
        endpoint: access.endpoint.clone(),
        region: access.region.clone(),
        remote_command: access.remote_command.clone(),
        settings: Service::of(repository).map(Service::settings).unwrap_or_default(),
        secret: secret_bytes(access)?,
    })
}

fn task(args: &BackupMount) -> Result<Task> {
    Ok(Task {
        source: source(&args.repository, &args.access)?,
        backup: args.backup.clone(),
        place: None,
        patience_s: args.patience,
        cache_bytes: args.cache.as_deref().map(units::parse_size).transpose()?,
        hydrate: args.hydrate,
        rate: args.rate.as_deref().map(units::parse_rate).transpose()?,
    })
}

fn read_only(args: &BackupMount) -> Result<()> {
    if args.dir.is_some() || args.hydrate {
        return Err(Failure::usage(format!(
            "{} is a directory: a backup is mounted there as it is, read-only",
            printable(&args.target)
        ))
        .hint("to write to it, or to have all of it brought, name a dataset: POOL/DATASET"));
    }
    let dir = raw::path_of(&args.target);
    let dir = std::path::absolute(&dir).context(|| format!("cannot resolve {}", dir.display()))?;
    // A wrong option is reported before anything is read.
    pagefold_server::mountopts::parse(&args.options)?;
    let mut task = task(args)?;
    let made = mountpoint::make(&dir)?;
    task.place = Some(MountSpec { dir, options: args.options.clone() });
    start(&task)?;
    if let Some(dir) = made.keep() {
        eprintln!("pagefold: made the directory {}", printable(&raw::text(&dir)));
    }
    Ok(())
}

fn writable(args: &BackupMount) -> Result<()> {
    let name = dataset::dataset(&args.target)?;
    if name.path.is_empty() {
        return Err(Failure::usage(format!("{name} is a pool, not a dataset"))
            .hint(format!("a backup becomes a dataset: {name}/NAME; to look at it: ./DIR")));
    }
    let doing = || format!("cannot mount {} as {name}", args.backup);
    let there = find(&name)?;
    if there.is_none() && args.dir.is_none() {
        let command =
            format!("backup mount {} {} {name} DIR", printable(&args.repository), printable(&args.backup));
        require_mountpoint(&name, &format!("pagefold {command}"))?;
    }
    let mut task = task(args)?;
    let failed = |error: &pagefold_backup::Error| backup_errors::failed(doing(), error);
    let repository = task.source.open(Patience::default()).map_err(|why| match why {
        Opening::Told(error) => failed(&error),
        Opening::Failed(failure) => failure,
    })?;
    let backup = repository.find(&args.backup).map_err(|error| failed(&error))?;
    let contents = Contents::open(repository, backup).map_err(|error| failed(&error))?;
    // The number fixes the backup: the newest one may be another a moment later.
    task.backup = contents.backup().number.to_string();
    let token = reader::token_of(&contents)?;
    let of = format!("{}/{}", contents.repository_id(), contents.backup().number);
    match &there {
        Some(figures) => check_made_of(&name, &of, figures, &task)?,
        None => build(&name, &contents, &task.source.repository, token)
            .map_err(|failure| in_doing(&doing(), &failure))?,
    }
    finish_building(&name, &of, token)?;
    have_read(&task, token)?;
    if let Some(dir) = there.as_ref().and_then(|figures| figures.mounted.clone())
        && args
            .dir
            .as_ref()
            .is_none_or(|wanted| std::path::absolute(wanted).is_ok_and(|wanted| wanted == dir))
    {
        eprintln!("pagefold: {name} is mounted at {} already, and is read on", printable(&raw::text(&dir)));
        return Ok(());
    }
    let mut mount = Mount::of(name.to_string(), args.dir.clone());
    mount.options.clone_from(&args.options);
    crate::verbs::mount::run(&mount)
}

fn in_doing(doing: &str, failure: &Failure) -> Failure {
    let told = Failure::new(format!("{doing}: {}", failure.what()));
    match failure.advice() {
        Some(hint) => told.hint(hint),
        None => told,
    }
}

fn find(name: &Name) -> Result<Option<DatasetFigures>> {
    Ok(datasets::of_pool(&name.pool)?.into_iter().find(|figures| figures.path == name.path))
}

/// Fails if a dataset that is yet to be made would inherit no mount point, before anything is made. The hint says how a
/// directory is given.
pub(super) fn require_mountpoint(name: &Name, hint: &str) -> Result<()> {
    let all = datasets::of_pool(&name.pool)?;
    let above = name.path.rmatch_indices('/').filter_map(|(at, _)| name.path.get(..at));
    let above = above.chain([""]).find(|path| all.iter().any(|figures| figures.path == *path));
    let values = properties::values(&Name::new(&name.pool, above.unwrap_or_default()))?;
    match values.iter().find(|value| value.name == "mountpoint") {
        Some(value) if value.value != "none" => Ok(()),
        _ => Err(Failure::usage(format!("where is {name} to be mounted?")).hint(hint)),
    }
}

/// Returns the name of the snapshot that the dataset of a backup is received as.
fn skeleton_of(name: &Name, token: Token) -> Name {
    Name::new(&name.pool, &format!("{}@{SKELETON}{token}", name.path))
}

/// Fails if the existing dataset was not made of this backup.
fn check_made_of(name: &Name, of: &str, there: &DatasetFigures, task: &Task) -> Result<()> {
    let known = properties::values(name)?.into_iter().find(|value| value.name == OF).map(|value| value.value);
    if known.as_deref() == Some(of) || find(&skeleton_of(name, token_in(of)?))?.is_some() {
        return Ok(());
    }
    let why = match known {
        Some(_) => "was made of another backup",
        None => "was not made of this backup",
    };
    Err(Failure::new(format!("there is a dataset {} already, and it {why}", there.name)).hint(format!(
        "name another one: pagefold backup mount {} {} {}/NAME",
        printable(&task.source.repository),
        task.backup,
        name.pool
    )))
}

fn token_in(of: &str) -> Result<Token> {
    let nonsense = || Failure::new(format!("\"{of}\" names no backup"));
    let (repository, number) = of.split_once('/').ok_or_else(nonsense)?;
    let repository = u128::from_str_radix(repository, 16).map_err(|_| nonsense())?;
    Ok(Token::new(&repository.to_be_bytes(), number.parse().map_err(|_| nonsense())?))
}

/// Makes the dataset: it gets all values of the backup, and no pages.
fn build(name: &Name, contents: &Contents, place: &str, token: Token) -> Result<()> {
    let backup = contents.backup();
    let snapshot =
        SnapshotOrigin { pool: Guid(token.0), number: backup.number, created: backup.origin.created };
    // A stream that was cut short when an earlier command was killed is begun again: all of it comes in seconds.
    let partials = datasets::partials_of(&name.pool)?;
    if partials.iter().any(|partial| partial.path == name.path && is_ours(partial, &snapshot)) {
        datasets::perform(&name.pool, Operation::AbortReceive { path: name.path.clone() })?;
    }
    let origin = Origin {
        repository: reader::repository_bytes(contents)?,
        backup: backup.number,
        place: place.to_owned(),
        name: backup.name(),
    };
    let head = StreamHead {
        to: snapshot,
        from: None,
        after: None,
        name: format!("{SKELETON}{token}"),
        expected_bytes: 0,
    };
    crate::ignore_sigpipe();
    let (outlet, inlet) = passage();
    let (received, built) = std::thread::scope(|scope| {
        let building = scope.spawn(move || {
            let mut out = BufWriter::with_capacity(1 << 20, inlet);
            let built = skeleton(contents, &origin, &head, &mut out);
            out.flush().ok();
            built
        });
        (send::receive_from(name, false, outlet), building.join())
    });
    match (received, built.map_err(|_| Failure::new("it ended by a bug"))?) {
        (Ok(_), Ok(_)) => Ok(()),
        (Err(failure), Err(pagefold_backup::Error::Stream(_)) | Ok(_)) => Err(failure),
        (_, Err(error)) => Err(backup_errors::failed("cannot read the manifest", &error)),
    }
}

fn is_ours(partial: &pagefold_server::control::PartialFigures, snapshot: &SnapshotOrigin) -> bool {
    let token: Option<pagefold_engine::pool::Token> = partial.receive_resume_token.parse().ok();
    token.is_some_and(|token| token.to == *snapshot)
}

/// Notes on the dataset which backup it was made of, and destroys the snapshot that it was received as. Does nothing if
/// that was done before.
fn finish_building(name: &Name, of: &str, token: Token) -> Result<()> {
    let snapshot = skeleton_of(name, token);
    if find(&snapshot)?.is_none() {
        return Ok(());
    }
    properties::set(&Set { words: vec![format!("{OF}={of}"), name.to_string()] })?;
    let what = vec![snapshot.path];
    datasets::perform(&name.pool, Operation::Destroy { what, recursive: false, dry_run: false }).map(drop)
}

/// Passes the wishes on to the process that reads the backup, or starts one.
fn have_read(task: &Task, token: Token) -> Result<()> {
    let open = || Link::open(files::reader_socket_of(token), token).ok();
    let link = match open() {
        Some(link) => link,
        None => match start(task) {
            Ok(()) => return Ok(()),
            // Another command may have started one at the same moment.
            Err(failure) => open().ok_or(failure)?,
        },
    };
    if !task.hydrate {
        return Ok(());
    }
    let wishes = Wishes { hydrate: true, rate: task.rate };
    link.wish(wishes).context(|| "cannot tell who reads the backup what is wished".into())
}

/// Starts a process that reads a backup, and waits until it does.
fn start(task: &Task) -> Result<()> {
    files::make_private(&files::runtime_dir())?;
    let log_path = files::log_dir()?.join("backup-mount.log");
    let (log, log_start) = crate::verbs::mount::open_log(&log_path)?;
    let program = std::env::current_exe().context(|| "cannot find this program's own file".into())?;
    // The reader's rules for paths name this folder, so it has to exist.
    let remembered = files::state_dir()?.join("backup");
    fs::create_dir_all(&remembered).context(|| format!("cannot make {}", remembered.display()))?;
    let mut command = Command::new(program);
    spawn::set_environment(&mut command, Purpose::Background);
    for name in ENVIRONMENT {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let mut child = command
        .args(["backup", "reader"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context(|| "cannot start the process that reads the backup".into())?;
    let text = serde_json::to_vec(task).context(|| "cannot tell it what to do".into())?;
    if let Some(mut input) = child.stdin.take() {
        // A process that does not listen says why on its output.
        let _ = input.write_all(&text);
    }
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        let heard = BufReader::new(output).read_line(&mut line);
        heard.context(|| "cannot hear from the process that reads the backup".into())?;
    }
    crate::verbs::mount::outcome_of(
        &mut child,
        &line,
        "the process that reads the backup",
        &log_path,
        log_start,
    )
}

/// Returns the figures of the processes that read backups, as their sockets tell them.
fn readers() -> Result<Vec<reader::ReaderFigures>> {
    let folder = files::runtime_dir();
    if !files::is_private(&folder)? {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for entry in fs::read_dir(&folder).context(|| format!("cannot read {}", folder.display()))? {
        let path = entry.context(|| format!("cannot read {}", folder.display()))?.path();
        if reader::is_socket(&path) {
            // A process that has just ended, or was killed, has no figures.
            all.extend(figures_of(&path));
        }
    }
    all.sort_by(|a, b| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
    Ok(all)
}

fn figures_of(socket: &Path) -> Option<reader::ReaderFigures> {
    let text = Link::figures_at(socket).ok()?;
    serde_json::from_str(&text).ok()
}

/// Lists the backups that are mounted.
pub fn list(args: &BackupMounts) -> Result<()> {
    let readers = readers()?;
    if args.output.json {
        return print_json(&serde_json::json!({ "mounts": readers }));
    }
    let exact = args.output.exact || args.output.script;
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("BACKUP", Align::Right),
        ("REPOSITORY", Align::Left),
        ("MOUNTED AT", Align::Left),
        ("STORED", Align::Right),
        ("READ", Align::Right),
        ("STATE", Align::Left),
    ]);
    let places = mounts::ours()?;
    for reader in readers {
        let dir: Option<PathBuf> = reader.dir.filter(|dir| mounts::topmost(&places, dir).is_some());
        table.row(vec![
            reader.name,
            reader.backup.to_string(),
            reader.repository,
            dir.map_or_else(|| "-".into(), |dir| raw::text(&dir)),
            size(reader.record_bytes),
            size(reader.read_bytes),
            match (reader.outage_s, reader.hydrate) {
                (Some(seconds), _) => format!("no answer for {seconds} s"),
                (None, true) => "brings the rest".into(),
                (None, false) => "reads what is read".into(),
            },
        ]);
    }
    table.print(args.output.script);
    Ok(())
}
