//! A repository on another host: a client that is a store of objects, the protocol, and the side that serves.
//!
//! - R1: the serving side refuses a name that is no plain name of an object ([`frame::is_name`]), or leads through a
//!   link. So nothing outside of the directory is reached, whatever a client sends.
//! - R2: both sides hold a bounded number of bytes for the other: a length is checked before memory is taken, objects
//!   that are written at once are counted, and an object is read in parts.
//! - R3: the serving side answers a write when it would survive a crash of the host.
//! - R4: a request whose answer was lost is sent again over a new connection. Each may be done twice: a write of a name
//!   that is nobody else's, a create (its maker reads it back), a read, a list, a delete.

mod client;
pub(crate) mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod link;
mod serve;
mod ssh;
#[cfg(test)]
mod tests;

pub(crate) use client::Remote;
pub use serve::{ServeOptions, serve};
pub use ssh::Host;
