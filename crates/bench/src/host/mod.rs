//! Sets up things of the machine, and takes them down again: processes, loop devices, throttles, cgroups.

pub(crate) mod cleanup;
pub(crate) mod compilers;
pub(crate) mod disk;
pub(crate) mod exec;
pub(crate) mod memory;
pub(crate) mod throttle;
pub(crate) mod user;
