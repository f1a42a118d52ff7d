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
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            bail!("waited {} s in vain for {what}; last: {last}", within.as_secs_f32());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use anyhow::{anyhow, ensure};

    use super::*;

    #[tokio::test]
    async fn it_looks_until_the_condition_holds() {
        let mut looks = 0;
        let found = eventually("three looks", Duration::from_secs(60), async || {
            looks += 1;
            ensure!(looks == 3, "{looks} looks");
            Ok("found")
        });
        assert_eq!(found.await.unwrap(), "found");
    }

    #[tokio::test]
    async fn the_error_says_what_was_waited_for_and_what_was_seen_last() {
        let never = eventually("the moon", Duration::from_millis(1), async || Err::<(), _>(anyhow!("only clouds")));
        let error = never.await.unwrap_err().to_string();
        assert!(error.contains("in vain for the moon") && error.contains("only clouds"), "{error}");
    }

    #[tokio::test]
    async fn a_look_that_hangs_ends_with_the_deadline() {
        let hanging = eventually("an answer", Duration::from_millis(1), async || pending::<Result<()>>().await);
        assert!(hanging.await.unwrap_err().to_string().contains("for an answer"));
    }
}
