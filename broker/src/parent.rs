//! `--exit-with-parent`: a broker of `understudy dev` does not outlive it, however it ends.

use std::time::Duration;

/// How often the parent is looked at: a broker without its supervisor is harmless for so long.
const INTERVAL: Duration = Duration::from_millis(200);

/// Ends this process when the one that started it is gone (then another process has become the parent).
pub(crate) fn exit_when_parent_ends() {
    let parent = std::os::unix::process::parent_id();
    std::thread::spawn(move || {
        loop {
            if std::os::unix::process::parent_id() != parent {
                tracing::info!("the supervising process has ended");
                std::process::exit(0);
            }
            std::thread::sleep(INTERVAL);
        }
    });
}
