//! Codes pages of databases' logs.

pub(crate) mod io;
pub(crate) mod redo;
pub(crate) mod slots;
pub(crate) mod strides;
pub(crate) mod wal;

use crate::Corrupt;
use io::Io;
use slots::{AROUND, Around, Lasts, Samples};

/// Buffers for one page of a log.
#[derive(Debug)]
pub(crate) struct LogPage {
    pub(crate) around: Box<Around>,
    pub(crate) lasts: Lasts,
    /// Samples of data, which training collects.
    pub(crate) samples: Option<Samples>,
    pub(crate) wal: wal::WalBuffers,
    pub(crate) redo: RedoBuffers,
    /// The page, while it is written.
    pub(crate) page: Vec<u8>,
    /// Bytes that are prepared for zstd.
    pub(crate) chunk: Vec<u8>,
}

impl Default for LogPage {
    fn default() -> Self {
        Self {
            around: Box::new([0; AROUND]),
            lasts: Lasts::default(),
            samples: None,
            wal: wal::WalBuffers::default(),
            redo: RedoBuffers::default(),
            page: vec![],
            chunk: vec![],
        }
    }
}

/// Buffers of a block of the redo log: the last page of each of the model's tablespaces.
#[derive(Debug, Default)]
pub(crate) struct RedoBuffers {
    pages: Vec<u32>,
}

/// Codes bytes for zstd, with a stride if they have one.
fn chunk<I: Io>(io: &mut I, ready: &mut Vec<u8>, id: usize, bytes: &mut [u8]) -> Result<(), Corrupt> {
    if bytes.is_empty() {
        return Ok(());
    }
    let found = if I::WRITES { strides::find(bytes) as u8 } else { 0 };
    let units = usize::from(io.symbol(id, 0, found));
    ready.clear();
    ready.extend_from_slice(bytes);
    if I::WRITES {
        strides::apply(ready, units);
    }
    io.text(ready)?;
    if !I::WRITES {
        strides::undo(ready, units);
        bytes.copy_from_slice(ready);
    }
    Ok(())
}
