//! Gives up capabilities, the parts into which root's power is divided.

use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Number of capabilities that the kernel's sets, of 64 bits, have room for.
const NUMBERS: u32 = u64::BITS;

/// Gives up all capabilities of this thread but `kept`, for good: neither it nor a program that it runs gets one back.
pub(super) fn keep(kept: CapabilitySet) -> io::Result<()> {
    let now = capabilities(None)?;
    // Only a process with CAP_SETPCAP can shrink the bounding set. A program started by any other process could get no
    // capability back, except for root in a container; there the filter of system calls limits the program, or allows
    // none.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        bound(kept)?;
    }
    clear_ambient_capability_set()?;
    let kept = kept & now.permitted;
    let inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?)
}

/// Limits the capabilities that programs started from here on can have.
fn bound(kept: CapabilitySet) -> io::Result<()> {
    for number in 0..NUMBERS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // The kernel has no more capabilities.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Returns the capabilities of this thread, by their names in capabilities(7).
pub(super) fn held() -> io::Result<Vec<String>> {
    let held = capabilities(None)?.permitted;
    let name = |number: u32| {
        let one = CapabilitySet::from_bits_retain(1 << number);
        let mut names = one.iter_names();
        names.next().map_or_else(|| format!("CAP_{number}"), |(name, _)| format!("CAP_{name}"))
    };
    let numbers = (0..NUMBERS).filter(|number| held.bits() >> number & 1 == 1);
    Ok(numbers.map(name).collect())
}
