//! Decides from the names of archived files which points of a cluster can be restored, by pure functions.
//!
//! A server goes on from one timeline to the next at a place that the history of the next one tells. Recovery along a
//! timeline reads each segment on the newest of its ancestors that has begun in that segment or before
//! (`XLogFileReadAnyTLI`).

use std::collections::BTreeSet;

use pagefold_basebackup::control::parse_lsn;
use pagefold_basebackup::segment::{Name, Part};
use serde::{Serialize, Serializer};

use super::Archived;
use crate::commit::{Backup, Cluster};

fn as_text<S: Serializer>(name: &Name, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(name)
}

fn as_text_if_any<S: Serializer>(name: &Option<Name>, to: S) -> Result<S::Ok, S::Error> {
    match name {
        Some(name) => to.collect_str(name),
        None => to.serialize_none(),
    }
}

/// The history of a timeline: the file that tells where the timeline comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct History {
    timeline: u32,
    /// Earlier timelines, oldest first, each with the place at which it was left; these places rise.
    before: Vec<(u32, u64)>,
}

impl History {
    /// Parses lines of a timeline, the place at which it was left, and the reason; `None` if the file is no history.
    ///
    /// Numbers of timelines rise, but places need not: a server that ends recovery before the timeline that it recovers
    /// along has begun notes that it left this one at the earlier place. So a timeline ends where it or a later one was
    /// left first.
    pub(crate) fn parse(timeline: u32, content: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(content).ok()?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before: Option<Vec<(u32, u64)>> = lines
            .map(|line| {
                let mut words = line.split_whitespace();
                Some((words.next()?.parse().ok()?, parse_lsn(words.next()?)?))
            })
            .collect();
        let mut before = before?;
        let rises = before.windows(2).all(|pair| match pair {
            [(earlier, _), (later, _)] => earlier < later,
            _ => true,
        });
        let is_last = before.last().is_none_or(|(last, _)| *last < timeline);
        let mut first = u64::MAX;
        for (_, left) in before.iter_mut().rev() {
            first = first.min(*left);
            *left = first;
        }
        (rises && is_last).then_some(Self { timeline, before })
    }

    /// Returns the history of the first timeline, or of one whose history is not archived.
    fn alone(timeline: u32) -> Self {
        Self { timeline, before: Vec::new() }
    }

    /// Returns the timeline that has a segment.
    fn timeline_of(&self, number: u64, segment_bytes: u64) -> u32 {
        let left = |place: u64| place.checked_div(segment_bytes).unwrap_or_default();
        let found = self.before.iter().find(|(_, place)| number < left(*place));
        found.map_or(self.timeline, |(timeline, _)| *timeline)
    }

    /// Returns true if the log that the cluster had written when it was backed up leads to this timeline.
    fn is_ahead_of(&self, cluster: &Cluster) -> bool {
        cluster.timeline == self.timeline
            || self
                .before
                .iter()
                .any(|(timeline, left)| *timeline == cluster.timeline && cluster.end <= *left)
    }
}

/// A run of segments of one timeline, none of them missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stretch {
    /// First segment.
    #[serde(serialize_with = "as_text")]
    pub first: Name,
    /// Last segment.
    #[serde(serialize_with = "as_text")]
    pub last: Name,
}

/// The part of a log along which a cluster of a backup can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Number of the backup.
    pub backup: u64,
    /// Dataset of the backup: `POOL/DATASET`.
    pub dataset: String,
    /// Path of the data directory in the dataset.
    pub data: String,
    /// Timeline along which it is restored.
    pub timeline: u32,
    /// First place in the log that can be restored.
    pub from: u64,
    /// Time of the backup's snapshot, in seconds since 1970.
    pub since: u64,
    /// End of the last transaction in the backup, in microseconds since 1970, if it is known: no earlier time can be
    /// restored.
    pub since_us: Option<i64>,
    /// End of the log without a gap; `None` if the first segment is missing.
    pub until: Option<u64>,
    /// End of the last transaction before that, in microseconds since 1970. Earlier times can be restored.
    pub until_us: Option<i64>,
    /// First segment that is missing, if later ones are there.
    #[serde(serialize_with = "as_text_if_any")]
    pub missing: Option<Name>,
    #[serde(skip)]
    first: u64,
    #[serde(skip)]
    count: u64,
    #[serde(skip)]
    history: History,
    #[serde(skip)]
    segment_bytes: u64,
}

/// Answer to the question whether a place or a time can be restored from a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It can be restored.
    Within,
    /// The backup has later changes.
    TooEarly,
    /// The archive does not reach that far.
    TooLate,
}

impl Line {
    /// Returns the place up to which the log is whole: that of the backup may go on behind what is archived. `None` if
    /// nothing is archived from the backup on.
    pub fn whole_until(&self) -> Option<u64> {
        self.until.map(|until| if self.from == u64::MAX { until } else { until.max(self.from) })
    }

    fn of(backup: &Backup, cluster: &Cluster, history: &History, segments: &BTreeSet<Name>) -> Self {
        let segment_bytes = u64::from(cluster.segment_bytes);
        let first = cluster.redo / segment_bytes;
        let name_of = |number: u64| named(history, number, segment_bytes);
        let count = (first..).take_while(|number| segments.contains(&name_of(*number))).count() as u64;
        let last = segments.iter().rfind(|name| name.timeline == history.timeline);
        let goes_on = last.is_some_and(|last| last.number(segment_bytes) > first + count);
        let dataset = backup.name();
        Self {
            backup: backup.number,
            dataset: dataset.split('@').next().unwrap_or(&dataset).to_owned(),
            data: cluster.data.clone(),
            timeline: history.timeline,
            from: cluster.end,
            since: backup.origin.created,
            since_us: cluster.last_us,
            until: (count > 0).then(|| (first + count) * segment_bytes),
            until_us: None,
            missing: goes_on.then(|| name_of(first + count)),
            first,
            count,
            history: history.clone(),
            segment_bytes,
        }
    }

    /// Returns the segment that is `back` segments before the last one without a gap.
    pub(crate) fn before_end(&self, back: u64) -> Option<Name> {
        let number = self.first + self.count.checked_sub(back + 1)?;
        Some(named(&self.history, number, self.segment_bytes))
    }

    /// Returns whether a place in the log can be restored.
    pub fn reaches_place(&self, place: u64) -> Reach {
        match self.until {
            _ if place < self.from => Reach::TooEarly,
            Some(until) if place < until => Reach::Within,
            _ => Reach::TooLate,
        }
    }

    /// Returns whether a time, in microseconds since 1970, can be restored. If the end of the backup's last transaction
    /// is unknown, the time of its snapshot counts, which is known to a second.
    pub fn reaches_time(&self, time_us: i64) -> Reach {
        let made = i64::try_from(self.since).unwrap_or(i64::MAX).saturating_add(1).saturating_mul(1_000_000);
        match self.until_us {
            _ if time_us < self.since_us.unwrap_or(made) => Reach::TooEarly,
            Some(until) if time_us < until => Reach::Within,
            _ => Reach::TooLate,
        }
    }
}

fn named(history: &History, number: u64, segment_bytes: u64) -> Name {
    let per_log = (1_u64 << 32).checked_div(segment_bytes).unwrap_or(1).max(1);
    let timeline = history.timeline_of(number, segment_bytes);
    Name { timeline, log: (number / per_log) as u32, segment: (number % per_log) as u32, part: Part::Segment }
}

/// The history of a timeline that is archived and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreadableHistory {
    /// Name of the file.
    #[serde(serialize_with = "as_text")]
    pub name: Name,
    /// The damage, in words.
    pub what: String,
}

/// Everything that is archived of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterLog {
    /// Number of the cluster.
    pub system: u64,
    /// Bytes of a segment; 0 if no segment is archived and no backup knows it.
    pub segment_bytes: u64,
    /// Number of files, of all kinds.
    pub files: u64,
    /// Bytes that these files take.
    pub stored_bytes: u64,
    /// Runs of whole segments.
    pub stretches: Vec<Stretch>,
    /// How far each backup can be restored, along its newest timeline of those whose histories can be read.
    pub lines: Vec<Line>,
    /// Histories of timelines that cannot be read: these may lead on from any backup.
    pub unreadable: Vec<UnreadableHistory>,
    #[serde(skip)]
    histories: Vec<History>,
    #[serde(skip)]
    segments: BTreeSet<Name>,
}

impl ClusterLog {
    pub(crate) fn of(
        system: u64,
        segment_bytes: u64,
        files: &[Archived],
        (histories, unreadable): (Vec<History>, Vec<UnreadableHistory>),
        backups: &[Backup],
    ) -> Self {
        let segments: BTreeSet<Name> =
            files.iter().map(|file| file.name).filter(|name| name.part == Part::Segment).collect();
        let mut stretches: Vec<Stretch> = Vec::new();
        for name in &segments {
            match stretches.last_mut() {
                Some(stretch)
                    if stretch.last.timeline == name.timeline
                        && stretch.last.number(segment_bytes) + 1 == name.number(segment_bytes) =>
                {
                    stretch.last = *name;
                }
                _ => stretches.push(Stretch { first: *name, last: *name }),
            }
        }
        let mut log = Self {
            system,
            segment_bytes,
            files: files.len() as u64,
            stored_bytes: files.iter().map(|file| file.stored_bytes).sum(),
            stretches,
            lines: Vec::new(),
            unreadable,
            histories,
            segments,
        };
        log.lines = backups
            .iter()
            .flat_map(|backup| backup.clusters.iter().flatten().map(move |cluster| (backup, cluster)))
            .filter(|(_, cluster)| cluster.system == system)
            .filter_map(|(backup, cluster)| log.line(backup, cluster, None))
            .collect();
        log
    }

    /// Returns how far a cluster of a backup can be restored along a timeline, or along the newest one that leads on
    /// from the backup. `None` if that timeline does not come from there, or has no history.
    pub fn line(&self, backup: &Backup, cluster: &Cluster, timeline: Option<u32>) -> Option<Line> {
        let own = History::alone(cluster.timeline);
        let mut all: Vec<&History> = self.histories.iter().filter(|one| one.is_ahead_of(cluster)).collect();
        if !all.iter().any(|one| one.timeline == cluster.timeline) {
            all.push(&own);
        }
        let wanted = |one: &&&History| timeline.is_none_or(|timeline| one.timeline == timeline);
        let history = all.iter().filter(wanted).max_by_key(|one| one.timeline)?;
        Some(Line::of(backup, cluster, history, &self.segments))
    }

    /// Returns a history that cannot be read, and that may be the one of the line that is wanted: that of `timeline`, or,
    /// if none is said, one of a later timeline than the newest that is known, `found`.
    pub(crate) fn hidden(&self, found: Option<u32>, timeline: Option<u32>) -> Option<&UnreadableHistory> {
        let is_meant = |one: &&UnreadableHistory| match timeline {
            Some(timeline) => found.is_none() && one.name.timeline == timeline,
            None => found < Some(one.name.timeline),
        };
        self.unreadable.iter().find(is_meant)
    }

    /// Returns the first segment of each gap between two archived segments of one timeline.
    pub fn missing(&self) -> Vec<Name> {
        let pairs = self.stretches.windows(2);
        let gap = |pair: &[Stretch]| match pair {
            [one, next] if one.last.timeline == next.first.timeline => {
                let history = History::alone(one.last.timeline);
                Some(named(&history, one.last.number(self.segment_bytes) + 1, self.segment_bytes))
            }
            _ => None,
        };
        pairs.filter_map(gap).collect()
    }
}
