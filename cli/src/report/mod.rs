//! `understudy report`: what helps to find a fault, in one archive. What cannot be read is named in it and does not end it; what
//! is secret does not come in (`strike`). It reads, and changes nothing.

mod collect;
mod strike;

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use time::OffsetDateTime;
use time::macros::format_description;

use crate::arguments::ReportOptions;
use crate::kubernetes::Kubernetes;
use collect::{Bundle, collect};

pub(crate) async fn run(options: ReportOptions) -> anyhow::Result<ExitCode> {
    let kubernetes = Kubernetes::reach(&options.reach).await?;
    let now = OffsetDateTime::now_utc();
    let bundle = collect(&kubernetes, options.name.as_deref(), &options.operator_namespace, now).await?;
    let moment = now.format(format_description!("[year][month][day]-[hour][minute][second]"))?;
    let path =
        options.output.unwrap_or_else(|| PathBuf::from(format!("understudy-{}-{moment}.tar.gz", bundle.cluster)));
    let unwritten = || format!("{} cannot be written", path.display());
    // A person's file is not written over, and not everybody's to read.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).with_context(unwritten)?;
    let folder = format!("understudy-{}", bundle.cluster);
    pack(&bundle, &folder, now, file).with_context(unwritten)?;
    for problem in &bundle.problems {
        eprintln!("not in it: {problem}");
    }
    println!("{}", path.display());
    Ok(ExitCode::SUCCESS)
}

fn pack(bundle: &Bundle, folder: &str, now: OffsetDateTime, to: impl Write) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(to, Compression::default()));
    for (name, text) in &bundle.files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(now.unix_timestamp()).unwrap_or(0));
        archive.append_data(&mut header, format!("{folder}/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.flush()
}

#[cfg(test)]
mod tests;
