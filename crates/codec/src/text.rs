//! Compresses with zstd: columns of text with a trained dictionary, stale bytes with the live page as dictionary.
//!
//! Frames are kept without their header, which follows from the length of their contents.

use std::fmt;

use zstd::zstd_safe::{self, CCtx, CDict, DCtx, DDict};

use crate::Corrupt;
use crate::frame::header;
use crate::limits::DICTIONARY;

/// Bytes of text above which a dictionary is trained.
const MIN_TRAINING: usize = 16 << 10;
/// Length of the pieces that longer texts are cut into, in bytes.
const PIECE: usize = 512;
/// Shortest text that is compressed, in bytes; shorter ones are kept as they are.
const MIN_TEXT: usize = 24;
/// Texts are shorter than this, in bytes, so that their size has two bytes.
pub(crate) const MAX_TEXT: usize = 65_536;

/// A dictionary, ready for both directions, or none.
pub(crate) struct Dictionary {
    bytes: Box<[u8]>,
    level: i32,
    /// `None` if `bytes` is empty: zstd takes most of a MiB even for an empty dictionary.
    prepared: Option<(CDict<'static>, DDict<'static>)>,
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dictionary").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Dictionary {
    /// Makes a dictionary of `bytes`, which may be any bytes, or none.
    pub(crate) fn new(bytes: &[u8], level: i32) -> Result<Self, Corrupt> {
        const FAILED: Corrupt = Corrupt("a dictionary");
        let prepared = if bytes.is_empty() {
            None
        } else {
            let encode = CDict::try_create(bytes, level).ok_or(FAILED)?;
            Some((encode, DDict::try_create(bytes).ok_or(FAILED)?))
        };
        Ok(Self { bytes: bytes.into(), level, prepared })
    }

    /// Trains a dictionary of up to `max_bytes` for `texts` of pages, if they are enough to train one; otherwise returns an
    /// empty one.
    pub(crate) fn train(texts: &[Vec<u8>], level: i32, max_bytes: usize) -> Result<Self, Corrupt> {
        let total: usize = texts.iter().map(Vec::len).sum();
        let mut best = vec![];
        if total > MIN_TRAINING {
            let samples: Vec<u8> = texts.concat();
            let sizes: Vec<usize> = texts.iter().map(Vec::len).collect();
            let mut dictionary = vec![0; max_bytes.min(total / 4)];
            if let Ok(len) = zstd_safe::train_from_buffer(&mut dictionary[..], &samples, &sizes) {
                dictionary.truncate(len);
                // The dictionary gets the id 0, so that frames name no dictionary.
                if let Some(id) = dictionary.get_mut(4..8) {
                    id.fill(0);
                }
                best = dictionary;
            }
        }
        Self::new(&best, level)
    }

    /// As [`Dictionary::train`], from short pieces of `texts`. Where each text is a mixture, as a log's page is, whole
    /// texts may give a dictionary of a fifth of the length, which gains half as much.
    pub(crate) fn train_from_pieces(texts: &[Vec<u8>], level: i32) -> Result<Self, Corrupt> {
        let pieces: Vec<Vec<u8>> =
            texts.iter().flat_map(|text| text.chunks(PIECE).map(<[u8]>::to_vec)).collect();
        Self::train(&pieces, level, DICTIONARY)
    }

    /// Returns the bytes of memory that it takes, zstd's tables included.
    pub(crate) fn memory_bytes(&self) -> usize {
        let prepared = self.prepared.as_ref().map_or(0, |(encode, decode)| encode.sizeof() + decode.sizeof());
        self.bytes.len() + prepared
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Contexts of zstd, and a buffer for a frame.
pub(crate) struct Contexts {
    encode: CCtx<'static>,
    decode: DCtx<'static>,
    frame: Vec<u8>,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contexts").finish_non_exhaustive()
    }
}

impl Default for Contexts {
    fn default() -> Self {
        Self { encode: CCtx::create(), decode: DCtx::create(), frame: vec![] }
    }
}

impl Contexts {
    /// Appends the frame of `text` if that is shorter than `text`, otherwise `text` itself. Returns whether it was the
    /// frame.
    pub(crate) fn compress(&mut self, text: &[u8], dictionary: &Dictionary, out: &mut Vec<u8>) -> bool {
        self.append(text, out, |context, frame| match &dictionary.prepared {
            Some((encode, _)) => context.compress_using_cdict(frame, text, encode),
            None => context.compress(frame, text, dictionary.level),
        })
    }

    /// As [`Contexts::compress`], with the bytes of `prefix` as dictionary.
    pub(crate) fn compress_after(
        &mut self,
        text: &[u8],
        prefix: &[u8],
        level: i32,
        out: &mut Vec<u8>,
    ) -> bool {
        self.append(text, out, |context, frame| context.compress_using_dict(frame, text, prefix, level))
    }

    fn append(
        &mut self,
        text: &[u8],
        out: &mut Vec<u8>,
        compress: impl FnOnce(&mut CCtx<'static>, &mut [u8]) -> zstd_safe::SafeResult,
    ) -> bool {
        if text.len() >= MIN_TEXT && text.len() < MAX_TEXT {
            self.frame.resize(zstd_safe::compress_bound(MAX_TEXT), 0);
            if let Ok(len) = compress(&mut self.encode, &mut self.frame)
                && let Some(body) = self.frame[..len].strip_prefix(header(text.len()).as_ref())
                && body.len() < text.len()
            {
                out.extend_from_slice(body);
                return true;
            }
        }
        out.extend_from_slice(text);
        false
    }

    /// Fills `text` from a frame that [`Contexts::compress`] made.
    pub(crate) fn decompress(
        &mut self,
        body: &[u8],
        dictionary: &Dictionary,
        text: &mut [u8],
    ) -> Result<(), Corrupt> {
        self.restore(body, text.len())?;
        let done = match &dictionary.prepared {
            Some((_, decode)) => self.decode.decompress_using_ddict(text, &self.frame, decode),
            None => self.decode.decompress(text, &self.frame),
        };
        if done == Ok(text.len()) { Ok(()) } else { Err(Corrupt("a text's frame")) }
    }

    /// Fills `text` from a frame that [`Contexts::compress_after`] made.
    pub(crate) fn decompress_after(
        &mut self,
        body: &[u8],
        prefix: &[u8],
        text: &mut [u8],
    ) -> Result<(), Corrupt> {
        self.restore(body, text.len())?;
        let done = self.decode.decompress_using_dict(text, &self.frame, prefix);
        if done == Ok(text.len()) { Ok(()) } else { Err(Corrupt("a frame of stale bytes")) }
    }

    fn restore(&mut self, body: &[u8], len: usize) -> Result<(), Corrupt> {
        if len >= MAX_TEXT || body.len() >= len {
            return Err(Corrupt("a frame is longer than what it holds"));
        }
        self.frame.clear();
        self.frame.extend_from_slice(header(len).as_ref());
        self.frame.extend_from_slice(body);
        Ok(())
    }
}

/// Estimates the bits that `texts` take, one text per page, with a dictionary of the relation: every second text is
/// coded with the others, up to `max_bytes` of them, as dictionary.
pub(crate) fn estimate_bits(texts: &[Vec<u8>], max_bytes: usize, level: i32) -> f64 {
    let total: usize = texts.iter().map(Vec::len).sum();
    if total == 0 {
        return 0.0;
    }
    let mut dictionary = vec![];
    for text in texts.iter().step_by(2).take_while({
        let mut sum = 0;
        move |text| {
            sum += text.len();
            sum <= max_bytes
        }
    }) {
        dictionary.extend_from_slice(text);
    }
    let Ok(dictionary) = Dictionary::new(&dictionary, level) else { return f64::INFINITY };
    let mut contexts = Contexts::default();
    let (mut plain, mut coded, mut out) = (0, 0, vec![]);
    for text in texts.iter().skip(1).step_by(2).take(32) {
        out.clear();
        contexts.compress(text, &dictionary, &mut out);
        plain += text.len();
        coded += out.len() + 1;
    }
    if plain == 0 { total as f64 * 8.0 } else { total as f64 * 8.0 * coded as f64 / plain as f64 }
}
