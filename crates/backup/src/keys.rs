//! Seals: each block, commit and wrapped key is bound to its kind and its place, and encrypted if the repository is.
//!
//! XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha) with random nonces of 192 bits; keys by Argon2id (RFC 9106). A
//! repository without encryption has a checksum of 128 bits (XXH3) in place of the tag: it detects damage, not an
//! enemy.

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{Aead, AeadInOut, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};

/// Bytes of a nonce, which precedes an encrypted seal.
const NONCE_BYTES: usize = 24;
/// Bytes of a tag or checksum, which ends a seal.
const TAG_BYTES: usize = 16;
/// Memory of Argon2id in KiB: RFC 9106 (section 4) recommends it where memory is constrained.
const ARGON_KIB: u32 = 64 << 10;
const ARGON_PASSES: u32 = 3;
/// Largest memory in KiB that a repository can ask for.
const ARGON_KIB_MAX: u32 = 1 << 20;
const ARGON_PASSES_MAX: u32 = 64;

/// A passphrase, or the contents of a key file.
pub struct Secret(Vec<u8>);

impl Secret {
    /// Makes a secret of its bytes.
    ///
    /// # Errors
    /// [`Error::Key`] if there are none.
    pub fn new(bytes: Vec<u8>) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Error::Key("the passphrase or key is empty".into()));
        }
        Ok(Self(bytes))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Returns random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()).map_err(|errno| {
            Error::Local { doing: "cannot get random bytes".into(), source: errno.into() }
        })?;
    }
    Ok(bytes)
}

/// Parameters by which a key is made of a [`Secret`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Derivation {
    pub(crate) kib: u32,
    pub(crate) passes: u32,
    pub(crate) salt: [u8; 16],
}

impl Derivation {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { kib: ARGON_KIB, passes: ARGON_PASSES, salt: random()? })
    }

    /// Returns the sealer by which the repository's own key is sealed.
    pub(crate) fn derive(&self, secret: &Secret) -> Result<Sealer> {
        if self.kib > ARGON_KIB_MAX || self.passes > ARGON_PASSES_MAX {
            return Err(Error::Unsupported(format!(
                "the repository's key asks for {} KiB of memory and {} passes, and at most {ARGON_KIB_MAX} and {ARGON_PASSES_MAX} are taken",
                self.kib, self.passes
            )));
        }
        let bad = |error: argon2::Error| Error::Unsupported(format!("the repository's key: {error}"));
        let params = Params::new(self.kib, self.passes, 1, Some(32)).map_err(bad)?;
        let mut key = [0; 32];
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(&secret.0, &self.salt, &mut key)
            .map_err(bad)?;
        Ok(Sealer::encrypting(&key))
    }
}

/// Seals and opens.
#[derive(Clone)]
pub(crate) struct Sealer(Option<Box<XChaCha20Poly1305>>);

impl Sealer {
    pub(crate) fn plain() -> Self {
        Self(None)
    }

    pub(crate) fn encrypting(key: &[u8; 32]) -> Self {
        Self(Some(Box::new(XChaCha20Poly1305::new(key.into()))))
    }

    pub(crate) fn is_encrypting(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the numbers of bytes that a seal has before and behind what it seals.
    pub(crate) fn around(&self) -> (usize, usize) {
        (if self.is_encrypting() { NONCE_BYTES } else { 0 }, TAG_BYTES)
    }

    /// Appends the seal of `plain`, which is bound to `name`.
    pub(crate) fn seal(&self, name: &[u8], plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let ((before, behind), begin) = (self.around(), out.len());
        out.resize(begin + before, 0);
        out.extend_from_slice(plain);
        out.resize(out.len() + behind, 0);
        self.seal_in_place(name, out.get_mut(begin..).unwrap_or_default())
    }

    /// Seals what lies in `place`, which has [`Self::around`] bytes of room before and behind it.
    pub(crate) fn seal_in_place(&self, name: &[u8], place: &mut [u8]) -> Result<()> {
        let (before, _) = self.around();
        let bad =
            || Error::Invalid("a block is too long to be encrypted, or has no room for its seal".into());
        let (nonce, rest) = place.split_at_mut_checked(before).ok_or_else(bad)?;
        let (plain, tag) = rest.split_last_chunk_mut::<TAG_BYTES>().ok_or_else(bad)?;
        match &self.0 {
            None => *tag = checksum(name, plain),
            Some(cipher) => {
                let drawn = random::<NONCE_BYTES>()?;
                nonce.copy_from_slice(&drawn);
                let made = cipher.encrypt_inout_detached(&XNonce::from(drawn), name, plain.into());
                *tag = made.map_err(|_| bad())?.into();
            }
        }
        Ok(())
    }

    /// Opens bytes that were sealed under this name; `None` if they were not.
    pub(crate) fn open(&self, name: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        match &self.0 {
            None => {
                let (plain, sum) = sealed.split_last_chunk::<TAG_BYTES>()?;
                (checksum(name, plain) == *sum).then(|| plain.to_vec())
            }
            Some(cipher) => {
                let (nonce, rest) = sealed.split_first_chunk::<NONCE_BYTES>()?;
                cipher.decrypt(&XNonce::from(*nonce), Payload { msg: rest, aad: name }).ok()
            }
        }
    }
}

fn checksum(name: &[u8], plain: &[u8]) -> [u8; TAG_BYTES] {
    let mut hasher = Xxh3::new();
    hasher.update(name);
    hasher.update(plain);
    hasher.digest128().to_le_bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn seals_hold_for_their_name_and_key_alone() {
        for sealer in [Sealer::plain(), Sealer::encrypting(&[7; 32])] {
            let mut sealed = Vec::new();
            sealer.seal(b"name", b"something", &mut sealed).unwrap();
            assert_eq!(sealed.len(), 9 + sealer.around().0 + sealer.around().1);
            assert_eq!(sealer.open(b"name", &sealed).unwrap(), b"something");
            assert!(sealer.open(b"other", &sealed).is_none());
            for at in 0..sealed.len() {
                let mut damaged = sealed.clone();
                damaged[at] ^= 1;
                assert!(sealer.open(b"name", &damaged).is_none());
                assert!(sealer.open(b"name", &sealed[..at]).is_none());
            }
        }
        let mut sealed = Vec::new();
        Sealer::encrypting(&[7; 32]).seal(b"name", b"something", &mut sealed).unwrap();
        assert!(Sealer::encrypting(&[8; 32]).open(b"name", &sealed).is_none());
    }
}
