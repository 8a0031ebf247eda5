mod buffer;
mod devices;
mod file;
mod recorded;
mod sim;

use std::time::{Duration, Instant};

/// Waits for something that comes, sooner or later.
#[track_caller]
pub(super) fn until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}
