//! Makes binary logs as MariaDB 10.11 writes them.

use super::clear_in_use;
use super::scan::MAGIC;

/// A binary log that grows as a server writes it.
pub(crate) struct Server {
    /// The bytes of the file.
    pub(crate) bytes: Vec<u8>,
    checksums: bool,
    seq: u64,
}

impl Server {
    pub(crate) fn new(time_s: u32) -> Self {
        Self::with(time_s, true)
    }

    pub(crate) fn with(time_s: u32, checksums: bool) -> Self {
        let mut server = Self { bytes: MAGIC.to_vec(), checksums, seq: 0 };
        let mut body = vec![4, 0];
        body.extend_from_slice(b"10.11.19-MariaDB-log");
        body.resize(52, 0);
        body.extend_from_slice(&time_s.to_le_bytes());
        body.push(19);
        body.extend(std::iter::repeat_n(13, 171));
        body.push(u8::from(checksums));
        // The first event has a checksum in any case.
        server.checksums = true;
        server.event(15, time_s, 1, &body);
        server.checksums = checksums;
        server.event(163, time_s, 0, &[0; 4]);
        server
    }

    pub(crate) fn event(&mut self, kind: u8, time_s: u32, flags: u16, body: &[u8]) {
        let len = 19 + body.len() + if self.checksums { 4 } else { 0 };
        let mut event = Vec::new();
        event.extend_from_slice(&time_s.to_le_bytes());
        event.push(kind);
        event.extend_from_slice(&1_u32.to_le_bytes());
        event.extend_from_slice(&(len as u32).to_le_bytes());
        event.extend_from_slice(&((self.bytes.len() + len) as u32).to_le_bytes());
        event.extend_from_slice(&flags.to_le_bytes());
        event.extend_from_slice(body);
        event.resize(len, 0xC5);
        self.bytes.extend_from_slice(&event);
    }

    pub(crate) fn gtid(&mut self, time_s: u32, flags: u8) {
        self.seq += 1;
        let mut body = self.seq.to_le_bytes().to_vec();
        body.extend_from_slice(&0_u32.to_le_bytes());
        body.push(flags);
        body.resize(19, 0);
        self.event(162, time_s, 8, &body);
    }

    pub(crate) fn query(&mut self, time_s: u32, text: &str) {
        let variables = [7_u8; 30];
        let mut body = vec![0; 8];
        body.push(4);
        body.extend_from_slice(&[0, 0, variables.len() as u8, 0]);
        body.extend_from_slice(&variables);
        body.extend_from_slice(b"shop\0");
        body.extend_from_slice(text.as_bytes());
        self.event(2, time_s, 0, &body);
    }

    /// Writes a transaction of rows, `bytes` of them.
    pub(crate) fn rows(&mut self, time_s: u32, bytes: usize) {
        self.gtid(time_s, 0);
        self.event(19, time_s, 0, &[1; 40]);
        self.event(23, time_s, 0, &vec![0xA5; bytes]);
        self.event(16, time_s, 0, &[9; 8]);
    }

    pub(crate) fn close(&mut self) {
        let mut body = 4_u64.to_le_bytes().to_vec();
        body.extend_from_slice(b"bin.000000");
        self.event(4, 0, 0, &body);
        clear_in_use(&mut self.bytes);
    }
}
