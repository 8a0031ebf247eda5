//! The copy-on-write B+tree of a dataset.
