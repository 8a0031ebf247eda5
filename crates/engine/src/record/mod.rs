//! Records: how a page is stored.
