//! Defines the codecs, and codes by those that need nothing but the record itself.
//!
//! For a page of 8 KiB, setting up a codec's context costs more than the coding, so each thread keeps its contexts.

use std::cell::RefCell;
use std::fmt;

use libdeflater::{CompressionLvl, Compressor, Decompressor};
use pagefold_codec::{Format, registry};
use zstd::zstd_safe::{self, CCtx, CParameter, DCtx, DParameter, FrameFormat};

/// Codecs of a record's payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Not compressed.
    Raw,
    /// LZ4 block.
    Lz4,
    /// Zstandard frame without magic number.
    Zstd,
    /// Raw DEFLATE stream.
    Deflate,
    /// A page format that the registry knows: by a model, or alone.
    Page(Format),
    /// Runs of bytes that differ from the page before.
    DeltaRuns,
    /// Zstandard frame with the page before as its prefix.
    DeltaZstd,
    /// LZ4 block of the runs of bytes that differ from the page before.
    DeltaLz4,
    /// Words that differ from the page before, as floating-point numbers.
    DeltaDoubles,
}

/// The reason why a codec gave nothing.
pub(super) type Refusal = &'static str;

const NEEDS_MORE: Refusal = "it needs more than the record";

thread_local! {
    static ZSTD_ENCODER: RefCell<Option<ZstdEncoder>> = const { RefCell::new(None) };
    static ZSTD_DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    static DEFLATE_ENCODER: RefCell<Option<(u8, Compressor)>> = const { RefCell::new(None) };
    static DEFLATE_DECODER: RefCell<Decompressor> = RefCell::new(Decompressor::new());
}

impl Codec {
    /// Returns the codec of a stored id; `None` if the id is not known.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        match id {
            1 => Some(Self::Raw),
            2 => Some(Self::Lz4),
            3 => Some(Self::Zstd),
            4 => Some(Self::Deflate),
            128 => Some(Self::DeltaRuns),
            129 => Some(Self::DeltaZstd),
            130 => Some(Self::DeltaLz4),
            131 => Some(Self::DeltaDoubles),
            _ => registry().by_codec(id).map(Self::Page),
        }
    }

    /// Returns the stored id.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            Self::Raw => 1,
            Self::Lz4 => 2,
            Self::Zstd => 3,
            Self::Deflate => 4,
            // 0 is never valid: a format without a codec has no records.
            Self::Page(format) => format.codec().unwrap_or(0),
            Self::DeltaRuns => 128,
            Self::DeltaZstd => 129,
            Self::DeltaLz4 => 130,
            Self::DeltaDoubles => 131,
        }
    }

    /// Returns true if its records name a model. [`Codec::compress`] and [`Codec::decompress`] refuse such codecs.
    pub(super) fn has_model(self) -> bool {
        matches!(self, Self::Page(format) if format.has_model())
    }

    /// Returns true if its records are deltas, which name their bases. [`Codec::compress`] and [`Codec::decompress`]
    /// refuse such codecs.
    pub(super) const fn has_bases(self) -> bool {
        matches!(self, Self::DeltaRuns | Self::DeltaZstd | Self::DeltaLz4 | Self::DeltaDoubles)
    }

    /// Returns the most bytes that [`Codec::compress`] makes of `len_bytes`.
    pub(super) fn bound(self, len_bytes: usize) -> usize {
        match self {
            Self::Raw
            | Self::Page(_)
            | Self::DeltaRuns
            | Self::DeltaZstd
            | Self::DeltaLz4
            | Self::DeltaDoubles => len_bytes,
            // LZ4_COMPRESSBOUND.
            Self::Lz4 => len_bytes + len_bytes / 255 + 16,
            Self::Zstd => zstd_safe::compress_bound(len_bytes),
            // libdeflate's bound: five bytes per stored block of at least 5,000 bytes, and nine in all.
            Self::Deflate => len_bytes + 5 * (len_bytes / 5000 + 1) + 9,
        }
    }

    /// Compresses `src` into `dst`, which has room for [`Codec::bound`] bytes. Returns the length.
    pub(super) fn compress(self, level: u8, src: &[u8], dst: &mut [u8]) -> Result<usize, Refusal> {
        match self {
            Self::Raw => {
                dst.get_mut(..src.len()).ok_or("no room")?.copy_from_slice(src);
                Ok(src.len())
            }
            Self::Lz4 => {
                lz4::block::compress_to_buffer(src, None, false, dst).map_err(|_| "lz4 found no room")
            }
            Self::Zstd => ZSTD_ENCODER.with_borrow_mut(|slot| {
                let encoder = match slot {
                    Some(encoder) => encoder,
                    None => slot.insert(ZstdEncoder::new()?),
                };
                encoder.compress(level, src, dst)
            }),
            Self::Page(format) if format.has_model() => Err(NEEDS_MORE),
            Self::Page(format) => {
                let mut coded = Vec::new();
                if !format.encode_alone(src, &mut coded) {
                    return Err("numbers did not come back");
                }
                dst.get_mut(..coded.len()).ok_or("no room")?.copy_from_slice(&coded);
                Ok(coded.len())
            }
            Self::DeltaRuns | Self::DeltaZstd | Self::DeltaLz4 | Self::DeltaDoubles => Err(NEEDS_MORE),
            Self::Deflate => DEFLATE_ENCODER.with_borrow_mut(|slot| {
                let compressor = match slot {
                    Some((l, compressor)) if *l == level => compressor,
                    _ => {
                        let lvl =
                            CompressionLvl::new(i32::from(level)).map_err(|_| "no such deflate level")?;
                        &mut slot.insert((level, Compressor::new(lvl))).1
                    }
                };
                compressor.deflate_compress(src, dst).map_err(|_| "deflate found no room")
            }),
        }
    }

    /// Decodes `payload` into `out`, and returns the number of bytes that it gave. Whatever `payload` holds, nothing is
    /// written outside `out`, and memory use does not depend on it.
    pub(super) fn decompress(self, payload: &[u8], out: &mut [u8]) -> Result<usize, Refusal> {
        match self {
            Self::Raw => {
                out.get_mut(..payload.len()).ok_or("more bytes than it says")?.copy_from_slice(payload);
                Ok(payload.len())
            }
            Self::Lz4 => {
                let len_bytes = i32::try_from(out.len()).map_err(|_| "longer than LZ4 decodes")?;
                lz4::block::decompress_to_buffer(payload, Some(len_bytes), out)
                    .map_err(|_| "not an LZ4 block of its length")
            }
            Self::Zstd => ZSTD_DECODER.with_borrow_mut(|slot| {
                let decoder = match slot {
                    Some(decoder) => decoder,
                    None => slot.insert(zstd_decoder()?),
                };
                decoder.decompress(out, payload).map_err(zstd_safe::get_error_name)
            }),
            Self::Page(format) if format.has_model() => Err(NEEDS_MORE),
            Self::Page(format) => {
                let decoded = format.decode_alone(payload, out);
                decoded.map(|()| out.len()).map_err(|_| "not numbers of its length")
            }
            Self::DeltaRuns | Self::DeltaZstd | Self::DeltaLz4 | Self::DeltaDoubles => Err(NEEDS_MORE),
            Self::Deflate => DEFLATE_DECODER.with_borrow_mut(|decoder| {
                decoder.deflate_decompress(payload, out).map_err(|_| "not a DEFLATE stream of its length")
            }),
        }
    }
}

/// Writes the name, as messages have it; in lower case, reports have it.
impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw => f.write_str("Raw"),
            Self::Lz4 => f.write_str("Lz4"),
            Self::Zstd => f.write_str("Zstd"),
            Self::Deflate => f.write_str("Deflate"),
            Self::Page(format) => format.fmt(f),
            Self::DeltaRuns => f.write_str("DeltaRuns"),
            Self::DeltaZstd => f.write_str("DeltaZstd"),
            Self::DeltaLz4 => f.write_str("DeltaLz4"),
            Self::DeltaDoubles => f.write_str("DeltaDoubles"),
        }
    }
}

struct ZstdEncoder {
    context: CCtx<'static>,
    level: Option<u8>,
}

impl ZstdEncoder {
    fn new() -> Result<Self, Refusal> {
        let mut context = CCtx::try_create().ok_or("no memory for a zstd context")?;
        // The record has its own length and checksum, and its codec id says what this is. 2 bytes of the frame's header
        // remain.
        for parameter in [
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            context.set_parameter(parameter).map_err(zstd_safe::get_error_name)?;
        }
        Ok(Self { context, level: None })
    }

    fn compress(&mut self, level: u8, src: &[u8], dst: &mut [u8]) -> Result<usize, Refusal> {
        if self.level != Some(level) {
            let parameter = CParameter::CompressionLevel(i32::from(level));
            self.context.set_parameter(parameter).map_err(zstd_safe::get_error_name)?;
            self.level = Some(level);
        }
        self.context.compress2(dst, src).map_err(zstd_safe::get_error_name)
    }
}

fn zstd_decoder() -> Result<DCtx<'static>, Refusal> {
    let mut context = DCtx::try_create().ok_or("no memory for a zstd context")?;
    let format = DParameter::Format(FrameFormat::Magicless);
    context.set_parameter(format).map_err(zstd_safe::get_error_name)?;
    Ok(context)
}
