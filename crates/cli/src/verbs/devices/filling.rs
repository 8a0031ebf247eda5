//! Tells how far a device is that was given to a pool, for those who wait until it is whole.

use std::path::Path;

use pagefold_server::control::DeviceFigures;

/// Progress of a device that was given to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progressed {
    /// It gets what it lacks.
    Filling,
    /// It has everything, and a device that leaves waits until that is verified.
    Verifying,
    /// Nothing is left to be done.
    Done,
    /// It is not in use any more.
    Failed,
}

/// Returns the progress of the device at `path`. It may take the place of the one with the number `replaced`. Other devices of
/// the pool may have failed.
pub(super) fn of(devices: &[DeviceFigures], path: &Path, replaced: Option<u16>) -> Progressed {
    let Some(given) = devices.iter().find(|device| device.path == path) else {
        // A spare holds nothing.
        return Progressed::Done;
    };
    match given.state.as_str() {
        "FILLING" => return Progressed::Filling,
        "ONLINE" => {}
        _ => return Progressed::Failed,
    }
    let others = || devices.iter().filter(|device| device.group == given.group && device.path != path);
    // Whichever is to leave waits for another one, which may be the one that has failed.
    let waits_for_nobody = others().any(|device| device.state == "FAULTED" && !device.leaves);
    let leaves = |device: &DeviceFigures| {
        device.leaves && (Some(device.number) == replaced || replaced.is_none() && !waits_for_nobody)
    };
    if others().any(leaves) { Progressed::Verifying } else { Progressed::Done }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: u16, group: u16, state: &str, leaves: bool) -> DeviceFigures {
        let path = format!("/dev/{number}").into();
        DeviceFigures { number, group, state: state.into(), leaves, path, ..DeviceFigures::default() }
    }

    #[test]
    fn a_device_of_another_mirror_that_has_failed_does_not_concern_those_who_wait() {
        let failed = [device(0, 0, "ONLINE", false), device(1, 0, "FAULTED", false)];
        let at = |state: &str, leaves: bool, replaced: Option<u16>| {
            let own = [device(2, 1, "ONLINE", leaves), device(3, 1, state, false)];
            of(&[&failed[..], &own].concat(), Path::new("/dev/3"), replaced)
        };
        for (leaves, replaced) in [(false, None), (true, Some(2)), (true, None)] {
            assert_eq!(at("FILLING", leaves, replaced), Progressed::Filling);
            assert_eq!(at("FAULTED", leaves, replaced), Progressed::Failed);
            let whole = at("ONLINE", leaves, replaced);
            assert_eq!(whole, if leaves { Progressed::Verifying } else { Progressed::Done });
        }
    }

    #[test]
    fn a_device_of_the_same_mirror_that_has_failed_is_not_taken_for_the_new_one() {
        let mut all = vec![
            device(0, 0, "FAULTED", false),
            device(1, 0, "ONLINE", false),
            device(2, 0, "ONLINE", false),
        ];
        let new = Path::new("/dev/2");
        assert_eq!(of(&all, new, None), Progressed::Done);
        all[1].leaves = true;
        assert_eq!(of(&all, new, Some(1)), Progressed::Verifying);
        assert_eq!(of(&all, new, None), Progressed::Done, "the one that was to take its place has failed");
        all[0].leaves = true;
        assert_eq!(of(&all, new, None), Progressed::Verifying);
        assert_eq!(of(&all, Path::new("/dev/9"), None), Progressed::Done);
    }
}
