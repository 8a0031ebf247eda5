//! An entry of a ring, as the exchange of a request.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use zerocopy::{FromBytes, IntoBytes};

use super::{HEADER_BYTES, RingExchange, STATE_START};
use crate::limits::{PAGE_BYTES, PAYLOAD_BYTES};
use crate::operation::Arguments;
use crate::protocol::{OutHeader, RING_HEADER_BYTES, RingEntryInOut};
use crate::request::{Exchange, Outcome};

impl RingExchange {
    /// Returns true if the kernel has given the entry no request since the last answer. For the queue's thread alone.
    pub(super) fn is_waiting(&self) -> bool {
        let header = OutHeader::read_from_prefix(self.buffer.as_slice());
        header.is_ok_and(|(header, _)| header.unique == self.answered)
    }
}

impl Exchange for RingExchange {
    fn arguments(&self) -> Arguments<'_> {
        let bytes = self.buffer.as_slice();
        Arguments {
            head: &bytes[RING_HEADER_BYTES..STATE_START],
            tail: Some(&bytes[PAGE_BYTES..PAGE_BYTES + self.payload_len]),
        }
    }

    fn payload(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut_slice()[PAGE_BYTES..]
    }

    fn finish(mut self: Box<Self>, unique: u64, reply: Outcome) {
        // Every request over a ring wants an answer; FORGET and INTERRUPT come over /dev/fuse.
        let (error, len) = match reply {
            Outcome::Ok(len) => (0, len.min(PAYLOAD_BYTES)),
            Outcome::Error(errno) => (-errno.raw_os_error(), 0),
            Outcome::Silent => (-libc::EIO, 0),
        };
        let header = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique };
        let state =
            RingEntryInOut { commit_id: self.commit_id, payload_sz: len as u32, ..RingEntryInOut::default() };
        let bytes = self.buffer.as_mut_slice();
        bytes[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        bytes[STATE_START..HEADER_BYTES].copy_from_slice(state.as_bytes());
        self.answered = unique;
        self.buffer.touch(PAGE_BYTES + len);
        let queue = Arc::clone(&self.queue);
        queue.done.lock().push(self);
        if thread::current().id() != queue.thread
            && queue.asleep.swap(false, SeqCst)
            && let Err(errno) = rustix::io::write(&queue.wake, &1u64.to_ne_bytes())
        {
            tracing::error!(%errno, "cannot wake a ring's thread");
        }
    }
}
