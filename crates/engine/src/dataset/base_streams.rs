//! Writers that go through an object's pages in order, and write a part of each page first, as databases write logs that
//! begin anew. The old content of a page is read for that. It is read for several pages at once, since records of pages that
//! were written in order lie beside each other: one request instead of one for each page.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Largest number of bytes of pages that are read at once.
const AHEAD_BYTES_MAX: u64 = 128 << 10;
/// Largest number of writers that a dataset remembers.
const STREAMS_MAX: usize = 32;

/// Writers of a dataset, of which each goes through the pages of an object.
#[derive(Debug, Default)]
pub(super) struct BaseStreams(Mutex<VecDeque<BaseStream>>);

#[derive(Debug, Clone, Copy)]
struct BaseStream {
    object: u64,
    /// The page after those that were read.
    next: u64,
    /// Number of pages that were read at once.
    pages: u64,
}

impl BaseStreams {
    /// Returns the number of pages from `page` on whose content is to be read, now that a part of `page` is to be written:
    /// twice as many as the last time if the pages before were read for the same reason, otherwise one.
    pub(super) fn pages_to_read(&self, object: u64, page: u64, page_bytes: u32) -> u64 {
        let most = (AHEAD_BYTES_MAX / u64::from(page_bytes)).max(1);
        let mut streams = self.0.lock();
        let known = streams.iter().position(|stream| stream.object == object);
        let pages = match known.and_then(|at| streams.remove(at)) {
            // The content of this page was read already, unless it has been dropped since.
            Some(stream) if page < stream.next && page + stream.pages >= stream.next => {
                streams.push_back(stream);
                return 1;
            }
            Some(stream) if page == stream.next => (2 * stream.pages).min(most),
            _ => 1,
        };
        if streams.len() >= STREAMS_MAX {
            streams.pop_front();
        }
        streams.push_back(BaseStream { object, next: page.saturating_add(pages), pages });
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_in_order_has_more_and_more_read_up_to_a_bound() {
        let streams = BaseStreams::default();
        let mut read = Vec::new();
        let mut page = 100;
        while page < 140 {
            let pages = streams.pages_to_read(7, page, 16384);
            // The rest of what was read, some of it twice.
            for later in (page..page + pages).chain(page..page + pages) {
                assert_eq!(streams.pages_to_read(7, later, 16384), 1);
            }
            read.push(pages);
            page += pages;
        }
        assert_eq!(read, [1, 2, 4, 8, 8, 8, 8, 8]);
        assert_eq!(streams.pages_to_read(7, 0, 16384), 1, "the log begins anew");
    }

    #[test]
    fn pages_anywhere_are_read_alone() {
        let streams = BaseStreams::default();
        assert!([5, 90, 7, 3, 2, 1, 50].iter().all(|page| streams.pages_to_read(7, *page, 4096) == 1));
        assert!((0..9).all(|page| streams.pages_to_read(8, page, 1 << 20) == 1), "a large page is enough");
        assert_eq!(streams.pages_to_read(9, u64::MAX, 4096), 1);
    }

    #[test]
    fn writers_do_not_disturb_each_other_and_few_are_remembered() {
        let streams = BaseStreams::default();
        for page in 0..2 {
            for object in 0..STREAMS_MAX as u64 {
                assert_eq!(streams.pages_to_read(object, page, 16384), 1 + page);
            }
        }
        (1000..2000).for_each(|object| assert_eq!(streams.pages_to_read(object, 0, 16384), 1));
        assert_eq!(streams.0.lock().len(), STREAMS_MAX);
        assert_eq!(streams.pages_to_read(3, 3, 16384), 1, "forgotten");
    }
}
