//! `spec.clients`.

#![allow(unreachable_pub, reason = "KubeSchema derives a private twin of each type that carries its visibility")]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::Amount;

#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.saslTlsOnly) || has(self.tls)").message(
    "clients.saslTlsOnly without clients.tls: nobody could log in so"
), validation = Rule::new("!(has(self.plaintext) && self.plaintext == 'Refuse') || has(self.tls)").message(
    "clients.plaintext is Refuse and there is no clients.tls: no client could come in"
))]
pub struct Clients {
    /// What happens to a client that reaches a backup: `Relay`, its bytes go to the primary; `Refuse`, it is closed with a
    /// text that names the primary.
    #[serde(default)]
    pub backup_connections: BackupConnections,
    /// AMQP over TLS, at port 5671. If absent there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTls>,
    /// AMQP without encryption, at port 5672: `Serve` or `Refuse`.
    #[serde(default)]
    pub plaintext: Plaintext,
    /// Connections that one broker takes; one more is refused (530). If absent: 16384.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_connections: Option<i32>,
    /// Channels on one connection. If absent: 2047.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub max_channels_per_connection: Option<i32>,
    /// Largest message. If absent: 128Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_message_size: Option<Amount>,
    /// A channel that holds a delivery for longer than this without acknowledging it is closed (406), like `30m`; `0s`: never.
    /// Changes without a restart. If absent: 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    pub consumer_timeout: Option<String>,
    /// A refused login is answered after this time, like `1s`, at most `30s`. If absent: 1s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    pub login_failure_delay: Option<String>,
    /// Ways to log in. `EXTERNAL`, by a client's certificate, is offered only to clients that have shown one. If absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub sasl_mechanisms: Vec<SaslMechanism>,
    /// Those of them that are offered over TLS alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub sasl_tls_only: Vec<SaslMechanism>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "UPPERCASE")]
pub enum SaslMechanism {
    Plain,
    Amqplain,
    External,
}

impl SaslMechanism {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Amqplain => "AMQPLAIN",
            Self::External => "EXTERNAL",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum BackupConnections {
    #[default]
    Relay,
    Refuse,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Plaintext {
    #[default]
    Serve,
    Refuse,
}

/// The certificate that clients see. Brokers read it again when it changes, without a restart.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.secretName) && has(self.issuer))").message(
        "clients.tls takes secretName or issuer, or neither for a certificate of the operator's own authority"
    ),
    validation = Rule::new("!(has(self.clientCertificates) && self.clientCertificates == 'Required') || has(self.clientAuthority)").message(
        "clients.tls.clientCertificates is Required and there is no clients.tls.clientAuthority to judge them by"
    )
)]
pub struct ClientTls {
    /// A Secret with `tls.crt` and `tls.key`, in the cluster's namespace, that somebody else keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: Option<String>,
    /// cert-manager's: the operator makes a Certificate of the Services' names. Without it and without `secretName` the
    /// operator issues one of its own; the authority is in the Secret `NAME-client-tls` as `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<IssuerRef>,
    /// Names, beside those of the Services, that clients reach the brokers by, such as a load balancer's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub dns_names: Vec<String>,
    /// Authorities whose certificates clients may show, in PEM: a key, `ca.crt` if none is given, of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_authority: Option<SecretKeyRef>,
    /// Whether a client without a certificate is served. One that shows a wrong one never is.
    #[serde(default)]
    pub client_certificates: ClientCertificates,
    /// What of a client's certificate is its user's name, for the mechanism EXTERNAL.
    #[serde(default)]
    pub login_from: LoginFrom,
    /// Lowest version of TLS.
    #[serde(default)]
    pub min_version: TlsVersion,
}

/// Who signs, as cert-manager names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuerRef {
    /// The issuer's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// `Issuer` or `ClusterIssuer`, or another one's kind.
    #[serde(default = "default_issuer_kind")]
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// The API group of that kind.
    #[serde(default = "default_issuer_group")]
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
}

fn default_issuer_kind() -> String {
    "Issuer".into()
}

fn default_issuer_group() -> String {
    "cert-manager.io".into()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The Secret's name, in the cluster's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
    /// The key in it.
    #[serde(default = "default_authority_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn default_authority_key() -> String {
    "ca.crt".into()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ClientCertificates {
    #[default]
    Optional,
    Required,
}

impl ClientCertificates {
    /// As the broker's option has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum LoginFrom {
    #[default]
    CommonName,
    DistinguishedName,
    SanDns,
    SanEmail,
    SanUri,
}

impl LoginFrom {
    /// As the broker's option has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CommonName => "common-name",
            Self::DistinguishedName => "distinguished-name",
            Self::SanDns => "san-dns",
            Self::SanEmail => "san-email",
            Self::SanUri => "san-uri",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum TlsVersion {
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    #[serde(rename = "1.3")]
    Tls13,
}

impl TlsVersion {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        }
    }
}
