//! The operator's command line and environment.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use clap::Parser;

#[derive(Clone, Debug, Parser)]
#[command(name = "understudy-operator", about = "Makes broker clusters of BrokerCluster objects, and elects primaries")]
pub struct Config {
    /// Image of brokers whose spec names none.
    #[arg(long, env = "UNDERSTUDY_BROKER_IMAGE", default_value = "understudy/broker:dev")]
    pub broker_image: String,
    /// Look after this namespace only; all of them if absent.
    #[arg(long, env = "UNDERSTUDY_NAMESPACE")]
    pub namespace: Option<String>,
    /// This operator's pod, as the holder of the operators' Lease.
    #[arg(long, env = "POD_NAME", hide = true)]
    pub own_name: Option<String>,
    /// The namespace that this operator runs in: its Lease is there, and NetworkPolicies let it through.
    #[arg(long, env = "POD_NAMESPACE", hide = true)]
    pub own_namespace: Option<String>,
    /// Where `/healthz` and `/metrics` are served.
    #[arg(long, env = "UNDERSTUDY_HTTP_LISTEN", default_value = "0.0.0.0:8080")]
    pub http_listen: SocketAddr,
    /// For tests: this process ends right after so many writes to the API server, as if it were killed there.
    #[arg(long, env = "UNDERSTUDY_STOP_AFTER_WRITES", hide = true)]
    pub stop_after_writes: Option<NonZeroU32>,
}
