//! Capabilities: the parts that root's power comes in.

use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// The kernel's sets are 64 bits wide.
const NUMBERS: u32 = u64::BITS;

/// Gives up all capabilities of this thread but `kept`, for good: neither it nor a program that it runs gets one back.
pub(super) fn keep(kept: CapabilitySet) -> io::Result<()> {
    let now = capabilities(None)?;
    // Only who may shrinks the bounding set. Others have nothing that a program started by them could get back, but for root in
    // a container; there the filter of system calls sees to it.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        bound(kept)?;
    }
    clear_ambient_capability_set()?;
    let kept = kept & now.permitted;
    let inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?)
}

/// What programs started from here on can have at most.
fn bound(kept: CapabilitySet) -> io::Result<()> {
    for number in 0..NUMBERS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // The kernel has no more.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// What this thread has, by names as in capabilities(7).
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
