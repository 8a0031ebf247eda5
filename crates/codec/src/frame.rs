//! Makes the header of a zstd frame (RFC 8878, 3.1.1). Frames are stored without it where the length of their contents
//! is known.

/// Magic number; with it goes a descriptor that says: one segment, its size in one or two bytes, no checksum, no
/// dictionary id.
const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
const ONE_SEGMENT: u8 = 0x20;
const SIZE_IN_TWO: u8 = 0x40;
/// Length from which on the size has two bytes; the stored size is the length less this.
const TWO_BYTES_FROM: usize = 256;
/// Largest content of a frame with such a header, in bytes.
const MAX: usize = TWO_BYTES_FROM + u16::MAX as usize;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    bytes: [u8; 7],
    len: usize,
}

impl AsRef<[u8]> for FrameHeader {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Returns the header that zstd writes when it compresses `len` bytes in one call, without a checksum. The header is
/// empty if `len` is above 65,791: zstd writes a longer one then.
#[must_use]
pub fn header(len: usize) -> FrameHeader {
    let [a, b, c, d] = MAGIC;
    if len < TWO_BYTES_FROM {
        return FrameHeader { bytes: [a, b, c, d, ONE_SEGMENT, len as u8, 0], len: 6 };
    }
    if len > MAX {
        return FrameHeader { bytes: [0; 7], len: 0 };
    }
    let [low, high] = ((len - TWO_BYTES_FROM) as u16).to_le_bytes();
    FrameHeader { bytes: [a, b, c, d, ONE_SEGMENT | SIZE_IN_TWO, low, high], len: 7 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

    use super::*;

    #[test]
    fn a_header_is_the_one_that_zstd_writes() {
        let bytes: Vec<u8> = (0..MAX).map(|n| ((n * n) >> 7) as u8).collect();
        let mut context = zstd::zstd_safe::CCtx::create();
        let mut frame = vec![0; zstd::zstd_safe::compress_bound(MAX)];
        for len in [1, 24, 255, 256, 257, 8192, 65_535, 65_536, MAX] {
            for dictionary in [&[][..], b"what comes before"] {
                let made =
                    context.compress_using_dict(frame.as_mut_slice(), &bytes[..len], dictionary, 3).unwrap();
                assert!(frame[..made].starts_with(header(len).as_ref()), "{len}");
            }
        }
    }
}
