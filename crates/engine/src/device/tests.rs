mod buffer;
mod file;
mod sim;
