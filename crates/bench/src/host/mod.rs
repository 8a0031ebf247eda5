//! What the bench borrows from the machine and gives back: processes, loop devices, throttles, cgroups.

pub(crate) mod cleanup;
pub(crate) mod disk;
pub(crate) mod exec;
pub(crate) mod memory;
pub(crate) mod throttle;
