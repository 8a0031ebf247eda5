//! How a device is opened.

/// Modes of opening a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading alone, beside other readers; refused while a writer has the device open.
    ReadOnly,
    /// Reading and writing, by one opener at a time.
    ReadWrite,
    /// Reading alone, whoever else writes: for reading labels, never for data.
    Unlocked,
}
