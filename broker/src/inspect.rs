//! `understudy-broker inspect DIR`: its command line, and what the journal's inspection found, printed for people or as JSON.
//! It judges nothing itself, and never touches the directory.

use std::ffi::OsString;
use std::fmt::{self, Display};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use understudy_journal::inspect::{
    CheckpointSeen, Damage, DamageKind, Depth, Inspection, ReadOnlyDir, SegmentRole, SegmentSeen, StoreSeen, User,
    inspect,
};

/// The word after which the command line is this one's.
pub const INSPECT: &str = "inspect";

const DAMAGED: u8 = 1;

/// As for a command line that makes no sense.
const NO_VERDICT: u8 = 2;

/// Says what is in a broker's data directory, and what is damaged. Changes nothing, and works beside a running broker.
///
/// Ends with 0 if a broker would open the directory without damage, with 1 if something is damaged, with 2 if it is not a
/// broker's data directory or cannot be read at all.
#[derive(Debug, Parser)]
#[command(name = "understudy-broker inspect", bin_name = "understudy-broker inspect", version)]
struct InspectArguments {
    /// The data directory.
    dir: PathBuf,
    /// Read and check every frame of every file, not only what a broker reads to open it.
    #[arg(long)]
    verify: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs with the process's arguments, from the word `inspect` on.
pub fn run_inspect(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let given = InspectArguments::parse_from(arguments);
    let dir = ReadOnlyDir::new(&given.dir);
    let depth = if given.verify { Depth::Everything } else { Depth::Opening };
    let started = Instant::now();
    let found = match inspect(&dir, depth) {
        Ok(found) => found,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(NO_VERDICT);
        }
    };
    let report = Report { found: &found, user: dir.user(), took: started.elapsed() };
    let text = if given.json { format!("{:#}\n", report.json()) } else { report.to_string() };
    // Who closes the pipe has read enough.
    _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::from(if found.damage.is_empty() { 0 } else { DAMAGED })
}

struct Report<'a> {
    found: &'a Inspection,
    user: User,
    took: Duration,
}

impl Report<'_> {
    fn bytes_per_second(&self) -> u64 {
        (self.found.bytes_read as f64 / self.took.as_secs_f64().max(1e-6)) as u64
    }

    fn json(&self) -> Value {
        let found = self.found;
        let user = match self.user {
            User::Nobody => Value::Null,
            User::Process(pid) => json!({"pid": pid, "certain": true}),
            User::Perhaps(pid) => json!({"pid": pid, "certain": false}),
        };
        json!({
            "place": found.place,
            "store": found.store.map(|store| json!({
                "id": store.id.to_string(),
                "known_epoch": store.known_epoch.0,
                "generation": store.generation,
                "version": store.version.0,
            })),
            "used_by": user,
            "last": found.last.map(|last| json!({"epoch": last.epoch.0, "index": last.index.0})),
            "committed": found.committed.0,
            "checkpoint": found.checkpoint.map(|checkpoint| checkpoint_json(&checkpoint)),
            "segments": found.segments.iter().map(segment_json).collect::<Vec<_>>(),
            "torn_tail": found.cut.as_ref().map(|cut| json!({
                "file": cut.segment,
                "offset": cut.offset,
                "bytes": cut.bytes,
                "reason": cut.reason,
            })),
            "leftovers": found.leftovers.iter().map(|left| json!({
                "name": left.name,
                "bytes": left.bytes,
                "what": left.what,
                "removed_at_opening": left.is_removed_at_opening,
            })).collect::<Vec<_>>(),
            "damage": found.damage.iter().map(damage_json).collect::<Vec<_>>(),
            "verified": found.depth == Depth::Everything,
            "bytes": found.bytes(),
            "bytes_read": found.bytes_read,
            "bytes_per_second": self.bytes_per_second(),
            "live_messages": found.live_messages(),
        })
    }
}

fn checkpoint_json(seen: &CheckpointSeen) -> Value {
    json!({
        "sync_point": {"epoch": seen.sync_point.epoch.0, "index": seen.sync_point.index.0},
        "floor": seen.floor.0,
        "bytes": seen.bytes,
        "queues": seen.queues,
        "exchanges": seen.exchanges,
        "bindings": seen.bindings,
        "messages": seen.messages,
        "message_bytes": seen.message_bytes,
        "held": seen.held,
        "log_start": seen.log_start,
        "first_record": seen.first_record.0,
    })
}

fn segment_json(seen: &SegmentSeen) -> Value {
    json!({
        "name": seen.name,
        "kind": role(seen.role),
        "first": seen.range.map(|(first, _)| first.0),
        "last": seen.range.map(|(_, last)| last.0),
        "bytes": seen.bytes,
        "frames": seen.counts.map(|counts| counts.frames()),
        "records": seen.counts.map(|counts| counts.records),
        "base_pieces": seen.counts.map(|counts| counts.pieces),
        "marks": seen.counts.map(|counts| counts.marks),
        "messages": seen.counts.map(|counts| counts.messages),
        "live": seen.live.map(|live| live.messages),
        "live_bytes": seen.live.map(|live| live.bytes),
        "share_live": seen.share_live(),
        "lost": seen.lost,
        "removed_meanwhile": seen.gone,
    })
}

fn damage_json(damage: &Damage) -> Value {
    let kind = match damage.kind {
        DamageKind::Bytes => "bytes",
        DamageKind::Missing => "missing",
        DamageKind::Newer => "newer",
        DamageKind::Unreadable => "unreadable",
    };
    json!({"file": damage.file, "offset": damage.offset, "kind": kind, "reason": damage.reason})
}

fn role(role: SegmentRole) -> &'static str {
    match role {
        SegmentRole::Log => "log",
        SegmentRole::Kept => "kept",
        SegmentRole::KeptLog => "log, kept",
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store(f)?;
        self.checkpoint(f)?;
        self.segments(f)?;
        self.leftovers(f)?;
        self.damage(f)?;
        self.summary(f)
    }
}

impl Report<'_> {
    fn store(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found;
        match found.store {
            Some(store) => {
                writeln!(f, "store {} in {}", store.id, found.place)?;
                let StoreSeen { known_epoch, generation, version, .. } = store;
                write!(f, "  knows epoch {known_epoch} and version {version} of the cluster, generation {generation}")?;
            }
            None => {
                writeln!(f, "a store in {}", found.place)?;
                write!(f, "  whose it is cannot be told")?;
            }
        }
        match found.last {
            Some(last) if last.index.0 > 0 => {
                writeln!(f, "; ends at record {last}, committed to {} at least", found.committed.min(last.index))?;
            }
            Some(_) => writeln!(f, "; holds no record")?,
            None => writeln!(f)?,
        }
        match self.user {
            User::Nobody => writeln!(f, "  nobody uses it, as far as this process can see"),
            User::Process(pid) => writeln!(f, "  in use by process {pid}: this is what it had written a moment ago"),
            User::Perhaps(pid) => writeln!(f, "  process {pid} took it last, and may use it still"),
        }
    }

    fn checkpoint(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(seen) = self.found.checkpoint else {
            let is_damaged = self.found.damage.iter().any(|damage| damage.file == "checkpoint");
            return writeln!(f, "\n{}", if is_damaged { "the checkpoint is damaged" } else { "no checkpoint yet" });
        };
        let CheckpointSeen { sync_point, floor, log_start, first_record, queues, exchanges, bindings, .. } = seen;
        writeln!(
            f,
            "\ncheckpoint as of record {sync_point}, {} long; the log cannot be cut below {floor}",
            size(seen.bytes)
        )?;
        writeln!(
            f,
            "  names {} messages of {}, in {} places of queues",
            seen.messages,
            size(seen.message_bytes),
            seen.held
        )?;
        writeln!(f, "  {queues} queues, {exchanges} exchanges, {bindings} bindings")?;
        writeln!(f, "  the log begins with segment {log_start:08x}, record {first_record}")
    }

    fn segments(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = ["segment", "kind", "indexes", "size", "frames", "records", "pieces", "marks", "live", "share"];
        let rows: Vec<[String; 10]> = self.found.segments.iter().map(cells).collect();
        let mut widths = titles.map(str::len);
        for row in &rows {
            widths.iter_mut().zip(row).for_each(|(width, cell)| *width = cell.len().max(*width));
        }
        writeln!(f)?;
        line(f, &titles, &widths)?;
        for (row, seen) in rows.iter().zip(&self.found.segments) {
            line(f, &row.each_ref().map(String::as_str), &widths)?;
            if seen.lost > 0 {
                writeln!(f, "  {} live messages were not found in it", seen.lost)?;
            }
            if seen.gone {
                writeln!(f, "  the broker has removed it meanwhile")?;
            }
        }
        let are_some_unread = self.found.segments.iter().any(|seen| seen.counts.is_none() && !seen.gone);
        if are_some_unread && self.found.depth == Depth::Opening {
            writeln!(f, "-: a broker does not read this to open the store; --verify does")?;
        }
        Ok(())
    }

    fn leftovers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, left) in self.found.leftovers.iter().enumerate() {
            if at == 0 {
                writeln!(f, "\nfiles that do not count")?;
            }
            match left.is_removed_at_opening {
                true => writeln!(
                    f,
                    "  {}, {}: {}; the next start of a broker removes it",
                    left.name,
                    size(left.bytes),
                    left.what
                )?,
                false => writeln!(f, "  {}: {}; it stays", left.name, left.what)?,
            }
        }
        Ok(())
    }

    fn damage(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cut) = &self.found.cut {
            let what = match self.user {
                User::Nobody => "was never reported durable; the next start of a broker cuts it off",
                User::Process(_) | User::Perhaps(_) => "is being written",
            };
            let (segment, offset, bytes) = (&cut.segment, cut.offset, size(cut.bytes));
            writeln!(f, "\ntorn tail: {segment} from byte {offset}, {bytes}: {what} ({})", cut.reason)?;
        }
        for (at, Damage { file, offset, reason, .. }) in self.found.damage.iter().enumerate() {
            if at == 0 {
                writeln!(f, "\ndamage")?;
            }
            writeln!(f, "  {file} at byte {offset}: {reason}")?;
        }
        Ok(())
    }

    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found;
        let read = match found.depth {
            Depth::Opening => "read, what an opening reads",
            Depth::Everything => "read and checked, all that counts",
        };
        let (bytes, rate) = (size(found.bytes_read), size(self.bytes_per_second()));
        writeln!(f, "\n{bytes} {read}, in {:.2} s: {rate} a second", self.took.as_secs_f64())?;
        write!(f, "{} segments, {} bytes, ", found.segments.len(), found.bytes())?;
        match found.live_messages() {
            Some(live) => write!(f, "{live} live messages, ")?,
            None => write!(f, "live messages not counted without a checkpoint, ")?,
        }
        match found.damage.len() {
            0 => writeln!(f, "no damage"),
            1 => writeln!(f, "1 place is damaged"),
            places => writeln!(f, "{places} places are damaged"),
        }
    }
}

fn cells(seen: &SegmentSeen) -> [String; 10] {
    let number = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    let counts = seen.counts;
    [
        seen.name.clone(),
        role(seen.role).to_owned(),
        seen.range.map_or("none".to_owned(), |(first, last)| format!("{first}..{last}")),
        size(seen.bytes),
        number(counts.map(|counts| counts.frames())),
        number(counts.map(|counts| counts.records)),
        number(counts.map(|counts| counts.pieces)),
        number(counts.map(|counts| counts.marks)),
        seen.live.map_or("?".to_owned(), |live| live.messages.to_string()),
        seen.share_live().map_or("?".to_owned(), |share| format!("{:.0}%", share * 100.0)),
    ]
}

/// Names and kinds to the left, numbers to the right.
fn line(f: &mut fmt::Formatter<'_>, cells: &[&str; 10], widths: &[usize; 10]) -> fmt::Result {
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let gap = if at == 0 { "" } else { "  " };
        match at {
            0 | 1 => write!(f, "{gap}{cell:<width$}")?,
            _ => write!(f, "{gap}{cell:>width$}")?,
        }
    }
    writeln!(f)
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use understudy_journal::inspect::{Counts, Leftover, Live};
    use understudy_record::version::ClusterVersion;
    use understudy_record::{Epoch, Index, Position, StoreId};

    use super::*;

    fn found() -> Inspection {
        let segment = SegmentSeen {
            name: "kept-00000002-00000001.seg".into(),
            role: SegmentRole::Kept,
            range: Some((Index(1), Index(90))),
            bytes: 2048,
            counts: None,
            live: Some(Live { messages: 7, bytes: 1024 }),
            lost: 0,
            gone: false,
        };
        let tail = SegmentSeen {
            name: "log-00000002-00000004.seg".into(),
            role: SegmentRole::Log,
            range: Some((Index(91), Index(120))),
            bytes: 3 << 20,
            counts: Some(Counts { records: 30, pieces: 2, marks: 12, messages: 20 }),
            live: None,
            lost: 0,
            gone: false,
        };
        let checkpoint = CheckpointSeen {
            bytes: 500,
            sync_point: Position::new(Epoch(3), Index(100)),
            floor: Index(104),
            log_start: 4,
            first_record: Index(91),
            queues: 2,
            exchanges: 1,
            bindings: 0,
            messages: 7,
            message_bytes: 744,
            held: 8,
        };
        let leftover = |name: &str, what, is_removed_at_opening| Leftover {
            name: name.into(),
            bytes: 64,
            what,
            is_removed_at_opening,
        };
        Inspection {
            place: "/data".into(),
            depth: Depth::Opening,
            store: Some(StoreSeen {
                id: StoreId(0xfeed),
                known_epoch: Epoch(3),
                generation: 2,
                version: ClusterVersion(2),
            }),
            checkpoint: Some(checkpoint),
            segments: vec![segment, tail],
            last: Some(Position::new(Epoch(3), Index(120))),
            committed: Index(119),
            cut: None,
            leftovers: vec![leftover("checkpoint.new", "a draft", true), leftover("notes", "not a broker's", false)],
            damage: Vec::new(),
            bytes_read: 2 << 20,
        }
    }

    #[test]
    fn people_read_a_page_that_ends_with_the_verdict() {
        let mut found = found();
        let shown = |found: &Inspection| {
            Report { found, user: User::Process(77), took: Duration::from_millis(500) }.to_string()
        };
        let expected = "\
store 0000000000000000000000000000feed in /data
  knows epoch 3 and version 2 of the cluster, generation 2; ends at record 3:120, committed to 119 at least
  in use by process 77: this is what it had written a moment ago

checkpoint as of record 3:100, 500 B long; the log cannot be cut below 104
  names 7 messages of 744 B, in 8 places of queues
  2 queues, 1 exchanges, 0 bindings
  the log begins with segment 00000004, record 91

segment                     kind  indexes     size  frames  records  pieces  marks  live  share
kept-00000002-00000001.seg  kept    1..90  2.0 KiB       -        -       -      -     7    50%
log-00000002-00000004.seg   log   91..120  3.0 MiB      32       30       2     12     ?      ?
-: a broker does not read this to open the store; --verify does

files that do not count
  checkpoint.new, 64 B: a draft; the next start of a broker removes it
  notes: not a broker's; it stays

2.0 MiB read, what an opening reads, in 0.50 s: 4.0 MiB a second
2 segments, 3148276 bytes, 7 live messages, no damage
";
        assert_eq!(shown(&found), expected);

        let damage = |offset, reason: &str| Damage {
            file: found.segments[0].name.clone(),
            offset,
            kind: DamageKind::Bytes,
            reason: reason.into(),
        };
        found.damage = vec![damage(64, "a wrong checksum"), damage(900, "another")];
        let text = shown(&found);
        assert!(text.contains("damage\n  kept-00000002-00000001.seg at byte 64: a wrong checksum\n"), "{text}");
        assert!(text.ends_with("7 live messages, 2 places are damaged\n"), "{text}");
    }

    #[test]
    fn machines_read_numbers_and_null_for_what_is_not_known() {
        let found = found();
        let json = Report { found: &found, user: User::Nobody, took: Duration::from_secs(1) }.json();
        assert_eq!(json["used_by"], Value::Null);
        assert_eq!(json["checkpoint"]["sync_point"], json!({"epoch": 3, "index": 100}));
        assert_eq!((&json["segments"][0]["frames"], &json["segments"][1]["frames"]), (&Value::Null, &json!(32)));
        assert_eq!((&json["segments"][0]["share_live"], &json["segments"][1]["live"]), (&json!(0.5), &Value::Null));
        assert_eq!(
            (&json["bytes"], &json["verified"], &json["damage"]),
            (&json!(3_148_276), &json!(false), &json!([]))
        );
    }

    #[test]
    fn sizes_have_units() {
        let table =
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (u64::MAX, "16777216.0 TiB")];
        for (bytes, expected) in table {
            assert_eq!(size(bytes), expected);
        }
    }
}
