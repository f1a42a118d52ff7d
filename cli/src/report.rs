pub(crate) async fn run(_: crate::arguments::ReportOptions) -> anyhow::Result<std::process::ExitCode> {
    anyhow::bail!("not yet")
}
