//! Receives streams.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use pagefold_codec::Model;

use super::group::FrameChanges;
use super::wire::{EndFrame, FrameKind, FrameReader, HeadFrame, SentModel};
use super::{ORIGIN, PROGRESS, Token, Transfer, VersionPins, hidden, is_hidden};
use crate::dataset::redo::CatalogueOp;
use crate::dataset::{LiveDataset, ModelEntry, ModelPin, count};
use crate::limits::MODELS_MAX;
use crate::pool::catalogue::Catalogue;
use crate::pool::catalogue_ops::{PATH_BYTES_MAX, check_part};
use crate::pool::{Pool, passed_on};
use crate::record::{ModelId, codec_of, encode_metadata};
use crate::{Error, Key, Result};

/// Bytes of the stream after which all that was received is made durable: a power cut costs no more than that.
const DURABLE_BYTES: u64 = 64 << 20;

/// Options for receiving a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveOptions {
    /// Time at which the dataset is made, in seconds since 1970.
    pub created: u64,
    /// Keep the received part of a stream that is interrupted or damaged; [`Pool::partial`] has the token to go on
    /// with.
    pub keep: bool,
    /// Give up the changes of the dataset since its newest snapshot, which the stream comes after.
    pub force: bool,
}

/// A receiver at work.
struct Receiving<'a> {
    pool: &'a Pool,
    path: &'a str,
    hidden: String,
    options: &'a ReceiveOptions,
    head: HeadFrame,
    data: Arc<LiveDataset>,
    /// Numbers of the sender's models in this pool.
    models: BTreeMap<u32, ModelId>,
    /// Pins of these models (N3).
    model_pins: Vec<ModelPin>,
    last: Option<Key>,
    end: EndFrame,
    _pins: VersionPins<'a>,
}

impl Pool {
    /// Reads a stream from `input` into dataset `path`: a new one; or, if the stream has the changes since a snapshot,
    /// a dataset whose newest snapshot that is. Nothing of it is visible before all of it was verified. `watch` is
    /// called with the figures after each frame.
    ///
    /// The stream is not trusted. Takes memory for some frames of a few MiB, whatever the stream says. A dataset that
    /// is replaced must not be in use. `input` has to end where the stream does; if it does not, nothing becomes visible.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a stream that is damaged, ends too early or has something behind its end; [`Error::Exists`] if the stream has a whole
    /// snapshot and the dataset exists, or if the snapshot exists; [`Error::Invalid`] if the newest snapshot of the
    /// dataset is not the one that the stream comes after, or if the dataset was changed since; [`Error::Busy`] if part
    /// of another stream was received before; [`Error::NoSpace`]; errors of `input` and of writing.
    pub fn receive(
        &self,
        path: &str,
        options: &ReceiveOptions,
        input: &mut dyn Read,
        watch: &mut dyn FnMut(&Transfer),
    ) -> Result<Transfer> {
        self.shared.check_writable()?;
        let mut frames = FrameReader::new(input);
        let (FrameKind::Head, payload) = frames.next()? else {
            return Err(Error::corrupt("stream", "it does not begin with its head"));
        };
        let head = HeadFrame::decode(payload)?;
        let mut receiving = self.begin_receive(path, options, head)?;
        let done = receiving.read(&mut frames, watch).and_then(|()| receiving.finish());
        let came = receiving.last.is_some();
        let so_far = receiving.so_far(&frames);
        drop(receiving);
        match done {
            Ok(()) => Ok(so_far),
            Err(error) => {
                if !(options.keep && came)
                    && let Err(left) = self.abort_receive(path)
                {
                    tracing::error!(error = %left, path, "what was received in part could not be given up");
                }
                Err(error)
            }
        }
    }

    /// Finds the hidden dataset of an interrupted stream, or makes one.
    fn begin_receive<'a>(
        &'a self,
        path: &'a str,
        options: &'a ReceiveOptions,
        head: HeadFrame,
    ) -> Result<Receiving<'a>> {
        check_part(&head.name, "snapshot")?;
        if path.len() + head.name.len() + 1 > PATH_BYTES_MAX {
            return Err(Error::Invalid(format!("'{path}@{}' is too long", head.name)));
        }
        let hidden = hidden(path);
        self.catalogue.read().check_not_received(path)?;
        let token = Token { to: head.to, from: head.from, after: head.after };
        match self.partial(path) {
            Some(partial) if partial.token == token => {}
            Some(partial) => {
                return Err(Error::Busy(format!(
                    "part of another stream was received there before, up to {}",
                    partial.token
                )));
            }
            None if head.after.is_some() => {
                return Err(Error::Invalid(format!(
                    "the stream goes on where another one ended, and no part of that was received into '{path}'"
                )));
            }
            None => self.make_hidden(path, &hidden, &token, &head, options)?,
        }
        let mut catalogue = self.catalogue.write();
        catalogue.check_not_received(path)?;
        let id = catalogue.dataset(&hidden)?;
        let plan = ReceiveTarget::find(self, &catalogue, path, &head, options)?;
        if catalogue.get(id)?.prev != plan.onto() {
            return Err(Error::Invalid(format!(
                "'{path}' has other snapshots than when part of the stream was received; give that up by 'receive --abort {path}'"
            )));
        }
        let data = Arc::clone(&catalogue.get(id)?.data);
        let pins = VersionPins::new(self, &mut catalogue, vec![id]);
        drop(catalogue);
        Ok(Receiving {
            pool: self,
            path,
            hidden,
            options,
            last: head.after,
            head,
            data,
            models: BTreeMap::new(),
            model_pins: Vec::new(),
            end: EndFrame::default(),
            _pins: pins,
        })
    }

    pub(super) fn make_hidden(
        &self,
        path: &str,
        hidden: &str,
        token: &Token,
        head: &HeadFrame,
        options: &ReceiveOptions,
    ) -> Result<()> {
        let token = token.to_string();
        let created = options.created;
        self.perform(|catalogue, _| {
            catalogue.check_not_begun(path)?;
            let id = catalogue.next_id;
            let make = match ReceiveTarget::find(self, catalogue, path, head, options)? {
                ReceiveTarget::New => CatalogueOp::Create { id, created, name: hidden },
                ReceiveTarget::Onto { snapshot, .. } => {
                    CatalogueOp::Clone { snapshot, id, created, name: hidden }
                }
            };
            Ok(vec![make, CatalogueOp::Property { id, name: PROGRESS, value: Some(&token) }])
        })
    }
}

/// Target of a stream.
enum ReceiveTarget {
    /// A new dataset.
    New,
    /// The next snapshot of a dataset.
    Onto { dataset: u64, snapshot: u64 },
}

impl ReceiveTarget {
    /// Returns the target, or the error for which the stream cannot be received as things are.
    fn find(
        pool: &Pool,
        catalogue: &Catalogue,
        path: &str,
        head: &HeadFrame,
        options: &ReceiveOptions,
    ) -> Result<Self> {
        let Some(from) = head.from else {
            catalogue.check_new(path)?;
            return Ok(Self::New);
        };
        if path.is_empty() {
            return Err(Error::Invalid("the pool's own dataset cannot be received".into()));
        }
        let dataset = catalogue.dataset(path)?;
        if let Some(id) = catalogue.named_snapshot(dataset, &head.name) {
            return Err(Error::Exists(format!("there is a snapshot '{}' already", catalogue.path(id))));
        }
        let version = catalogue.get(dataset)?;
        let newest = catalogue.snapshots(dataset).last().copied().filter(|id| *id == version.prev);
        let Some(newest) = newest else {
            return Err(Error::Invalid(format!("the stream comes after a snapshot, and '{path}' has none")));
        };
        if is_hidden(&catalogue.get(newest)?.name) {
            return Err(Error::Busy(format!("'{path}' is being compared just now")));
        }
        if catalogue.origin_of(pool, newest)? != from {
            let newest = catalogue.path(newest);
            let known = catalogue.by_origin(pool, &from).first().map(|id| catalogue.path(*id));
            let known =
                known.map_or_else(|| "one that is not in this pool".into(), |path| format!("'{path}'"));
            return Err(Error::Invalid(format!(
                "the stream comes after {known}, and the newest snapshot of '{path}' is '{newest}'"
            )));
        }
        let unchanged = version.data.is_unchanged_since(&catalogue.get(newest)?.data);
        if !(unchanged || options.force) {
            return Err(Error::Invalid(format!(
                "'{path}' was changed since '{}', after which the stream comes; roll it back, or use force to give the changes up",
                catalogue.path(newest)
            )));
        }
        Ok(Self::Onto { dataset, snapshot: newest })
    }

    /// Returns the snapshot that the hidden dataset grows from, 0 if none.
    fn onto(&self) -> u64 {
        match self {
            Self::New => 0,
            Self::Onto { snapshot, .. } => *snapshot,
        }
    }
}

impl Receiving<'_> {
    fn so_far(&self, frames: &FrameReader<'_>) -> Transfer {
        let EndFrame { values, pages, record_bytes } = self.end;
        let expected_bytes = self.head.expected_bytes;
        Transfer { stream_bytes: frames.bytes, values, pages, record_bytes, expected_bytes }
    }

    fn read(&mut self, frames: &mut FrameReader<'_>, watch: &mut dyn FnMut(&Transfer)) -> Result<()> {
        let mut durable = 0;
        loop {
            watch(&self.so_far(frames));
            let (kind, payload) = frames.next()?;
            count(&self.pool.shared.counters.streamed_bytes, payload.len() as u64);
            match kind {
                FrameKind::Head => return Err(Error::corrupt("stream", "it has two heads")),
                FrameKind::Model => self.model(payload)?,
                FrameKind::Entries => {
                    let group = FrameChanges::read(payload, self.last, self.end, &self.data, &self.models)?;
                    group.check_records(&*self.pool.shared)?;
                    let (last, end) = (group.last, group.end);
                    let token = Token { to: self.head.to, from: self.head.from, after: last };
                    self.pool.commit_group(&self.data, &group, &token)?;
                    (self.last, self.end) = (last, end);
                }
                FrameKind::End => {
                    if EndFrame::decode(payload)? != self.end {
                        return Err(Error::corrupt(
                            "stream",
                            "it says at its end that it had something else",
                        ));
                    }
                    frames.expect_end()?;
                    watch(&self.so_far(frames));
                    return Ok(());
                }
            }
            if frames.bytes - durable >= DURABLE_BYTES {
                durable = frames.bytes;
                self.pool.flushes.flush().inspect_err(|error| self.pool.shared.fail(error))?;
            }
        }
    }

    /// Adopts a model, unless the pool has it already.
    fn model(&mut self, payload: &[u8]) -> Result<()> {
        let sent = SentModel::decode(payload)?;
        if self.models.len() >= MODELS_MAX || self.models.contains_key(&sent.id) {
            return Err(Error::corrupt("stream", "it has too many models, or one twice"));
        }
        let model = Model::from_bytes(&sent.bytes)
            .map_err(|why| Error::corrupt(format!("model {} of the stream", sent.id), why.to_string()))?;
        let pin = match self.pool.find_model(&sent.bytes)? {
            Some(pin) => pin,
            None => self.pool.adopt_received(self.data.id, &sent, model)?,
        };
        self.models.insert(sent.id, pin.id());
        self.model_pins.push(pin);
        Ok(())
    }

    /// Gives the received dataset its name and its snapshot, in one instant (N1).
    fn finish(&self) -> Result<()> {
        passed_on::retake(|| self.try_finish())
    }

    fn try_finish(&self) -> Result<()> {
        let (pool, path, head) = (self.pool, self.path, &self.head);
        let origin = head.to.to_string();
        // The properties of the dataset that is replaced pass to the received one.
        let properties = {
            let catalogue = pool.catalogue.read();
            let replaced = catalogue.dataset(path).ok().and_then(|id| catalogue.get(id).ok());
            replaced.map(|version| version.properties.clone()).unwrap_or_default()
        };
        let replaced = Cell::new(None);
        pool.perform_stored(|catalogue, bound| {
            let id = catalogue.dataset(&self.hidden)?;
            let target = ReceiveTarget::find(pool, catalogue, path, head, self.options)?;
            if catalogue.get(id)?.prev != target.onto() {
                return Err(Error::Invalid(format!("'{path}' has got other snapshots meanwhile")));
            }
            let snapshot = catalogue.next_id;
            let mut ops = vec![
                CatalogueOp::Property { id, name: PROGRESS, value: None },
                CatalogueOp::Snapshot {
                    dataset: id,
                    id: snapshot,
                    bound,
                    created: head.to.created,
                    name: &head.name,
                },
                CatalogueOp::Property { id: snapshot, name: ORIGIN, value: Some(&origin) },
            ];
            if let ReceiveTarget::Onto { dataset, .. } = target {
                catalogue.check_stored(dataset)?;
                catalogue.check_unpinned(dataset)?;
                passed_on::check(catalogue, dataset, &properties)?;
                ops.extend(properties.iter().map(|(name, value)| CatalogueOp::Property {
                    id,
                    name,
                    value: Some(value),
                }));
                // The hidden dataset gets the snapshots of the replaced dataset, which is then destroyed.
                ops.push(CatalogueOp::Promote { dataset: id });
                ops.push(CatalogueOp::Destroy { id: dataset });
                replaced.set(Some(dataset));
            }
            ops.push(CatalogueOp::Rename { id, name: path });
            Ok(ops)
        })?;
        if let Some(before) = replaced.get() {
            pool.pass_models_on(before, self.data.id);
        }
        Ok(())
    }
}

impl LiveDataset {
    /// Returns true if the dataset holds the same as its snapshot.
    fn is_unchanged_since(&self, snapshot: &Self) -> bool {
        self.has_nothing_pending() && self.tree.is_version_of(&snapshot.tree)
    }
}

impl Pool {
    /// Finds the model that is stored as these bytes, and pins it (N3).
    fn find_model(&self, bytes: &[u8]) -> Result<Option<ModelPin>> {
        let record = encode_metadata(bytes.to_vec());
        for (id, entry) in self.shared.models.all() {
            if entry.ptr.len_bytes as usize != record.len() {
                continue;
            }
            match self.shared.read_record(entry.ptr.addr) {
                Ok(found) if found == record => {}
                // It is another model; or it was dropped meanwhile, or is damaged, which `check` reports.
                Ok(_) => continue,
                Err(error) if error.is_damage() => continue,
                Err(error) => return Err(error),
            }
            // It may have been dropped meanwhile.
            if let Some(pin) = self.shared.models.pin(id) {
                return Ok(Some(pin));
            }
        }
        Ok(None)
    }

    fn adopt_received(&self, dataset: u64, sent: &SentModel, model: Model) -> Result<ModelPin> {
        let codec = codec_of(&model);
        let adopted = self.adopt(model, sent.bytes.clone(), |ptr, _| ModelEntry {
            ptr,
            codec,
            dataset,
            object: sent.object,
            generation: sent.generation,
            sampled_pages: sent.sampled_pages,
            object_pages: sent.object_pages,
            record_bytes: sent.record_bytes,
            late: false,
        })?;
        adopted.ok_or_else(|| {
            Error::NoSpace(format!(
                "there is no room for a model of the stream, or the pool has {MODELS_MAX} of them"
            ))
        })
    }
}
