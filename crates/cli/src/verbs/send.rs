//! `send` and `receive`: snapshots as streams, to standard output and from standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use pagefold_engine::pool::Background;
use pagefold_server::control::{Client, Reply, Request, Sendable, Transferred};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::operations::{self, Operation};
use pagefold_server::passage::{Inlet, Outlet, Unpoured};
use pagefold_server::registry::Registry;
use pagefold_server::{engine_errors, pools, streams, units};
use serde_json::json;

use super::dataset::{dataset, snapshot_name};
use crate::args::{Receive, Send};
use crate::progress::Progress;
use crate::{datasets, target};

/// Number of bytes that are read and written at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// Time for which a thread that makes a stream may be silent before it is seen to whether the server has ended.
const SILENCE: Duration = Duration::from_millis(100);

/// Returns standard input or output as a file without a buffer.
fn unbuffered(fd: BorrowedFd<'_>) -> Result<File> {
    Ok(fd.try_clone_to_owned().context(|| "cannot use standard input or output".into())?.into())
}

/// Place that a stream is written to.
enum Destination {
    /// A file or a pipe, with memory for what is written to it.
    File(File, Vec<u8>),
    /// Another thread.
    Thread(Inlet),
}

/// The destination of a stream. It remembers what failed there, and shows the progress.
struct StreamOutput {
    to: Destination,
    failed: Option<io::Error>,
    written: u64,
    expected: u64,
    progress: Progress,
}

impl StreamOutput {
    fn new() -> Result<Self> {
        Ok(Self::to(Destination::File(unbuffered(rustix::stdio::stdout())?, vec![0; BUFFER_BYTES])))
    }

    fn to(to: Destination) -> Self {
        Self { to, failed: None, written: 0, expected: 0, progress: Progress::bytes("sending") }
    }

    /// Returns the failure of the output if it had one, else `other`, which is said of the stream.
    fn blame(&self, other: Failure) -> Failure {
        match &self.failed {
            None => other,
            Some(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Failure::new("cannot write the stream: whoever read it has ended").hint(
                    "what it said before tells why. A `pagefold receive` keeps what came: see `pagefold list -t partial` there",
                )
            }
            Some(error) => Failure::new(format!("cannot write the stream: {error}")),
        }
    }

    /// Writes what one call of `read` on `from` gives; returns the number of bytes, which is 0 at the end.
    fn pour(&mut self, from: &mut dyn Read) -> Result<usize, Unpoured> {
        let written = match &mut self.to {
            Destination::File(to, buffer) => {
                let read = from.read(buffer).map_err(Unpoured::Source)?;
                to.write_all(&buffer[..read]).map(|()| read)
            }
            Destination::Thread(to) => match to.pour(from) {
                Err(Unpoured::Output(error)) => Err(error),
                Err(source) => return Err(source),
                Ok(read) => Ok(read),
            },
        };
        self.note(written).map_err(Unpoured::Output)
    }

    /// Notes the outcome of writing.
    fn note(&mut self, written: io::Result<usize>) -> io::Result<usize> {
        match &written {
            Ok(bytes) => {
                self.written += *bytes as u64;
                self.progress.at(self.written, self.expected.max(self.written));
            }
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                self.failed = Some(io::Error::new(error.kind(), error.to_string()));
            }
            Err(_) => {}
        }
        written
    }
}

impl Write for StreamOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.to {
            Destination::File(to, _) => to.write(bytes),
            Destination::Thread(to) => to.write(bytes),
        };
        self.note(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            Destination::File(to, _) => to.flush(),
            Destination::Thread(to) => to.flush(),
        }
    }
}

/// Sends a snapshot.
pub fn send(args: &Send) -> Result<()> {
    let (pool, what) = what_to_send(args)?;
    if args.dry_run {
        return print_size(args, &pool, target::connect(&pool)?, what);
    }
    if io::stdout().is_terminal() {
        return Err(Failure::usage("a stream is nothing for a terminal").hint(
            "into a file: pagefold send ... > FILE, or to another pool: pagefold send ... | pagefold receive POOL/DATASET",
        ));
    }
    crate::ignore_sigpipe();
    let mut out = StreamOutput::new()?;
    let done = write_stream(&pool, what, &mut out);
    out.progress.finish();
    done.map_err(|failure| out.blame(failure))
}

/// Has a stream written by the pool's server, or makes it from the pool's devices.
fn write_stream(pool: &str, what: Sendable, out: &mut StreamOutput) -> Result<()> {
    match target::connect(pool)? {
        Some(mut client) => fetch(&mut client, what, out),
        None => {
            let known = Registry::open()?.find(pool)?;
            pools::look_offline(&known, |pool| {
                out.expected = streams::expected(pool, &what)?;
                streams::send(pool, &what, out, &mut |_| {}).map(drop)
            })
        }
    }
}

/// Reason why a stream was not written to its end.
pub(super) enum Unsent {
    /// The reader ended before the stream did, and knows why.
    Unread,
    /// The pool failed, or the writing did.
    Failed(Failure),
}

/// Writes a stream for another verb, which reads it in another thread.
pub(super) fn send_to(pool: &str, what: Sendable, to: Inlet) -> Result<(), Unsent> {
    let mut out = StreamOutput::to(Destination::Thread(to));
    let done = write_stream(pool, what, &mut out);
    out.progress.finish();
    done.map_err(|failure| match &out.failed {
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => Unsent::Unread,
        _ => Unsent::Failed(failure),
    })
}

/// Receives a stream that another thread writes, for another verb.
pub(super) fn receive_from(name: &Name, force: bool, from: Outlet) -> Result<Transferred> {
    let progress = Progress::flow("received");
    let mut input = Input { from: Source::Thread(from), read: 0, ended: false, len: None, progress };
    let received = take_stream(name, force, &mut input);
    input.progress.finish();
    received
}

fn take_stream(name: &Name, force: bool, input: &mut Input) -> Result<Transferred> {
    match target::connect(&name.pool)? {
        Some(mut client) => pass_on(&mut client, name, force, input),
        None => receive_offline(name, force, input),
    }
}

/// Returns the pool that has the snapshot, and what is to be sent.
fn what_to_send(args: &Send) -> Result<(String, Sendable)> {
    if let Some(token) = &args.resume {
        let made_in = streams::parse_token(token)?.to.pool.to_string();
        let pool = match &args.snapshot {
            Some(word) => target::pool_name(word)?,
            None => match Registry::open()?.all()?.into_iter().find(|known| known.guid == made_in) {
                Some(known) => known.name,
                None => {
                    return Err(Failure::usage(
                        "the pool in which the snapshot was made is not on this machine",
                    )
                    .hint("name one that has received it: pagefold send --resume TOKEN POOL"));
                }
            },
        };
        return Ok((pool, Sendable::Resume { token: token.clone() }));
    }
    let name = snapshot_name(args.snapshot.as_deref().unwrap_or_default())?;
    let from = args.from.as_deref().map(|word| since(word, &name)).transpose()?;
    if let Some(from) = &from {
        super::dataset::same_pool(from, &name)?;
        if *from == name {
            return Err(Failure::usage(format!("nothing has changed from {name} to itself")).hint(format!(
                "-i names an older snapshot, which the receiver has: pagefold list -t snapshot {}",
                from.pool
            )));
        }
    }
    Ok((name.pool, Sendable::Snapshot { path: name.path, from: from.map(|from| from.path) }))
}

/// Parses the snapshot since which changes are sent; its name without a dataset is one of the same dataset.
fn since(word: &str, of: &Name) -> Result<Name> {
    match word.strip_prefix('@').unwrap_or(word) {
        short if !short.contains(['/', '@']) => {
            Name::parse(&format!("{}@{short}", Name::new(&of.pool, of.dataset())))
        }
        _ => snapshot_name(word),
    }
}

fn print_size(args: &Send, pool: &str, client: Option<Client>, what: Sendable) -> Result<()> {
    let bytes = match client {
        Some(mut client) => match client.ask_and_wait(&Request::SendSize { what })? {
            Reply::Stream { expected_bytes } => expected_bytes,
            _ => return Err(client.misunderstood()),
        },
        None => {
            let known = Registry::open()?.find(pool)?;
            pools::look_offline(&known, |pool| streams::expected(pool, &what))?
        }
    };
    if args.output.json {
        return super::print_json(&json!({ "pool": pool, "expected_bytes": bytes }));
    }
    let exact = args.output.exact || args.output.script;
    let size = if exact { bytes.to_string() } else { units::size(bytes) };
    println!("{}{size}", if args.output.script { "size\t" } else { "would send about " });
    Ok(())
}

/// Has the pool's server make the stream, and copies it to the output.
fn fetch(client: &mut Client, what: Sendable, out: &mut StreamOutput) -> Result<()> {
    let Reply::Stream { expected_bytes } = client.ask_and_wait(&Request::Send { what })? else {
        return Err(client.misunderstood());
    };
    out.expected = expected_bytes;
    let mut pieces = client.pieces();
    loop {
        match out.pour(&mut pieces) {
            Ok(0) => break,
            Ok(_) => {}
            Err(Unpoured::Source(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(Unpoured::Source(error)) => return Err(interrupted(&client.lost(&error))),
            Err(Unpoured::Output(error)) => return Err(error).context(|| "cannot write the stream".into()),
        }
    }
    match client.last_reply()? {
        Reply::Transferred { .. } => Ok(()),
        _ => Err(client.misunderstood()),
    }
}

/// Returns the failure of a stream in whose middle the server was lost.
fn interrupted(lost: &Failure) -> Failure {
    let hint = lost.advice().unwrap_or_default().to_owned();
    Failure::new(format!("the stream is not complete: {}", lost.what())).hint(format!(
        "{hint}\n  a `pagefold receive` keeps what came, and tells how to go on: pagefold send --resume TOKEN"
    ))
}

/// Receives a stream, or drops what was received in part.
pub fn receive(args: &Receive) -> Result<()> {
    let name = dataset(&args.dataset)?;
    if name.path.is_empty() {
        return Err(Failure::usage(format!("{name} is a pool, not a dataset"))
            .hint(format!("streams are received into datasets: pagefold receive {name}/NAME")));
    }
    if args.abort {
        return datasets::perform(&name.pool, Operation::AbortReceive { path: name.path }).map(drop);
    }
    if io::stdin().is_terminal() {
        return Err(Failure::usage("a stream does not come from a terminal").hint(format!(
            "from a file: pagefold receive {name} < FILE, or from another pool: pagefold send ... | pagefold receive {name}"
        )));
    }
    crate::ignore_sigpipe();
    let mut input = Input::new()?;
    let received = take_stream(&name, args.force, &mut input);
    input.progress.finish();
    let received = match received {
        Err(_) if input.read == 0 && input.ended => {
            return Err(Failure::new(format!(
                "cannot receive into {name}: standard input is empty, there is no stream"
            ))
            .hint("where `pagefold send` was to write it, see what that said"));
        }
        received => received?,
    };
    if args.json {
        return super::print_json(&json!(received));
    }
    Ok(())
}

/// A writer of streams.
enum Source {
    /// Another process, by a pipe, or whoever wrote a file.
    File(BufReader<File>),
    /// A thread of this process.
    Thread(Outlet),
}

/// The source of a stream. It shows the progress.
struct Input {
    from: Source,
    read: u64,
    /// True if it was read to its end.
    ended: bool,
    /// Its length in bytes, if it is a file.
    len: Option<u64>,
    progress: Progress,
}

impl Input {
    fn new() -> Result<Self> {
        let file = unbuffered(rustix::stdio::stdin())?;
        let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file);
        let len = metadata.map(|metadata| metadata.len());
        let progress = if len.is_some() { Progress::bytes("receiving") } else { Progress::flow("received") };
        let from = Source::File(BufReader::with_capacity(BUFFER_BYTES, file));
        Ok(Self { from, read: 0, ended: false, len, progress })
    }

    fn came(&mut self, len: usize) {
        self.read += len as u64;
        self.progress.at(self.read, self.len.unwrap_or(0).max(self.read));
    }

    /// Waits until there is something to read, or the stream has ended, and returns true; or returns false if the
    /// server sends something, or ends, before that.
    fn wait(&mut self, client: &Client) -> Result<bool> {
        match &mut self.from {
            Source::File(file) => client.wait_for(file.get_ref().as_fd()),
            Source::Thread(outlet) => {
                while !client.has_word()? {
                    if outlet.wait(SILENCE) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let bytes = match &mut self.from {
            Source::File(file) => file.fill_buf()?,
            Source::Thread(outlet) => outlet.fill_buf()?,
        };
        self.ended |= bytes.is_empty();
        Ok(bytes)
    }

    fn consume(&mut self, len: usize) {
        match &mut self.from {
            Source::File(file) => file.consume(len),
            Source::Thread(outlet) => outlet.consume(len),
        }
        self.came(len);
    }
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // Long reads go past the buffer.
        let read = match &mut self.from {
            Source::File(file) if file.buffer().is_empty() => file.get_mut().read(out)?,
            Source::File(file) => file.read(out)?,
            Source::Thread(outlet) => outlet.read(out)?,
        };
        self.came(read);
        self.ended |= read == 0 && !out.is_empty();
        Ok(read)
    }
}

/// Gives the stream to the pool's server.
fn pass_on(client: &mut Client, name: &Name, force: bool, input: &mut Input) -> Result<Transferred> {
    let request = Request::Receive { path: name.path.clone(), force };
    let Reply::Ready {} = client.ask_and_wait(&request)? else { return Err(client.misunderstood()) };
    // A server that has ended, or wants no more of the stream, tells why in its last reply.
    while input.wait(client)? {
        let passed = match input.fill_buf() {
            Ok([]) => {
                let _ = client.piece_writer().end();
                break;
            }
            Ok(bytes) => client.piece_writer().write_all(bytes).map(|()| bytes.len()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failure::new(format!("cannot read the stream: {error}"))),
        };
        match passed {
            Ok(len) => input.consume(len),
            Err(_) => break,
        }
    }
    match client.last_reply() {
        Ok(Reply::Transferred { all }) => Ok(all),
        Ok(_) => Err(client.misunderstood()),
        Err(failure) if client.is_lost() => {
            let hint = failure.advice().unwrap_or_default().to_owned();
            Err(Failure::new(failure.what()).hint(format!(
                "{hint}\n  what came is kept; then see how to go on: pagefold get receive_resume_token {name}"
            )))
        }
        Err(failure) => Err(failure),
    }
}

/// Receives into a pool that nobody has open; the pool's background work runs meanwhile.
fn receive_offline(name: &Name, force: bool, input: &mut Input) -> Result<Transferred> {
    let known = Registry::open()?.find(&name.pool)?;
    pools::with_offline(&known, |pool| {
        let work =
            pool.run().map_err(|error| engine_errors::failed("cannot start the pool's work", &error))?;
        let received = streams::receive(pool, &name.path, force, input, &mut |_| {});
        Background::stop(work);
        // The dataset's former content, if it was replaced, is freed.
        received.and_then(|received| operations::free_all(pool).map(|()| received))
    })
}
