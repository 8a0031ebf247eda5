//! The places of a server's control connections. Clients that say nothing give theirs to others.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

/// Largest number of connections at a time.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// Largest number of connections that follow events or carry streams, which may take for ever: the others are kept for
/// requests that are answered soon.
pub(super) const LONG_MAX: usize = 48;

/// State of one connection.
struct PlaceState {
    number: u64,
    /// A second handle, by which a connection that says nothing is ended.
    connection: UnixStream,
    /// Time since which the next request is waited for; `None` while a request is being answered.
    silent_since: Option<Instant>,
    /// True once a request has come.
    has_asked: bool,
    /// True for a connection that follows events or carries a stream.
    long: bool,
}

#[derive(Default)]
struct PlaceList {
    places: Vec<PlaceState>,
    last: u64,
}

impl PlaceList {
    fn find(&mut self, number: u64) -> Option<&mut PlaceState> {
        self.places.iter_mut().find(|place| place.number == number)
    }

    /// Ends the connection that has said nothing for longest; those that never asked anything go first. Returns false
    /// if all are being answered.
    fn end_a_silent_one(&mut self) -> bool {
        let silent = self.places.iter().enumerate();
        let silent = silent.filter_map(|(at, place)| Some((place.has_asked, place.silent_since?, at)));
        let Some((_, _, at)) = silent.min() else { return false };
        let ended = self.places.swap_remove(at);
        if let Err(error) = ended.connection.shutdown(Shutdown::Both) {
            tracing::debug!(%error, "a silent control connection had ended already");
        }
        true
    }
}

/// The places of all connections of a server.
#[derive(Clone, Default)]
pub(super) struct Places(Arc<Mutex<PlaceList>>);

/// The place of one connection; free again when dropped.
pub(super) struct Place {
    list: Places,
    number: u64,
}

/// Outcome of asking whether a request may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It may.
    Now,
    /// Too many requests that take long are under way.
    TooManyLong,
    /// The connection lost its place to another one just before its request came.
    Ended,
}

impl Places {
    /// Gives a connection a place, which another connection that says nothing may lose by that. Returns `None` if
    /// all are being answered, or if the process is out of descriptors.
    pub(super) fn take(&self, connection: &UnixStream) -> Option<Place> {
        let connection = connection.try_clone().ok()?;
        let mut list = self.0.lock();
        if list.places.len() >= CONNECTIONS_MAX && !list.end_a_silent_one() {
            return None;
        }
        list.last += 1;
        let number = list.last;
        let silent_since = Some(Instant::now());
        list.places.push(PlaceState { number, connection, silent_since, has_asked: false, long: false });
        Some(Place { list: self.clone(), number })
    }
}

impl Place {
    /// Notes that a request has come; `long` if it follows events or is a stream.
    pub(super) fn asked(&self, long: bool) -> Turn {
        let mut list = self.list.0.lock();
        let others = list.places.iter().filter(|place| place.long && place.number != self.number).count();
        let Some(place) = list.find(self.number) else { return Turn::Ended };
        place.has_asked = true;
        place.long = long && others < LONG_MAX;
        if long && !place.long {
            return Turn::TooManyLong;
        }
        place.silent_since = None;
        Turn::Now
    }

    /// Notes that the request was answered.
    pub(super) fn answered(&self) {
        if let Some(place) = self.list.0.lock().find(self.number) {
            place.silent_since = Some(Instant::now());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.list.0.lock().places.retain(|place| place.number != self.number);
    }
}
