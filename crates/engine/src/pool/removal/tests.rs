use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::pool::testing::of_groups;

/// The other group has no chunk to give out. Until that is known the log, which has its lock, must not look for one there:
/// a pool whose log finds none has failed.
#[test]
fn a_removal_that_is_refused_does_not_stop_the_log() {
    let pool = of_groups(2);
    while pool.chunks.allocate_on(1).is_ok() {}
    let chunks = pool.chunks.total();
    let mut log = pool.log.lock();
    std::thread::scope(|scope| {
        let (told, refused) = channel();
        let pool = &pool;
        scope.spawn(move || told.send(pool.remove_group(0)));
        assert!(refused.recv_timeout(Duration::from_millis(50)).is_err(), "it did not wait for the log");
        assert_eq!(pool.chunks.total(), chunks);
        log.writer.roll().unwrap();
        drop(log);
        assert!(matches!(refused.recv().unwrap(), Err(Error::NoSpace(_))));
    });
    assert_eq!(pool.chunks.total(), chunks);
}
