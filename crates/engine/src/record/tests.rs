mod cache;
mod compression;
mod encode;
mod recognise;
