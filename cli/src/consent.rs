//! Asking whoever sits there before something is done that cannot be undone.

use std::io::{IsTerminal, Write};

use anyhow::ensure;

/// `question`: with a question mark, answered by y or yes. `otherwise`: what to do where nobody sits at a terminal.
///
/// # Errors
/// If the answer is no, or nobody can be asked: then nothing may be done.
pub(crate) fn ask(question: &str, otherwise: &str) -> anyhow::Result<()> {
    ensure!(std::io::stdin().is_terminal(), "{otherwise}");
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "nothing was done");
    Ok(())
}
