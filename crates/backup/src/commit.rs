//! Commits: each lists all backups, and the newest one counts.

use pagefold_engine::pool::{Guid, Origin};
use pagefold_engine::wire::{Reader, put_bytes, put_varint};
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128;

use crate::binlog::BinlogPlace;
use crate::block::{BlockRef, Kind};
use crate::chunk::table;
use crate::error::{Decoded, Error, Result};
use crate::keys::{Sealer, random};
use crate::limits::{COMMIT_BYTES_MAX, DATA_PATH_BYTES_MAX};
use crate::pack::{PackId, seal_name, squeeze, unsqueeze};
use crate::root::Totals;

const MAGIC: [u8; 8] = *b"PFbklg\x01\0";
/// Bytes of a commit's unsealed head: magic, repository, number.
const HEAD_BYTES: usize = 32;
/// Largest length in bytes of a name of a pool, dataset or snapshot that is accepted.
const NAME_BYTES_MAX: usize = 4096;
/// Largest length in bytes of a property that is accepted.
const PROPERTY_BYTES_MAX: usize = 64 << 10;

/// A backup that can be restored, as the repository lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backup {
    /// Number of the backup; a repository never uses one twice.
    pub number: u64,
    /// Name of the pool.
    pub pool: String,
    /// Path of the dataset within the pool; empty for the pool's own.
    pub dataset: String,
    /// Name of the snapshot.
    pub snapshot: String,
    /// Identity of the snapshot in all pools.
    #[serde(skip)]
    pub origin: Origin,
    /// Time of the backup, in seconds since 1970. The time of the snapshot is in `origin`.
    pub made: u64,
    /// Counts of its contents.
    pub totals: Totals,
    /// Number of bytes that were uploaded for it.
    pub added_bytes: u64,
    /// Number of packs that it needs.
    pub packs: u64,
    /// The database clusters in it; `None` if nobody looked for them.
    pub clusters: Option<Vec<Cluster>>,
    /// Where the binary logs in it end.
    pub binlogs: Vec<BinlogEnd>,
    /// Blocks with the parts of its manifest's root.
    #[serde(skip)]
    pub(crate) root: Vec<BlockRef>,
}

/// A PostgreSQL cluster in a backup, as its control file said when the snapshot was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cluster {
    /// Path of the data directory, relative to the dataset's root; `.` for the root.
    pub data: String,
    /// Number of the cluster.
    pub system: u64,
    /// Timeline of its last checkpoint.
    pub timeline: u32,
    /// Place in the log where recovery begins to read.
    pub redo: u64,
    /// Place up to which the log was written: no page of the backup holds a later change.
    pub end: u64,
    /// Bytes of a segment of the log.
    pub segment_bytes: u32,
    /// End of the last transaction in it, in microseconds since 1970, if it was found.
    pub last_us: Option<i64>,
}

impl Cluster {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.data.as_bytes());
        out.extend_from_slice(&self.system.to_le_bytes());
        for value in [self.timeline.into(), self.redo, self.end, self.segment_bytes.into()] {
            put_varint(out, value);
        }
        // Before 1970 there was no server, so 0 can stand for an unknown time.
        put_varint(out, self.last_us.and_then(|last| u64::try_from(last).ok()).unwrap_or_default());
    }

    fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let data = std::str::from_utf8(reader.bytes(DATA_PATH_BYTES_MAX)?);
        let data = data.map(str::to_owned).map_err(|_| reader.bad("a path is not UTF-8"))?;
        let cluster = Self {
            data,
            system: reader.u64()?,
            timeline: reader.varint_u32()?,
            redo: reader.varint()?,
            end: reader.varint()?,
            segment_bytes: reader.varint_u32()?,
            last_us: i64::try_from(reader.varint()?).ok().filter(|last| *last > 0),
        };
        if !is_segment_size(cluster.segment_bytes.into()) {
            return Err(reader.bad("a log has segments of a size that no server has"));
        }
        Ok(cluster)
    }
}

/// The end of the binary log in a data directory of MariaDB, as it was when the snapshot was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BinlogEnd {
    /// Path of the data directory, relative to the dataset's root; `.` for the root.
    pub data: String,
    /// Place behind the last transaction.
    pub place: BinlogPlace,
    /// Mark of the file.
    pub mark: u64,
    /// Latest time of a transaction in it, in seconds since 1970, if it was found.
    pub last_s: Option<u32>,
}

impl BinlogEnd {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.data.as_bytes());
        encode_place(self.place, out);
        out.extend_from_slice(&self.mark.to_le_bytes());
        put_varint(out, self.last_s.unwrap_or_default().into());
    }

    fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        Ok(Self {
            data: text(reader, DATA_PATH_BYTES_MAX)?,
            place: decode_place(reader)?,
            mark: reader.u64()?,
            last_s: Some(reader.varint_u32()?).filter(|last| *last > 0),
        })
    }
}

fn encode_place(place: BinlogPlace, out: &mut Vec<u8>) {
    put_varint(out, place.file.into());
    put_varint(out, place.offset);
}

fn decode_place(reader: &mut Reader<'_>) -> Decoded<BinlogPlace> {
    Ok(BinlogPlace { file: reader.varint_u32()?, offset: reader.varint()? })
}

/// The place in an archived binary log before which no backup that the last prune kept needs anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BinlogFloor {
    pub(crate) log: String,
    pub(crate) place: BinlogPlace,
}

impl BinlogFloor {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.log.as_bytes());
        encode_place(self.place, out);
    }

    fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        Ok(Self { log: text(reader, NAME_BYTES_MAX)?, place: decode_place(reader)? })
    }
}

/// Returns true if PostgreSQL has segments of this size.
pub(crate) fn is_segment_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(&bytes)
}

/// The place in a cluster's log before which no backup that the last prune kept needs anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floor {
    pub(crate) system: u64,
    pub(crate) place: u64,
}

impl Floor {
    fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        Ok(Self { system: reader.u64()?, place: reader.varint()? })
    }
}

impl Backup {
    /// Returns `POOL/DATASET@SNAPSHOT`.
    pub fn name(&self) -> String {
        let slash = if self.dataset.is_empty() { "" } else { "/" };
        format!("{}{slash}{}@{}", self.pool, self.dataset, self.snapshot)
    }

    /// Returns the key that orders backups by their snapshots, if all snapshots were made in one pool. A pool's numbers of
    /// snapshots only rise; its clock may have been wrong.
    pub fn order(&self) -> (u64, u64) {
        (self.origin.number, self.number)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.number);
        for name in [&self.pool, &self.dataset, &self.snapshot] {
            put_bytes(out, name.as_bytes());
        }
        out.extend_from_slice(&self.origin.pool.0);
        for value in [self.origin.number, self.origin.created, self.made, self.added_bytes, self.packs] {
            put_varint(out, value);
        }
        self.totals.encode(out);
        put_varint(out, self.root.len() as u64);
        self.root.iter().for_each(|block| block.encode(out));
    }

    fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let number = reader.varint()?;
        let mut name = || text(reader, NAME_BYTES_MAX);
        let (pool, dataset, snapshot) = (name()?, name()?, name()?);
        let mut guid = Guid([0; 16]);
        guid.0.copy_from_slice(reader.take(16)?);
        Ok(Self {
            number,
            pool,
            dataset,
            snapshot,
            origin: Origin { pool: guid, number: reader.varint()?, created: reader.varint()? },
            made: reader.varint()?,
            added_bytes: reader.varint()?,
            packs: reader.varint()?,
            totals: Totals::decode(reader)?,
            clusters: None,
            binlogs: Vec::new(),
            root: table(reader, BlockRef::decode)?,
        })
    }
}

fn text(reader: &mut Reader<'_>, max: usize) -> Decoded<String> {
    let text = std::str::from_utf8(reader.bytes(max)?);
    text.map(str::to_owned).map_err(|_| reader.bad("a text is not UTF-8"))
}

/// The properties that were set on a dataset when it was last backed up. They are stored here because streams have only
/// the files of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Name of the pool.
    pub pool: String,
    /// Path of the dataset within the pool; empty for the pool's own.
    pub dataset: String,
    /// Properties and their values.
    pub properties: Vec<(String, String)>,
}

impl Described {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.pool.as_bytes());
        put_bytes(out, self.dataset.as_bytes());
        put_varint(out, self.properties.len() as u64);
        for (name, value) in &self.properties {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_bytes());
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let (pool, dataset) = (text(reader, NAME_BYTES_MAX)?, text(reader, NAME_BYTES_MAX)?);
        let properties =
            table(reader, |reader| Ok((text(reader, NAME_BYTES_MAX)?, text(reader, PROPERTY_BYTES_MAX)?)))?;
        Ok(Self { pool, dataset, properties })
    }

    fn is_of(&self, backup: &Backup) -> bool {
        self.pool == backup.pool && self.dataset == backup.dataset
    }
}

/// The contents of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Number of prunes so far.
    pub(crate) epoch: u64,
    /// Number of the next backup.
    pub(crate) next_number: u64,
    /// Backups in the order of their numbers.
    pub(crate) backups: Vec<Backup>,
    /// Packs that the last prune found and that nothing needs.
    pub(crate) condemned: Vec<PackId>,
    /// Places up to which the last prune would have deleted archived logs.
    pub(crate) floors: Vec<Floor>,
    /// Datasets of which more than their backups is known.
    pub(crate) described: Vec<Described>,
    /// Places up to which the last prune would have deleted archived binary logs.
    pub(crate) binlog_floors: Vec<BinlogFloor>,
}

impl State {
    /// Encodes which clusters backups have: a part that older commits lack.
    fn encode_clusters(&self, out: &mut Vec<u8>) {
        let known =
            || self.backups.iter().filter_map(|backup| Some((backup.number, backup.clusters.as_ref()?)));
        put_varint(out, known().count() as u64);
        for (number, clusters) in known() {
            put_varint(out, number);
            put_varint(out, clusters.len() as u64);
            clusters.iter().for_each(|cluster| cluster.encode(out));
        }
        put_varint(out, self.floors.len() as u64);
        for floor in &self.floors {
            out.extend_from_slice(&floor.system.to_le_bytes());
            put_varint(out, floor.place);
        }
    }

    fn decode_clusters(&mut self, reader: &mut Reader<'_>) -> Decoded<()> {
        let known = table(reader, |reader| Ok((reader.varint()?, table(reader, Cluster::decode)?)))?;
        let mut last = None;
        for (number, clusters) in known {
            let of = self.backups.iter_mut().find(|backup| backup.number == number);
            let of = of.filter(|_| last < Some(number)).ok_or_else(|| reader.bad("clusters of no backup"))?;
            of.clusters = Some(clusters);
            last = Some(number);
        }
        self.floors = table(reader, Floor::decode)?;
        Ok(())
    }

    /// Encodes where binary logs end in backups: a part that older commits lack.
    fn encode_binlogs(&self, out: &mut Vec<u8>) {
        let with = || self.backups.iter().filter(|backup| !backup.binlogs.is_empty());
        put_varint(out, with().count() as u64);
        for backup in with() {
            put_varint(out, backup.number);
            put_varint(out, backup.binlogs.len() as u64);
            backup.binlogs.iter().for_each(|end| end.encode(out));
        }
        put_varint(out, self.binlog_floors.len() as u64);
        self.binlog_floors.iter().for_each(|floor| floor.encode(out));
    }

    fn decode_binlogs(&mut self, reader: &mut Reader<'_>) -> Decoded<()> {
        let all = table(reader, |reader| Ok((reader.varint()?, table(reader, BinlogEnd::decode)?)))?;
        let mut last = None;
        for (number, ends) in all {
            let of = self.backups.iter_mut().find(|backup| backup.number == number);
            let of = of.filter(|_| last < Some(number) && !ends.is_empty());
            of.ok_or_else(|| reader.bad("binary logs of no backup"))?.binlogs = ends;
            last = Some(number);
        }
        self.binlog_floors = table(reader, BinlogFloor::decode)?;
        Ok(())
    }

    /// Stores what is known of a dataset, in place of what was known before.
    pub(crate) fn describe(&mut self, described: Described) {
        let is_other =
            |other: &Described| (&other.pool, &other.dataset) != (&described.pool, &described.dataset);
        self.described.retain(is_other);
        if !described.properties.is_empty() {
            self.described.push(described);
        }
    }

    /// Returns this state as it goes on behind `lost` commits that nobody can read. Each of them may have been a prune
    /// that deleted at once, or have used a backup's number. A prune must find anew what nothing needs.
    pub(crate) fn behind_lost(mut self, lost: u64) -> Self {
        self.epoch = self.epoch.saturating_add(lost.saturating_mul(2));
        self.next_number = self.next_number.saturating_add(lost);
        self.condemned.clear();
        self.floors.clear();
        self.binlog_floors.clear();
        self
    }

    /// Drops what is known of datasets that have no backup any more.
    pub(crate) fn tidy(&mut self) {
        let backups = &self.backups;
        self.described.retain(|described| backups.iter().any(|backup| described.is_of(backup)));
    }
}

/// A commit as an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) number: u64,
    /// Hash of the object.
    pub(crate) hash: u128,
    /// Hash of the commit before; 0 for the first one.
    pub(crate) before: u128,
    pub(crate) state: State,
}

/// Returns the folder of a repository's commits.
pub(crate) fn folder(repository: &[u8; 16]) -> String {
    format!("log/{}", PackId(*repository))
}

/// Returns the name of commit `number` in its folder; names sort as numbers do.
pub(crate) fn object_name(number: u64) -> String {
    format!("{number:016x}")
}

/// Returns the path of commit `number`.
pub(crate) fn path(repository: &[u8; 16], number: u64) -> String {
    format!("{}/{}", folder(repository), object_name(number))
}

fn name_of(repository: &[u8; 16], number: u64) -> [u8; 37] {
    let mut object = [0; 16];
    object.iter_mut().zip(number.to_le_bytes()).for_each(|(place, byte)| *place = byte);
    seal_name(repository, Kind::Commit, &object, 0)
}

/// Encodes the part of a commit that is sealed. `nonce` distinguishes it from all others.
pub(crate) fn encode_body(nonce: &[u8; 16], before: u128, state: &State) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(nonce);
    body.extend_from_slice(&before.to_le_bytes());
    put_varint(&mut body, state.epoch);
    put_varint(&mut body, state.next_number);
    put_varint(&mut body, state.backups.len() as u64);
    state.backups.iter().for_each(|backup| backup.encode(&mut body));
    put_varint(&mut body, state.condemned.len() as u64);
    state.condemned.iter().for_each(|pack| body.extend_from_slice(&pack.0));
    state.encode_clusters(&mut body);
    put_varint(&mut body, state.described.len() as u64);
    state.described.iter().for_each(|described| described.encode(&mut body));
    state.encode_binlogs(&mut body);
    body
}

/// Encodes a commit as an object; also returns what decoding it will give.
pub(crate) fn encode(
    repository: &[u8; 16],
    number: u64,
    before: u128,
    state: State,
    sealer: &Sealer,
) -> Result<(Vec<u8>, Commit)> {
    let body = encode_body(&random()?, before, &state);
    if body.len() > COMMIT_BYTES_MAX {
        return Err(Error::Invalid(
            "the repository has too many backups or unneeded packs: forget some, or prune".into(),
        ));
    }
    let mut out = Vec::new();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(repository);
    out.extend_from_slice(&number.to_le_bytes());
    sealer.seal(&name_of(repository, number), &squeeze(&body)?, &mut out)?;
    let hash = xxh3_128(&out);
    Ok((out, Commit { number, hash, before, state }))
}

/// Decodes an object that lies under the name of commit `number`.
pub(crate) fn decode(bytes: &[u8], repository: &[u8; 16], number: u64, sealer: &Sealer) -> Result<Commit> {
    let path = path(repository, number);
    let bad = |detail: &str| Error::damaged(&path, detail);
    let (head, sealed) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or_else(|| bad("it is truncated"))?;
    if !head.starts_with(&MAGIC) {
        return Err(bad("it is no commit of this version"));
    }
    if head.get(8..24) != Some(repository.as_slice())
        || head.get(24..) != Some(number.to_le_bytes().as_slice())
    {
        return Err(bad("it is another commit under this name"));
    }
    let body =
        sealer.open(&name_of(repository, number), sealed).ok_or_else(|| bad("its seal does not hold"))?;
    let body = unsqueeze(&body, COMMIT_BYTES_MAX, &path)?;
    let (before, state) = decode_body(&body).map_err(Error::in_object(&path))?;
    Ok(Commit { number, hash: xxh3_128(bytes), before, state })
}

/// Decodes what [`encode_body`] encodes; the nonce is dropped.
pub(crate) fn decode_body(body: &[u8]) -> Decoded<(u128, State)> {
    let mut reader = Reader::new(body, "commit");
    let _nonce = reader.take(16)?;
    let mut before = [0; 16];
    before.copy_from_slice(reader.take(16)?);
    let mut state = State {
        epoch: reader.varint()?,
        next_number: reader.varint()?,
        backups: table(&mut reader, Backup::decode)?,
        condemned: table(&mut reader, PackId::decode)?,
        floors: Vec::new(),
        described: Vec::new(),
        binlog_floors: Vec::new(),
    };
    // Commits of the first versions end here.
    if reader.remaining() > 0 {
        state.decode_clusters(&mut reader)?;
        state.described = table(&mut reader, Described::decode)?;
    }
    if reader.remaining() > 0 {
        state.decode_binlogs(&mut reader)?;
    }
    if state.described.iter().any(|described| described.properties.is_empty()) {
        return Err(reader.bad("a dataset is described by nothing"));
    }
    reader.end()?;
    Ok((u128::from_le_bytes(before), state))
}
