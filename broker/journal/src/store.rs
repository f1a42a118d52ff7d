//! The file `store`: whose directory this is, the highest epoch it knows (rule 2), which generation of the log is the
//! current one, whether that one is not to be counted on, and the highest version of the cluster that it knows. A few lines of
//! text with a checksum, replaced as a whole and durably. It is written only when the current generation's first segment exists,
//! so a store without it has lost something.

use std::io::IoSlice;

use understudy_record::version::ClusterVersion;
use understudy_record::{Epoch, Index, StoreId};

use crate::error::{Failure, OpenError};
use crate::storage::read_full;
use crate::{Storage, StorageFile};

pub(crate) const STORE_NAME: &str = "store";
pub(crate) const STORE_DRAFT_NAME: &str = "store.new";

const FORMAT: u32 = 1;
const TITLE: &str = "understudy store";

/// Far above what the lines need.
const MAX_BYTES: usize = 4096;

/// Why the log of a store's generation is not to be counted on: the store is whole again with the next generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Something in it cannot be read back.
    Unreadable,
    /// What the replica had made of it was not what the primary had, as this record showed. Its checkpoint may be wrong.
    Inconsistent(Index),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreMeta {
    pub(crate) id: StoreId,
    /// No record of a lower epoch's primary is taken any more.
    pub(crate) epoch: Epoch,
    pub(crate) generation: u32,
    pub(crate) flaw: Option<Flaw>,
    /// What it brought may stand in the log.
    pub(crate) version: ClusterVersion,
}

impl StoreMeta {
    fn encode(&self) -> String {
        let Self { id, epoch, generation, flaw, version } = self;
        // The last line is not there without need: a build that does not know it takes the one before for its own.
        let damaged = match flaw {
            None => "no".to_owned(),
            Some(Flaw::Unreadable) => "yes".to_owned(),
            Some(Flaw::Inconsistent(at)) => format!("yes\ninconsistent-at {at}"),
        };
        let lines = format!(
            "{TITLE}\nformat {FORMAT}\nid {id}\nepoch {epoch}\ngeneration {generation}\ndamaged {damaged}\nversion {version}\n"
        );
        format!("{lines}checksum {:08x}\n", crc32c::crc32c(lines.as_bytes()))
    }

    /// Replaces the file; durable on return.
    pub(crate) fn write(&self, storage: &dyn Storage) -> Result<(), Failure> {
        let failed = |action| Failure::of(storage, action, STORE_NAME);
        let file = storage.create(STORE_DRAFT_NAME).map_err(failed("create"))?;
        file.append(&mut [IoSlice::new(self.encode().as_bytes())]).map_err(failed("write"))?;
        file.sync_data().map_err(failed("sync"))?;
        storage.rename(STORE_DRAFT_NAME, STORE_NAME).map_err(failed("replace"))?;
        storage.sync_dir().map_err(failed("sync the directory of"))
    }

    pub(crate) fn read(storage: &dyn Storage) -> Result<Self, OpenError> {
        let file = storage.open(STORE_NAME).map_err(Failure::of(storage, "open", STORE_NAME))?;
        let bytes = read_some(&*file).map_err(Failure::of(storage, "read", STORE_NAME))?;
        decode(&bytes).map_err(|error| match error {
            DecodeError::Newer(found) => {
                OpenError::Newer { place: storage.place(), name: STORE_NAME.to_owned(), found, known: FORMAT }
            }
            DecodeError::Bad(reason) => OpenError::MetaDamaged {
                place: storage.place(),
                name: STORE_NAME.to_owned(),
                reason: reason.to_owned(),
            },
        })
    }
}

fn read_some(file: &dyn StorageFile) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; MAX_BYTES];
    let filled = read_full(file, &mut bytes, 0)?;
    bytes.truncate(filled);
    Ok(bytes)
}

#[derive(Debug, PartialEq, Eq)]
enum DecodeError {
    Newer(u32),
    Bad(&'static str),
}

fn decode(bytes: &[u8]) -> Result<StoreMeta, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::Bad("it is not text"))?;
    let body = text.strip_suffix('\n').and_then(|text| text.rsplit_once('\n'));
    let (lines, checksum) = body.ok_or(DecodeError::Bad("it has no checksum line"))?;
    let crc = crc32c::crc32c(&bytes[..=lines.len()]);
    if checksum != format!("checksum {crc:08x}") {
        return Err(DecodeError::Bad("its checksum is wrong"));
    }
    let mut lines = lines.lines();
    if lines.next() != Some(TITLE) {
        return Err(DecodeError::Bad("its first line is not this program's"));
    }
    let mut field = |name: &'static str| {
        let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.ok_or(DecodeError::Bad("a line is missing"))
    };
    let bad = DecodeError::Bad("a line does not say what it should");
    match field("format")?.parse() {
        Ok(FORMAT) => {}
        Ok(newer) => return Err(DecodeError::Newer(newer)),
        Err(_) => return Err(bad),
    }
    let parsed = (field("id")?.parse(), field("epoch")?.parse(), field("generation")?.parse());
    let damaged = field("damaged")?;
    // What came later is not in every file.
    let rest: Vec<&str> = lines.collect();
    let optional = |name: &str| rest.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let inconsistent_at = optional("inconsistent-at").map(str::parse).transpose();
    let flaw = match (damaged, inconsistent_at) {
        ("no", Ok(None)) => None,
        ("yes", Ok(None)) => Some(Flaw::Unreadable),
        ("yes", Ok(Some(at))) => Some(Flaw::Inconsistent(at)),
        _ => return Err(bad),
    };
    let version = match optional("version").map(str::parse) {
        Some(Ok(number)) => ClusterVersion(number),
        Some(Err(_)) => return Err(bad),
        None => ClusterVersion::FIRST, // a store of before there were versions
    };
    match parsed {
        (Ok(id), Ok(epoch), Ok(generation)) => Ok(StoreMeta { id, epoch, generation, flaw, version }),
        _ => Err(bad),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: StoreMeta =
        StoreMeta { id: StoreId(0xfeed), epoch: Epoch(12), generation: 3, flaw: None, version: ClusterVersion(2) };

    #[test]
    fn the_file_is_text_for_people() {
        expect_test::expect![[r#"
            understudy store
            format 1
            id 0000000000000000000000000000feed
            epoch 12
            generation 3
            damaged no
            version 2
            checksum 7e9b83bf
        "#]]
        .assert_eq(&META.encode());
        assert_eq!(decode(META.encode().as_bytes()), Ok(META));
        for flaw in [Flaw::Unreadable, Flaw::Inconsistent(Index(77))] {
            let flawed = StoreMeta { flaw: Some(flaw), ..META };
            assert_eq!(decode(flawed.encode().as_bytes()), Ok(flawed));
        }
        let flawed = StoreMeta { flaw: Some(Flaw::Inconsistent(Index(77))), ..META }.encode();
        assert!(flawed.contains("\ndamaged yes\ninconsistent-at 77\nversion 2\nchecksum "), "{flawed}");
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let whole = META.encode().into_bytes();
        for len in 0..whole.len() {
            assert!(decode(&whole[..len]).is_err(), "cut to {len} bytes");
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_store_of_before_there_were_versions_is_of_the_first() {
        let lines = format!("{TITLE}\nformat 1\nid {:032x}\nepoch 12\ngeneration 3\ndamaged no\n", 0xfeed);
        let text = format!("{lines}checksum {:08x}\n", crc32c::crc32c(lines.as_bytes()));
        assert_eq!(decode(text.as_bytes()), Ok(StoreMeta { version: ClusterVersion::FIRST, ..META }));
    }

    #[test]
    fn a_newer_format_is_named_as_such() {
        let lines = format!("{TITLE}\nformat 2\nid x\n");
        let text = format!("{lines}checksum {:08x}\n", crc32c::crc32c(lines.as_bytes()));
        assert_eq!(decode(text.as_bytes()), Err(DecodeError::Newer(2)));
    }
}
