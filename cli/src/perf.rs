pub(crate) async fn run(_: crate::arguments::PerfOptions) -> anyhow::Result<std::process::ExitCode> {
    anyhow::bail!("not yet")
}
