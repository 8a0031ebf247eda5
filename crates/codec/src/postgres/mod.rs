//! Codes pages of PostgreSQL, layout version 4: versions 8.3 to 18.

pub(crate) mod btree;
pub(crate) mod checksum;
mod files;
pub(crate) mod heap;
pub(crate) mod page;
pub(crate) mod uncoded;

pub(crate) use files::FILES;
