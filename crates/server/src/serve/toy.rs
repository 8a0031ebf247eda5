//! A front end without the FUSE crate: one dataset behind a Unix socket. A client sends the lines `get KEY OFFSET LEN`,
//! `put KEY OFFSET TEXT` and `sync`, and gets `ok` with the text, or `refused`.

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pagefold_engine::dataset::{Change, Dataset};
use parking_lot::{Condvar, Mutex};
use rustix::net::shutdown;
use serde_json::Map;

use super::export::{Export, ExportSource, ExportState, FrontEnd, MountRequest, StopMode};
use crate::failure::{Context, Failure, Result};

const RECORD_SIZE: u32 = 8192;

struct Toy;

impl FrontEnd for Toy {
    fn check(&self, name: &str, wanted: &MountRequest) -> Result<()> {
        if wanted.dir.exists() { Err(Failure::new(format!("{name}: the place is taken"))) } else { Ok(()) }
    }

    fn start(&self, source: &ExportSource) -> Result<Box<dyn Export>> {
        let place = source.wanted.dir.clone();
        let listener = UnixListener::bind(&place).context(|| "cannot listen".into())?;
        let socket = Arc::new(Socket {
            place,
            listener,
            dataset: Arc::clone(&source.dataset),
            read_only: AtomicBool::new(source.read_only),
            clients: Mutex::new(Some(Vec::new())),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&socket);
        thread::spawn(move || accepting.accept());
        Ok(Box::new(socket))
    }

    fn resume(&self, _: &ExportSource, _: ExportState) -> Result<Box<dyn Export>> {
        Err(Failure::new("its clients connect again instead"))
    }
}

struct Socket {
    place: PathBuf,
    listener: UnixListener,
    dataset: Arc<dyn Dataset>,
    read_only: AtomicBool,
    /// The clients' connections; `None` once it was taken away.
    clients: Mutex<Option<Vec<Arc<UnixStream>>>>,
    changed: Condvar,
}

impl Socket {
    fn accept(self: &Arc<Self>) {
        while let Ok((stream, _)) = self.listener.accept() {
            let (stream, socket) = (Arc::new(stream), Arc::clone(self));
            let Some(clients) = &mut *self.clients.lock() else { return };
            clients.push(Arc::clone(&stream));
            thread::spawn(move || socket.serve(&stream));
        }
    }

    fn serve(&self, stream: &Arc<UnixStream>) {
        for line in BufReader::new(&**stream).lines().map_while(Result::ok) {
            let answer = self.answer(&line).unwrap_or_else(|| "refused".into());
            if writeln!(&**stream, "{answer}").is_err() {
                break;
            }
        }
        if let Some(clients) = &mut *self.clients.lock() {
            clients.retain(|other| !Arc::ptr_eq(other, stream));
        }
    }

    fn answer(&self, line: &str) -> Option<String> {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["get", key, offset, len] => {
                let mut found = vec![0; len.parse().ok()?];
                let (object, offset) = (key.parse().ok()?, offset.parse().ok()?);
                self.dataset.read(object, RECORD_SIZE, offset, &mut found).ok()?;
                Some(format!("ok {}", String::from_utf8(found).ok()?))
            }
            ["put", key, offset, text] if !self.read_only.load(Ordering::Relaxed) => {
                let (object, offset) = (key.parse().ok()?, offset.parse().ok()?);
                let data = text.as_bytes();
                let write = Change::Write { object, record_size: RECORD_SIZE, offset, data };
                self.dataset.apply(&[write]).ok().map(|()| "ok".into())
            }
            ["sync"] => self.dataset.sync().ok().map(|()| "ok".into()),
            _ => None,
        }
    }
}

impl Export for Arc<Socket> {
    fn place(&self) -> &Path {
        &self.place
    }

    fn places(&self) -> Vec<PathBuf> {
        Some(self.place.clone()).filter(|place| place.exists()).into_iter().collect()
    }

    fn device(&self) -> u32 {
        7
    }

    fn transport(&self) -> &'static str {
        "unix"
    }

    fn set_read_only(&self, on: bool) {
        self.read_only.store(on, Ordering::Relaxed);
    }

    fn stop(&self, mode: StopMode) -> Result<Option<PathBuf>, String> {
        let mut clients = self.clients.lock();
        if mode == StopMode::Idle && clients.as_ref().is_some_and(|clients| !clients.is_empty()) {
            return Ok(Some(self.place.clone()));
        }
        clients.take().into_iter().flatten().for_each(|client| drop(client.shutdown(Shutdown::Both)));
        std::fs::remove_file(&self.place).map_err(|error| error.to_string())?;
        shutdown(&self.listener, rustix::net::Shutdown::Both).map_err(|error| error.to_string())?;
        self.changed.notify_all();
        Ok(None)
    }

    fn wait(&self) {
        let mut clients = self.clients.lock();
        self.changed.wait_while(&mut clients, |clients| clients.is_some());
    }

    fn hand_over(&self) -> ExportState {
        let (connection, place) = (self.listener.try_clone().unwrap().into(), self.place.clone());
        ExportState { connection: Arc::new(connection), place, device: 7, detail: Map::default() }
    }
}

mod tests;
