//! Decodes records that are no deltas.

use super::header::parse;
use super::{Codec, Models, models};
use crate::{Error, Result};

/// Does what [`decode`] does, for records that are no deltas.
pub(super) fn decode_full(record: &[u8], models: &dyn Models, out: &mut [u8]) -> Result<()> {
    let (header, payload) = parse(record).map_err(|why| Error::corrupt("record", why))?;
    let codec = match (header.codec, Codec::from_id(header.codec)) {
        (_, Some(codec)) => codec,
        (0, None) => return Err(Error::corrupt("record", "its codec id is zero")),
        (id, None) => {
            return Err(Error::Unsupported(format!(
                "a record is coded with codec {id}, which this version does not know; use the version that wrote it or a \
                 later one"
            )));
        }
    };
    let (page_bytes, logical_bytes) = (out.len(), header.logical_bytes);
    let Some((logical, zeros)) = out.split_at_mut_checked(logical_bytes) else {
        let detail = format!("it says to hold {logical_bytes} bytes of a page of {page_bytes}");
        return Err(Error::corrupt("record", detail));
    };
    if codec.has_model() {
        models::decode(codec, payload, models, logical)?;
        zeros.fill(0);
        return Ok(());
    }
    match codec.decompress(payload, logical) {
        Ok(len_bytes) if len_bytes == logical_bytes => {
            zeros.fill(0);
            Ok(())
        }
        Ok(len_bytes) => {
            let detail = format!("its {codec:?} payload holds {len_bytes} bytes, not {logical_bytes}");
            Err(Error::corrupt("record", detail))
        }
        Err(why) => Err(Error::corrupt("record", format!("its {codec:?} payload: {why}"))),
    }
}
