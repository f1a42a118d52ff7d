//! What the operator and the command line ask of a broker: its `Control` service, one call at a time.

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use understudy_proto as wire;
use understudy_proto::control_client::ControlClient;

use super::{Broker, PATIENCE, loopback};

impl Broker {
    /// Asks it to give its role to `to`, or to whoever is furthest; the new primary and its epoch, or how it said no.
    pub(crate) fn hand_over(&self, epoch: u64, to: &str) -> Result<(String, u64), String> {
        let request = wire::HandOverRequest { epoch, to: to.to_owned() };
        let reply = self.control(async |mut control| control.hand_over(request).await);
        reply.map(|reply| (reply.primary, reply.epoch)).map_err(|status| status.message().to_owned())
    }

    /// Keeps it out, or lets it in again: its process ends.
    pub(crate) fn fence(&self, fenced: bool) {
        self.control(async |mut control| control.fence(wire::FenceRequest { fenced }).await).unwrap();
    }

    /// What it says of itself now.
    pub(crate) fn status(&self) -> Result<wire::Status, tonic::Status> {
        self.control(async |mut control| {
            let mut stream = control.watch(wire::WatchRequest { interval_ms: 0 }).await?;
            let first =
                stream.get_mut().message().await?.ok_or_else(|| tonic::Status::unavailable("it said nothing"))?;
            Ok(tonic::Response::new(first))
        })
    }

    fn control<T>(
        &self,
        call: impl AsyncFnOnce(ControlClient<Channel>) -> Result<tonic::Response<T>, tonic::Status>,
    ) -> Result<T, tonic::Status> {
        let read = |file: &str| std::fs::read(self.settings.tls.join(file)).unwrap();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read("ca.crt")))
            .identity(Identity::from_pem(read("tls.crt"), read("tls.key")))
            .domain_name("localhost");
        let endpoint = Endpoint::from_shared(format!("https://{}", loopback(self.settings.grpc))).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let channel = endpoint.tls_config(tls).unwrap().connect_lazy();
            let answer = tokio::time::timeout(PATIENCE, call(ControlClient::new(channel))).await;
            let answer = answer.map_err(|_| tonic::Status::deadline_exceeded("no answer"))??;
            Ok(answer.into_inner())
        })
    }
}
