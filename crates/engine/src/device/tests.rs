mod buffer;
mod devices;
mod file;
mod recorded;
mod sim;
