//! Requests of the kernel as owned objects: a request can move to another thread and be answered later, once.

use crate::blocking::{Blocking, Source};
use crate::coherence::{Caching, Sent};
use crate::kernel::Kernel;
use crate::operation::{self, Arguments, Operation, ParseError, Span};
use crate::protocol::{InHeader, Opcode, UNIQUE_RESEND};
use crate::stats::Stats;
use pagefold_engine::dataset::Journal;
use pagefold_engine::dataset::LateFetch;
use pagefold_engine::dataset::journal::{Asked, RequestOrigin, SlotGuard};
use pagefold_fs::Fetch;
use rustix::io::Errno;
use std::sync::Arc;
use std::{fmt, time::Instant};
use zerocopy::{Immutable, IntoBytes};

/// The transport's side of a request: where it came from, and where its reply goes.
pub(crate) trait Exchange: Send {
    /// Returns the request's arguments.
    fn arguments(&self) -> Arguments<'_>;
    /// Returns room for a reply of up to [`crate::limits::PAYLOAD_BYTES`]. It overlaps the arguments.
    fn payload(&mut self) -> &mut [u8];
    /// Keeps no more memory than a short answer takes, if there is much: the arguments are gone.
    fn park(&mut self) {}
    /// Sends the first `len` bytes of the payload, or the error, or nothing if the request wants no answer.
    fn finish(self: Box<Self>, unique: u64, reply: Outcome);
}

/// Outcomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered with this number of bytes of payload.
    Ok(usize),
    /// Failed.
    Error(Errno),
    /// The protocol wants no answer (FORGET, INTERRUPT).
    Silent,
}

/// A request of the kernel. It ends with one of the methods that consume it; if it is dropped instead, the kernel is
/// told EIO.
pub struct Request {
    header: InHeader,
    exchange: Option<Box<dyn Exchange>>,
    /// Claim of the request in the journal; held until the kernel has the answer.
    claim: Option<SlotGuard>,
    /// Mark of a request that concerns pages which the kernel caches; held as long.
    caching: Option<Caching>,
    stats: Arc<Stats>,
    received: Instant,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Opcode::from_wire(self.header.opcode).map_or("unknown", Opcode::name);
        write!(f, "{name}({}, unique {})", self.header.nodeid, self.header.unique)
    }
}

impl Request {
    pub(crate) fn new(header: InHeader, exchange: Box<dyn Exchange>, stats: Arc<Stats>) -> Self {
        Self { header, exchange: Some(exchange), claim: None, caching: None, stats, received: Instant::now() }
    }

    /// Returns the number of the inode that the request is about.
    pub fn ino(&self) -> u64 {
        self.header.nodeid
    }

    /// Returns the user of the process that asks (its file-system identity).
    pub fn uid(&self) -> u32 {
        self.header.uid
    }

    /// Returns the group of the process that asks.
    pub fn gid(&self) -> u32 {
        self.header.gid
    }

    /// Returns the kernel's number of this request.
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// Returns true if the kernel asks this again, because the process that read it before died.
    pub(crate) fn is_again(&self) -> bool {
        self.header.unique & UNIQUE_RESEND != 0
    }

    /// Returns the request's place in the order in which the kernel sent requests.
    pub(crate) fn number(&self) -> u64 {
        self.header.unique & !UNIQUE_RESEND
    }

    /// Returns what the page cache has to know of the request.
    pub(crate) fn sent(&self) -> Sent {
        Sent { ino: self.ino(), number: self.number(), again: self.is_again() }
    }

    /// Keeps a mark until the request has been answered.
    pub(crate) fn keep(&mut self, caching: Caching) {
        self.caching = Some(caching);
    }

    /// Drops the mark.
    pub(crate) fn unmark(&mut self) {
        self.caching = None;
    }

    /// Returns true if the request is a READ.
    pub(crate) fn is_read(&self) -> bool {
        Opcode::from_wire(self.header.opcode) == Some(Opcode::Read)
    }

    /// Returns true if the request wants no answer.
    pub(crate) fn is_notice(&self) -> bool {
        matches!(
            Opcode::from_wire(self.header.opcode),
            Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt)
        )
    }

    /// Returns true if the request was claimed.
    pub(crate) fn is_claimed(&self) -> bool {
        self.claim.is_some()
    }

    /// Claims the request in the journal, so that it is not carried out twice.
    pub(crate) fn claim(&mut self, journal: &Arc<Journal>, connection: u32) {
        let unique = self.number();
        self.claim = Some(journal.take_slot(Asked { connection, unique }));
    }

    /// Returns the origin of the request's changes, for [`pagefold_engine::dataset::journal::during`].
    pub(crate) fn origin(&self) -> Option<RequestOrigin> {
        self.claim.as_ref().map(SlotGuard::origin)
    }

    /// Returns the result of the request, if an earlier process carried it out.
    pub(crate) fn done_before(&self) -> Option<u64> {
        self.claim.as_ref().and_then(SlotGuard::done)
    }

    /// Parses the request into an operation. A handler does that once, and passes the operation on with the request.
    ///
    /// # Errors
    /// [`ParseError`] if the request does not hold together; [`Request::refuse`] answers it.
    pub fn parse(&self) -> Result<Operation, ParseError> {
        let exchange = self.exchange.as_ref();
        let arguments = exchange.map_or(Arguments::NONE, |exchange| exchange.arguments());
        Operation::parse(self.header.opcode, arguments)
    }

    /// Returns bytes of the request's arguments. They are there until [`Request::payload`] is written.
    pub fn argument(&self, span: Span) -> &[u8] {
        self.exchange.as_ref().map_or(&[], |exchange| exchange.arguments().bytes(span))
    }

    /// Returns the pairs of a BATCH_FORGET: a node id, and the number of references that end.
    pub(crate) fn forgets(&self, list: Span) -> impl Iterator<Item = (u64, u64)> {
        operation::forgets(self.argument(list))
    }

    /// Returns up to `len` bytes for the reply's data. Writing there overwrites the request's arguments: the borrow
    /// checker sees to it that nobody still reads them; [`Request::argument`] must not be called afterwards.
    pub fn payload(&mut self, len: usize) -> &mut [u8] {
        let payload = self.exchange.as_mut().map_or(&mut [][..], |exchange| exchange.payload());
        let len = len.min(payload.len());
        &mut payload[..len]
    }

    /// Gives back memory that a request does not need which was carried out, and waits without a thread for a short answer.
    /// There may be any number of them. [`Request::argument`] must not be called afterwards.
    pub fn park(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.park();
        }
    }

    /// Answers with the first `len` bytes of the payload.
    pub fn payload_filled(mut self, len: usize) {
        self.end(Outcome::Ok(len));
    }

    /// Answers without data.
    pub fn ok(mut self) {
        self.end(Outcome::Ok(0));
    }

    /// Answers with `bytes`.
    pub fn bytes(mut self, bytes: &[u8]) {
        let payload = self.payload(bytes.len());
        if payload.len() < bytes.len() {
            return self.error(Errno::OVERFLOW);
        }
        payload.copy_from_slice(bytes);
        self.end(Outcome::Ok(bytes.len()));
    }

    /// Answers with one structure of the protocol.
    pub fn answer<T: IntoBytes + Immutable>(self, value: &T) {
        self.bytes(value.as_bytes());
    }

    /// Answers with two structures of the protocol, one after the other.
    pub fn answer_pair<A: IntoBytes + Immutable, B: IntoBytes + Immutable>(mut self, first: &A, second: &B) {
        let (a, b) = (first.as_bytes(), second.as_bytes());
        let payload = self.payload(a.len() + b.len());
        payload[..a.len()].copy_from_slice(a);
        payload[a.len()..].copy_from_slice(b);
        self.end(Outcome::Ok(a.len() + b.len()));
    }

    /// Answers with an error.
    pub fn error(mut self, errno: Errno) {
        self.end(Outcome::Error(errno));
    }

    /// Ends a request that wants no answer.
    pub fn silent(mut self) {
        self.end(Outcome::Silent);
    }

    /// Answers a request that does not parse: ENOSYS for an unknown code, ENAMETOOLONG for a long name, EINVAL for
    /// malformed arguments.
    pub fn refuse(self, why: ParseError) {
        match why {
            ParseError::UnknownOpcode(_) => self.error(Errno::NOSYS),
            ParseError::NameTooLong => self.error(Errno::NAMETOOLONG),
            ParseError::Malformed { .. } => {
                tracing::warn!(request = ?self, %why, "refused a request of the kernel");
                if self.is_notice() { self.silent() } else { self.error(Errno::INVAL) }
            }
        }
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(exchange) = self.exchange.take() {
            let failed = matches!(outcome, Outcome::Error(_));
            self.stats.record(self.header.opcode, self.received.elapsed(), failed);
            exchange.finish(self.header.unique, outcome);
            self.claim = None;
            self.caching = None;
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.exchange.is_some() {
            tracing::error!(request = ?self, "a request was dropped without an answer");
            self.end(Outcome::Error(Errno::IO));
        }
    }
}

/// A READ that waits for one device read, which the transport does in its own ring.
pub struct Fetching {
    pub(crate) request: Request,
    pub(crate) fetch: Fetch,
    pub(crate) offset: u64,
    pub(crate) size: u32,
}

/// Answers requests: the file system as a transport sees it.
pub trait Handler: Send + Sync + 'static {
    /// Tells what was agreed with the kernel. Called before the first request is passed to [`Handler::handle`]; `kernel`
    /// can be asked from then on.
    fn agreed(&self, _agreement: &crate::Agreement, _kernel: &Kernel) {}

    /// Tells that the connection was taken over from a process that died: `requests` are those that the kernel asks
    /// again, and no others will be asked again. They are passed to [`Handler::handle`] afterwards. Called before
    /// [`Handler::agreed`]: the kernel does not know yet what these requests have made.
    fn taken_over(&self, _requests: &mut [Request]) {}

    /// Returns where calls may have to read: those that wait for a store have threads of their own.
    fn source(&self) -> Source {
        Source::Devices
    }

    /// Answers `request`, now or later. A call that may wait for a device or for other requests goes through
    /// `blocking`; one that waits for a single device read may be returned instead, unless `blocking` is inline.
    fn handle(&self, request: Request, blocking: &Blocking) -> Option<Fetching>;

    /// Goes on with what [`Handler::handle`] returned. `filled` is true if the device read was done completely.
    fn fetched(&self, fetching: Fetching, _filled: bool, _blocking: &Blocking) {
        fetching.request.error(Errno::IO);
    }

    /// Goes on with what [`Handler::handle`] returned, although the kernel has not ended the device read: it is overdue,
    /// and another device has the same ([`Fetch::due_in`]). Returns what the transport keeps until that read has ended.
    fn overdue(&self, fetching: Fetching, _blocking: &Blocking) -> LateFetch {
        fetching.request.error(Errno::IO);
        fetching.fetch.leave_overdue()
    }
}
