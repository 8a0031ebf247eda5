//! B-tree pages.
