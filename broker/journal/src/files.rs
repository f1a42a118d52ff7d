//! What in a directory is what: which files are a broker's by their names, which of them count for its store, what is left
//! over, and what has to be there and is not. It reads no frame and changes nothing.

use crate::Storage;
use crate::checkpoint::{self, CHECKPOINT_DRAFT_NAME, CHECKPOINT_NAME, Entry, FindError, Found};
use crate::dir::LOCK_NAME;
use crate::error::{Failure, OpenError};
use crate::segment::{SEGMENT_HEADER_BYTES, SegmentId, SegmentKind};
use crate::store::{STORE_DRAFT_NAME, STORE_NAME, StoreMeta};

/// What a file is by its name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileName {
    Lock,
    Store,
    StoreDraft,
    Checkpoint,
    CheckpointDraft,
    Segment(SegmentId),
    /// A file system's own.
    LostAndFound,
    /// Not a broker's.
    Foreign,
}

impl FileName {
    pub(crate) fn of(name: &str) -> Self {
        match name {
            LOCK_NAME => Self::Lock,
            STORE_NAME => Self::Store,
            STORE_DRAFT_NAME => Self::StoreDraft,
            CHECKPOINT_NAME => Self::Checkpoint,
            CHECKPOINT_DRAFT_NAME => Self::CheckpointDraft,
            "lost+found" => Self::LostAndFound,
            name => SegmentId::from_name(name).map_or(Self::Foreign, Self::Segment),
        }
    }

    pub(crate) fn is_in(self, names: &[String]) -> bool {
        names.iter().any(|name| Self::of(name) == self)
    }
}

/// What a store's checkpoint says.
pub(crate) enum Checkpoint {
    None,
    /// There is one, and nobody knows what it says.
    Damaged,
    InForce(Found),
}

impl Checkpoint {
    /// Never `Damaged`: that it is one is for the caller to make of the error.
    pub(crate) fn find(storage: &dyn Storage, meta: StoreMeta, names: &[String]) -> Result<Self, FindError> {
        if !FileName::Checkpoint.is_in(names) {
            return Ok(Self::None);
        }
        let found = checkpoint::find(storage, meta.id)?;
        // One of another generation was left by a catch-up that put a new log in force.
        Ok(if found.manifest.generation == meta.generation { Self::InForce(found) } else { Self::None })
    }

    pub(crate) fn in_force(&self) -> Option<&Found> {
        match self {
            Self::InForce(found) => Some(found),
            Self::None | Self::Damaged => None,
        }
    }
}

/// The files of a store's directory, by what they are to it.
pub(crate) struct Files {
    /// The log's segments, in order.
    pub(crate) log: Vec<SegmentId>,
    /// Segments that are there for their messages, in the order of these, as the checkpoint names them, there or not; all
    /// that may be such without an entry if the checkpoint is damaged.
    pub(crate) kept: Vec<(SegmentId, Option<Entry>)>,
    /// Of earlier generations, of a checkpoint that never came into force, of one that did and left them.
    pub(crate) leftovers: Vec<Leftover>,
    /// Names of what is not a broker's: it is left alone.
    pub(crate) foreign: Vec<String>,
    /// The number of the next kept segment.
    pub(crate) next_kept: u32,
    generation: u32,
    /// The number of the log's first segment; `None` if a damaged checkpoint hides it.
    log_start: Option<u32>,
}

/// A broker's file that does not count: an opening removes it.
pub(crate) struct Leftover {
    pub(crate) name: String,
    /// For people.
    pub(crate) what: &'static str,
}

impl Files {
    pub(crate) fn sort(names: &[String], meta: StoreMeta, checkpoint: &Checkpoint) -> Self {
        let is_damaged = matches!(checkpoint, Checkpoint::Damaged);
        let manifest = checkpoint.in_force().map(|found| &found.manifest);
        let entries: &[Entry] = manifest.map_or(&[], |manifest| &manifest.kept);
        let log_start = manifest.map_or(0, |manifest| manifest.log_start);
        let mut files = Self {
            log: Vec::new(),
            // By name, not as listed: one that is missing is missed.
            kept: entries.iter().map(|entry| (entry.id, Some(*entry))).collect(),
            leftovers: Vec::new(),
            foreign: Vec::new(),
            next_kept: 0,
            generation: meta.generation,
            log_start: (!is_damaged).then_some(log_start),
        };
        for name in names {
            let what = match FileName::of(name) {
                FileName::Lock | FileName::Store | FileName::LostAndFound => continue,
                FileName::Foreign => {
                    files.foreign.push(name.clone());
                    continue;
                }
                FileName::StoreDraft => "a new file `store` that has not taken its place",
                FileName::CheckpointDraft => "a checkpoint that is not in force: being written, or given up",
                FileName::Checkpoint if matches!(checkpoint, Checkpoint::None) => {
                    "a checkpoint of another log than the one in force"
                }
                FileName::Checkpoint => continue,
                FileName::Segment(id) if id.generation < meta.generation => {
                    "of an earlier log, which a catch-up has replaced"
                }
                FileName::Segment(id) if id.generation > meta.generation => "of a catch-up that is not complete",
                FileName::Segment(id) => {
                    if id.kind == SegmentKind::Kept {
                        files.next_kept = files.next_kept.max(id.sequence.saturating_add(1));
                    }
                    match id.kind {
                        SegmentKind::Log if id.sequence >= log_start => {
                            files.log.push(id);
                            continue;
                        }
                        _ if entries.iter().any(|entry| entry.id == id) => continue,
                        SegmentKind::Kept if is_damaged => {
                            files.kept.push((id, None));
                            continue;
                        }
                        SegmentKind::Log => "of the log before the checkpoint, which needs it no more",
                        SegmentKind::Kept => {
                            "messages for a checkpoint that is not in force: being written, given up, or replaced"
                        }
                    }
                }
            };
            files.leftovers.push(Leftover { name: name.clone(), what });
        }
        files.log.sort_unstable();
        files
    }

    /// What the log lacks, in order. A hole of any size is one place: its first segment is named.
    pub(crate) fn lacks(&self) -> impl Iterator<Item = Lack> + '_ {
        let mut expected = self.log_start;
        let holes = self.log.iter().filter_map(move |id| {
            let hole = expected.filter(|expected| *expected != id.sequence);
            expected = expected.and(Some(id.sequence.saturating_add(1)));
            hole.map(|hole| Lack::segment(SegmentId::log(self.generation, hole), "a later one is there"))
        });
        let start = SegmentId::log(self.generation, self.log_start.unwrap_or(0));
        holes.chain(self.log.is_empty().then(|| Lack::tail(start)))
    }
}

/// A segment, or the end of one, that has to be there and is not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    pub(crate) id: SegmentId,
    pub(crate) offset: u64,
    pub(crate) reason: String,
}

impl Lack {
    fn segment(id: SegmentId, why: &str) -> Self {
        Self { id, offset: 0, reason: format!("this segment is missing, but {why}") }
    }

    /// Of a log without a segment.
    pub(crate) fn tail(id: SegmentId) -> Self {
        Self::segment(id, "a store always has one")
    }

    pub(crate) fn named(id: SegmentId) -> Self {
        Self::segment(id, "the checkpoint names it")
    }

    /// Of a kept segment whose file has `len` bytes.
    pub(crate) fn end_of(entry: &Entry, len: u64) -> Option<Self> {
        let reason = || format!("it is cut off: the checkpoint knows it as {} bytes long", entry.len);
        (len < entry.len).then(|| Self { id: entry.id, offset: len, reason: reason() })
    }

    pub(crate) fn into_open_error(self, storage: &dyn Storage) -> OpenError {
        let Self { id, offset, reason } = self;
        OpenError::Damaged { place: storage.place(), segment: id.name(), offset, reason }
    }
}

/// Whether there is more in a segment than its header: a first start that was interrupted leaves one without a record.
pub(crate) fn has_frames(storage: &dyn Storage, name: &str) -> Result<bool, Failure> {
    Ok(len_of(storage, name)? > SEGMENT_HEADER_BYTES)
}

pub(crate) fn len_of(storage: &dyn Storage, name: &str) -> Result<u64, Failure> {
    let file = storage.open(name).map_err(Failure::of(storage, "open", name))?;
    file.len().map_err(Failure::of(storage, "measure", name))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use understudy_record::version::ClusterVersion;
    use understudy_record::{Epoch, Index, StoreId};

    use super::*;
    use crate::checkpoint::{Manifest, create_draft};
    use crate::sim::SimStorage;

    const META: StoreMeta =
        StoreMeta { id: StoreId(7), epoch: Epoch(1), generation: 2, flaw: None, version: ClusterVersion::FIRST };

    /// As found on a disk that has a checkpoint of `generation`, for a log from segment 3 on, with one kept segment of each
    /// kind, 100 bytes long.
    fn checkpoint(generation: u32) -> Checkpoint {
        let storage = SimStorage::new();
        let (file, offset) = create_draft(&storage, META.id, generation).expect("a draft");
        let entry = |id, first, last| Entry { id, first: Index(first), last: Index(last), len: 100 };
        let kept = vec![entry(SegmentId::kept(generation, 4), 1, 10), entry(SegmentId::log(generation, 1), 11, 20)];
        let manifest = Manifest { generation, log_start: 3, first_record: Index(21), kept };
        file.append(&mut [IoSlice::new(&manifest.encode(offset))]).expect("written");
        storage.rename(CHECKPOINT_DRAFT_NAME, CHECKPOINT_NAME).expect("renamed");
        Checkpoint::find(&storage, META, &[CHECKPOINT_NAME.to_owned()]).expect("found")
    }

    /// A directory with all that may be in one.
    fn names() -> Vec<String> {
        let log = |generation, sequences: &[u32]| -> Vec<SegmentId> {
            sequences.iter().map(|sequence| SegmentId::log(generation, *sequence)).collect()
        };
        let kept = [SegmentId::kept(1, 0), SegmentId::kept(2, 4), SegmentId::kept(2, 6)];
        let segments = [log(2, &[5, 4, 3, 2, 1]), log(1, &[9]), log(3, &[0]), kept.to_vec()].concat();
        let others = ["lock", "store", "store.new", "checkpoint", "checkpoint.new", "lost+found", "notes.txt"];
        segments.into_iter().map(SegmentId::name).chain(others.map(str::to_owned)).collect()
    }

    fn sequences(ids: &[SegmentId]) -> Vec<u32> {
        ids.iter().map(|id| id.sequence).collect()
    }

    fn left(files: &Files) -> Vec<&str> {
        files.leftovers.iter().map(|leftover| &*leftover.name).collect()
    }

    const ALWAYS_LEFT: [&str; 3] =
        ["log-00000001-00000009.seg", "log-00000003-00000000.seg", "kept-00000001-00000000.seg"];

    #[test]
    fn a_checkpoint_says_where_the_log_begins_and_what_is_kept() {
        let files = Files::sort(&names(), META, &checkpoint(2));
        assert_eq!(sequences(&files.log), [3, 4, 5]);
        let kept: Vec<_> = files.kept.iter().map(|(id, entry)| (*id, entry.is_some())).collect();
        assert_eq!(kept, [(SegmentId::kept(2, 4), true), (SegmentId::log(2, 1), true)]);
        let before = ["log-00000002-00000002.seg"];
        let drafts = ["kept-00000002-00000006.seg", "store.new", "checkpoint.new"];
        assert_eq!(left(&files), [&before[..], &ALWAYS_LEFT, &drafts].concat());
        assert_eq!((files.next_kept, &*files.foreign), (7, &["notes.txt".to_owned()][..]));
        assert_eq!(files.lacks().next(), None);
    }

    #[test]
    fn without_a_checkpoint_of_this_log_all_of_it_counts() {
        let other = checkpoint(1);
        assert!(matches!(other, Checkpoint::None), "it is of the log before");
        let files = Files::sort(&names(), META, &other);
        assert_eq!((sequences(&files.log), files.kept.len()), (vec![1, 2, 3, 4, 5], 0));
        let kept = ["kept-00000002-00000004.seg", "kept-00000002-00000006.seg"];
        let others = ["store.new", "checkpoint", "checkpoint.new"];
        assert_eq!(left(&files), [&ALWAYS_LEFT[..], &kept, &others].concat());
        let lacks: Vec<_> = files.lacks().map(|lack| lack.id).collect();
        assert_eq!(lacks, [SegmentId::log(2, 0)]);
    }

    #[test]
    fn what_a_damaged_checkpoint_may_have_named_is_not_left_over() {
        let files = Files::sort(&names(), META, &Checkpoint::Damaged);
        assert_eq!(sequences(&files.log), [1, 2, 3, 4, 5]);
        assert_eq!(files.kept, [(SegmentId::kept(2, 4), None), (SegmentId::kept(2, 6), None)]);
        assert_eq!(left(&files), [&ALWAYS_LEFT[..], &["store.new", "checkpoint.new"]].concat());
        assert_eq!(files.lacks().next(), None, "nobody knows where the log begins");
    }

    #[test]
    fn each_hole_in_the_log_is_named_by_its_first_segment() {
        let names: Vec<_> = [2, 5, 6, 9].map(|sequence| SegmentId::log(2, sequence).name()).to_vec();
        let lacks = |names: &[String], checkpoint| {
            let files = Files::sort(names, META, &checkpoint);
            files.lacks().map(|lack| (lack.id.sequence, lack.reason)).collect::<Vec<_>>()
        };
        let hole = |sequence| (sequence, "this segment is missing, but a later one is there".to_owned());
        let empty = |sequence| (sequence, "this segment is missing, but a store always has one".to_owned());
        assert_eq!(lacks(&names, Checkpoint::None), [hole(0), hole(3), hole(7)]);
        assert_eq!(lacks(&names, checkpoint(2)), [hole(3), hole(7)]);
        assert_eq!(lacks(&[], Checkpoint::None), [empty(0)]);
        assert_eq!(lacks(&[], checkpoint(2)), [empty(3)]);
        assert_eq!(lacks(&[], Checkpoint::Damaged), [empty(0)]);
    }
}
