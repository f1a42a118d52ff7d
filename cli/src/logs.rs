pub(crate) async fn run(_: crate::arguments::LogsOptions) -> anyhow::Result<std::process::ExitCode> {
    anyhow::bail!("not yet")
}
