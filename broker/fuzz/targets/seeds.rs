//! Writes what the fuzzer begins with: seeds DIRECTORY.

// What the counters call.
use libfuzzer_sys as _;

fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).unwrap_or_else(|| "corpus".into());
    understudy_fuzz::write_seeds(directory.as_ref())
}
