//! How clients come in, with what the schema cannot say checked again.

use std::time::Duration;

use super::{InvalidCluster, amounts, times};
use crate::spec::{
    BackupConnections, ClientCertificates, ClientTls, Clients, Plaintext, SaslMechanism, Service, ServiceType,
};

/// The broker takes no longer ones.
const MAX_MESSAGE_SIZE: u64 = 512 << 20;
const MAX_CONNECTIONS: u64 = 1 << 20;
const MAX_CHANNELS: u64 = 65_535;
/// A day: longer than anybody works at one message.
const MAX_CONSUMER_TIMEOUT: Duration = Duration::from_secs(86_400);
const MAX_LOGIN_DELAY: Duration = Duration::from_secs(30);
const MAX_HOST_NAME_BYTES: usize = 253;
const AMQP_PORT: u16 = 5672;
const AMQPS_PORT: u16 = 5671;

/// What is absent is the broker's own default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    pub backup_connections: BackupConnections,
    pub tls: Option<ClientTls>,
    /// Whether AMQP without encryption is served.
    pub plaintext: bool,
    pub max_connections: Option<u64>,
    pub max_channels_per_connection: Option<u64>,
    /// Bytes.
    pub max_message_size: Option<u64>,
    /// Zero: there is none.
    pub consumer_timeout: Option<Duration>,
    pub login_failure_delay: Option<Duration>,
    /// Empty: all.
    pub sasl_mechanisms: Vec<SaslMechanism>,
    pub sasl_tls_only: Vec<SaslMechanism>,
}

/// The failover Service's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServicePorts {
    pub amqp: u16,
    pub amqps: u16,
}

pub(super) fn parse(clients: &Clients) -> Result<ClientSettings, InvalidCluster> {
    let plaintext = clients.plaintext == Plaintext::Serve;
    match &clients.tls {
        None if !plaintext => return Err(InvalidCluster::NoListener),
        Some(tls) if tls.secret_name.is_some() && tls.issuer.is_some() => return Err(InvalidCluster::TwoCertificates),
        Some(tls) if tls.client_certificates == ClientCertificates::Required && tls.client_authority.is_none() => {
            return Err(InvalidCluster::NoClientAuthority);
        }
        _ => {}
    }
    if let Some(name) = clients.tls.iter().flat_map(|tls| &tls.dns_names).find(|name| !is_host_name(name)) {
        return Err(InvalidCluster::HostName(name.chars().take(80).collect()));
    }
    let max_message_size = match &clients.max_message_size {
        None => None,
        Some(amount) => {
            const FIELD: &str = "spec.clients.maxMessageSize";
            let size = amounts::parse_amount(FIELD, amount)?.whole();
            Some(in_range(FIELD, size, 1, MAX_MESSAGE_SIZE)?)
        }
    };
    let time = |field, text: &Option<String>, most| {
        text.as_ref().map(|text| times::parse(field, text, Duration::ZERO, most)).transpose()
    };
    let count = |field, count: Option<i32>, most| {
        count.map(|count| in_range(field, u64::try_from(count).unwrap_or(0), 1, most)).transpose()
    };
    Ok(ClientSettings {
        backup_connections: clients.backup_connections,
        tls: clients.tls.clone(),
        plaintext,
        max_connections: count("spec.clients.maxConnections", clients.max_connections, MAX_CONNECTIONS)?,
        max_channels_per_connection: count(
            "spec.clients.maxChannelsPerConnection",
            clients.max_channels_per_connection,
            MAX_CHANNELS,
        )?,
        max_message_size,
        consumer_timeout: time("spec.clients.consumerTimeout", &clients.consumer_timeout, MAX_CONSUMER_TIMEOUT)?,
        sasl_mechanisms: clients.sasl_mechanisms.clone(),
        sasl_tls_only: clients.sasl_tls_only.clone(),
        login_failure_delay: time("spec.clients.loginFailureDelay", &clients.login_failure_delay, MAX_LOGIN_DELAY)?,
    })
}

pub(super) fn parse_service(service: &Service) -> Result<ServicePorts, InvalidCluster> {
    if service.external_traffic_policy.is_some() && service.kind == ServiceType::ClusterIp {
        let types = "NodePort and LoadBalancer";
        return Err(InvalidCluster::ServiceField { field: "externalTrafficPolicy", types });
    }
    let balanced = [
        ("loadBalancerClass", service.load_balancer_class.is_some()),
        ("loadBalancerSourceRanges", !service.load_balancer_source_ranges.is_empty()),
    ];
    if let Some((field, _)) =
        balanced.into_iter().find(|(_, given)| *given && service.kind != ServiceType::LoadBalancer)
    {
        return Err(InvalidCluster::ServiceField { field, types: "LoadBalancer" });
    }
    let port = |field, port: Option<i32>, default| match port {
        None => Ok(default),
        Some(port) => u16::try_from(port).ok().filter(|port| *port > 0).ok_or(InvalidCluster::Range {
            field,
            value: port.to_string(),
            least: 1,
            most: 65_535,
        }),
    };
    let ports = ServicePorts {
        amqp: port("spec.service.amqpPort", service.amqp_port, AMQP_PORT)?,
        amqps: port("spec.service.amqpsPort", service.amqps_port, AMQPS_PORT)?,
    };
    if ports.amqp == ports.amqps {
        return Err(InvalidCluster::SamePort(ports.amqp));
    }
    Ok(ports)
}

pub(super) fn in_range(field: &'static str, value: u64, least: u64, most: u64) -> Result<u64, InvalidCluster> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(InvalidCluster::Range { field, value: value.to_string(), least, most })
    }
}

/// Letters, digits, hyphens and dots; a first label may be `*`.
fn is_host_name(name: &str) -> bool {
    let labels = name.strip_prefix("*.").unwrap_or(name).split('.');
    let plain = |label: &str| {
        let inside = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        inside && !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= MAX_HOST_NAME_BYTES && labels.into_iter().all(plain)
}
