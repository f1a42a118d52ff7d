//! Waiting for a condition, with a deadline that says what was waited for.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a condition is looked at. An API server on a shared machine answers several tests' worth of this.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Looks until `look` succeeds. An error means "not yet"; the last one is in the error after the deadline.
///
/// # Errors
/// If that takes longer than `within`.
pub async fn eventually<T>(
    what: impl Display,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    let mut last = "it was never looked at".to_owned();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => last = format!("{error:#}"),
            Err(_) => bail!("waited {} s in vain for {what}; last: {last}", within.as_secs_f32()),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
