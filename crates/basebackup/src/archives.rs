//! Writes a backup as archives: `base.tar`, and one per tablespace; in a directory, or one of them on standard output.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::compress::{Compression, Compressor};
use crate::error::{Error, Result};
use crate::limits::TAR_PATH_BYTES_MAX;
use crate::manifest;
use crate::plan::{Archive, Attributes};
use crate::sink::{Begun, Sink, create, sync, sync_parent, write_manifest};

/// Suffix of the name of an archive that is not complete.
const PARTIAL: &str = ".partial";
const BLOCK: usize = 512;
const BUFFER_BYTES: usize = 1 << 20;

/// A writer that counts the bytes.
struct Counted<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.to.write(bytes)?;
        self.bytes += done as u64;
        Ok(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

type Output = Compressor<Counted<BufWriter<Box<dyn Write>>>>;

/// A sink that writes archives: `base.tar`, and one per tablespace.
pub(crate) struct Tar {
    compression: Compression,
    /// The directory; empty for standard output.
    begun: Begun,
    /// Final names of the archives, which they get when all are complete.
    names: Vec<String>,
    /// Path of the file that is being written, for messages.
    path: PathBuf,
    output: Option<Output>,
    /// Number of bytes that the file lacks to a whole block.
    padding: usize,
    written: u64,
}

impl Tar {
    pub(crate) fn new(folder: Option<&Path>, compression: Compression) -> Result<Self> {
        let mut begun = Begun::default();
        if let Some(folder) = folder {
            begun.begin(folder)?;
        }
        Ok(Self {
            compression,
            begun,
            names: Vec::new(),
            path: "standard output".into(),
            output: None,
            padding: 0,
            written: 0,
        })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(output) = &mut self.output else { return Ok(()) };
        output.write_all(bytes).map_err(Error::io("write", &self.path))
    }

    fn header(
        &mut self,
        path: &Path,
        kind: tar::EntryType,
        bytes: u64,
        attributes: Attributes,
    ) -> Result<tar::Header> {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(attributes.mode);
        header.set_uid(attributes.uid.into());
        header.set_gid(attributes.gid.into());
        header.set_mtime(attributes.modified);
        header.set_size(bytes);
        if path.as_os_str().len() > TAR_PATH_BYTES_MAX {
            return Err(Error::Unsuited(format!("{} is longer than an archive can have it", path.display())));
        }
        header.set_path(path).map_err(Error::io("name in the archive", path))?;
        Ok(header)
    }

    fn entry(&mut self, mut header: tar::Header) -> Result<()> {
        header.set_cksum();
        self.put(header.as_bytes())
    }

    fn close(&mut self) -> Result<()> {
        self.put(&[0; 2 * BLOCK])?;
        let Some(output) = self.output.take() else { return Ok(()) };
        let mut counted = output.finish().map_err(Error::io("write", &self.path))?;
        counted.flush().map_err(Error::io("write", &self.path))?;
        self.written += counted.bytes;
        Ok(())
    }
}

impl Sink for Tar {
    fn begin(&mut self, archive: &Archive) -> Result<()> {
        let name = archive.tablespace.as_ref().map_or_else(|| "base".into(), |of| of.oid.to_string());
        let to: Box<dyn Write> = match self.begun.folders.first() {
            None => Box::new(standard_output()?),
            Some(folder) => {
                let name = format!("{name}.tar{}", self.compression.suffix());
                let partial = format!("{name}{PARTIAL}");
                self.path = folder.shown.join(&partial);
                let file =
                    create(&folder.real.join(&partial), 0o600).map_err(|error| error.at(&self.path))?;
                self.names.push(name);
                Box::new(file)
            }
        };
        let counted = Counted { to: BufWriter::with_capacity(BUFFER_BYTES, to), bytes: 0 };
        let output = Compressor::new(counted, self.compression).map_err(Error::io("write", &self.path))?;
        self.output = Some(output);
        Ok(())
    }

    fn directory(&mut self, path: &Path, attributes: Attributes) -> Result<()> {
        let header = self.header(path, tar::EntryType::Directory, 0, attributes)?;
        self.entry(header)
    }

    fn link(&mut self, path: &Path, target: &Path, attributes: Attributes) -> Result<()> {
        let mut header = self.header(path, tar::EntryType::Symlink, 0, attributes)?;
        if target.as_os_str().len() > TAR_PATH_BYTES_MAX {
            return Err(Error::Unsuited(format!(
                "the link {} leads to {}, which is longer than an archive can have it",
                path.display(),
                target.display()
            )));
        }
        header
            .set_link_name_literal(target.as_os_str().as_bytes())
            .map_err(Error::io("name in the archive", target))?;
        self.entry(header)
    }

    fn file(&mut self, path: &Path, bytes: u64, attributes: Attributes) -> Result<()> {
        let header = self.header(path, tar::EntryType::Regular, bytes, attributes)?;
        let block = BLOCK as u64;
        self.padding = usize::try_from(bytes.next_multiple_of(block) - bytes).unwrap_or(0);
        self.entry(header)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.put(bytes)
    }

    fn end_file(&mut self) -> Result<()> {
        let zeros = [0; BLOCK];
        let padding = std::mem::take(&mut self.padding);
        self.put(zeros.get(..padding).unwrap_or_default())
    }

    fn end(&mut self) -> Result<()> {
        // On standard output the manifest is still to come.
        if self.begun.folders.is_empty() { Ok(()) } else { self.close() }
    }

    fn finish(&mut self, manifest: Option<&[u8]>, attributes: Attributes, durable: bool) -> Result<u64> {
        let Some(folder) = self.begun.folders.first() else {
            if let Some(bytes) = manifest {
                let mode = attributes.mode & 0o660;
                self.file(Path::new(manifest::FILE), bytes.len() as u64, Attributes { mode, ..attributes })?;
                self.write(bytes)?;
                self.end_file()?;
            }
            self.close()?;
            return Ok(self.written);
        };
        for name in &self.names {
            let (partial, path) = (folder.real.join(format!("{name}{PARTIAL}")), folder.real.join(name));
            let shown = folder.shown.join(name);
            if durable {
                sync(&partial).map_err(|error| error.at(&shown))?;
            }
            fs::rename(&partial, &path).map_err(Error::io("rename what becomes", &shown))?;
        }
        if let Some(bytes) = manifest {
            write_manifest(&folder.real, bytes, 0o600, None, durable)
                .map_err(|error| error.at(&folder.shown.join(manifest::FILE)))?;
            self.written += bytes.len() as u64;
        }
        folder.give_back()?;
        if durable {
            folder.sync()?;
            sync_parent(&folder.shown)?;
        }
        self.begun.keep();
        Ok(self.written)
    }
}

fn standard_output() -> Result<File> {
    let duplicate = io::stdout().as_fd().try_clone_to_owned();
    duplicate.map(File::from).map_err(Error::io("write", Path::new("standard output")))
}
