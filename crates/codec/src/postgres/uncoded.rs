//! Recognises PostgreSQL's pages that have no codec of their own: indexes other than B-trees, maps, anything else.
//!
//! Marks are those of `hash.h`, `gist.h`, `spgist_private.h`, `brin_page.h`, `ginblock.h`, `sequence.c`, `fsm_internals.h`
//! and `visibilitymap.c`: all but the maps have them in the special space, at a page's end.

use super::FILES;
use super::checksum::check;
use super::files::begins;
use super::page::HEADER;
use crate::format::{Checksum, Facts, NoModel, PageCoding, PageFormat};
use crate::wire::{le16, le32};

/// Defines a format whose pages are those that begin as PostgreSQL's and for which `$is` returns true.
macro_rules! uncoded {
    ($(#[$doc:meta])* $format:ident, $name:literal, $is:expr) => {
        $(#[$doc])*
        pub(crate) enum $format {}

        impl PageFormat for $format {
            type Page = ();
            type Model = NoModel;

            const FACTS: &'static Facts = &Facts {
                name: $name,
                coding: PageCoding::Generic,
                file: &FILES,
                title: None,
                is_weak: false,
            };

            fn recognise((): &mut (), page: &[u8]) -> bool {
                let is: fn(&[u8]) -> bool = $is;
                begins(page) && is(page)
            }

            fn check((): &mut (), page: &[u8], number: Option<u32>) -> Checksum {
                check(page, number)
            }
        }
    };
}

uncoded!(
    /// Hash indexes.
    PostgresHash,
    "postgres-hash",
    |page| mark(page, 16) == Some(0xFF80)
);
uncoded!(
    /// GiST indexes.
    PostgresGist,
    "postgres-gist",
    |page| mark(page, 16) == Some(0xFF81)
);
uncoded!(
    /// SP-GiST indexes.
    PostgresSpgist,
    "postgres-spgist",
    |page| mark(page, 8) == Some(0xFF82)
);
uncoded!(
    /// BRIN indexes.
    PostgresBrin,
    "postgres-brin",
    |page| matches!(mark(page, 8), Some(0xF091..=0xF093))
);
uncoded!(
    /// GIN indexes.
    PostgresGin,
    "postgres-gin",
    is_gin
);
uncoded!(
    /// Maps of free space.
    PostgresFreeSpace,
    "postgres-fsm",
    is_free_space
);
uncoded!(
    /// Maps of visibility, with two bits for each page of the table: PostgreSQL 9.6 and later.
    PostgresVisibility,
    "postgres-vm",
    is_visibility
);
uncoded!(
    /// Any other page that begins as PostgreSQL's pages do.
    PostgresOther,
    "postgres-other",
    |_| true
);

/// Returns the special space of a page.
fn special(page: &[u8]) -> &[u8] {
    page.get(usize::from(le16(page, 16))..).unwrap_or_default()
}

/// Returns the last two bytes of the special space, if that has `bytes`.
fn mark(page: &[u8], bytes: usize) -> Option<u16> {
    let special = special(page);
    (special.len() == bytes).then(|| le16(special, bytes - 2))
}

/// Pages of GIN indexes have eight bits of flags, and no mark. Sequences have a special space of the same length.
fn is_gin(page: &[u8]) -> bool {
    const SEQUENCE: [u8; 8] = [0x17, 0x17, 0, 0, 0, 0, 0, 0];
    mark(page, 8).is_some_and(|flags| flags <= 0xFF) && special(page) != SEQUENCE
}

/// Returns what a map's page has behind its header; `None` if it is no such page. A map has neither line pointers nor
/// a special space.
fn map(page: &[u8]) -> Option<&[u8]> {
    let [lower, upper, special] = [12, 14, 16].map(|at| usize::from(le16(page, at)));
    let bytes = page.get(HEADER..)?;
    let is_empty = bytes.iter().all(|&byte| byte == 0);
    (lower == HEADER && upper == page.len() && special == page.len() && !is_empty).then_some(bytes)
}

/// The map of free space is a place to begin with, and a binary tree of bytes in which a node is the larger one of its
/// children.
fn is_free_space(page: &[u8]) -> bool {
    const TREE_AT: usize = 4;
    let Some(bytes) = map(page) else { return false };
    let nodes = &bytes[TREE_AT..];
    let inner = page.len() / 2 - 1;
    let child = |n: usize| nodes.get(n).copied().unwrap_or_default();
    let begins_within = (le32(bytes, 0) as usize) < nodes.len() - inner;
    begins_within && child(0) > 0 && (0..inner).all(|n| nodes[n] == child(2 * n + 1).max(child(2 * n + 2)))
}

/// The map of visibility has two bits for each page of a table: all is visible, all is frozen. What is frozen is
/// visible.
fn is_visibility(page: &[u8]) -> bool {
    const VISIBLE: u8 = 0x55;
    map(page).is_some_and(|bytes| bytes.iter().all(|&byte| byte >> 1 & VISIBLE & !byte == 0))
}
