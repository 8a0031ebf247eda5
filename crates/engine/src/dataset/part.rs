//! The part of a page that a read wants: copied from a page, or decoded from its record.

use crate::record::{Models, decode};
use crate::{Addr, Error, Result};

/// Fills `out` from byte `within` of a page on.
///
/// # Errors
/// [`Error::Invalid`] if the page ends before `out` is full.
pub(super) fn copy_part(page: &[u8], within: usize, out: &mut [u8]) -> Result<()> {
    let part = page.get(within..).and_then(|rest| rest.get(..out.len()));
    let part = part.ok_or_else(|| Error::Invalid("an object was read with another recordsize".into()))?;
    out.copy_from_slice(part);
    Ok(())
}

/// Decodes the part of a page that `out` wants, from byte `within` on, and shows the whole page to `seen`.
///
/// # Errors
/// [`Error::Corrupt`], which names the record; [`Error::Busy`] if `models` may not wait for the record's model;
/// [`Error::Invalid`] of [`copy_part`].
pub(super) fn decode_part(
    page_bytes: usize,
    models: &dyn Models,
    (addr, record): (Addr, &[u8]),
    within: usize,
    out: &mut [u8],
    seen: impl FnOnce(&[u8]),
) -> Result<()> {
    if within == 0 && out.len() == page_bytes {
        decode(record, models, out).map_err(|error| of_record(addr, error))?;
        seen(out);
        return Ok(());
    }
    let mut page = vec![0; page_bytes];
    decode(record, models, &mut page).map_err(|error| of_record(addr, error))?;
    copy_part(&page, within, out)?;
    seen(&page);
    Ok(())
}

/// Adds to an error the record that could not be decoded.
fn of_record(addr: Addr, error: Error) -> Error {
    match error {
        Error::Corrupt { what, detail, .. } => {
            Error::corrupt(format!("record {addr}"), format!("{what}: {detail}"))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
