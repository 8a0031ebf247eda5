mod buffer;
mod file;
mod recorded;
mod sim;
