//! How clients come in: listeners, TLS, ways to log in, and what one client or all of them may cost.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{ConfigError, millis};

/// Each costs a task and buffers.
const MOST_CONNECTIONS: usize = 1 << 20;

/// Nobody mistypes a password for longer, and a client that waits holds a connection.
const LONGEST_LOGIN_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(next_help_heading = "Clients")]
pub(super) struct ClientArguments {
    /// AMQP without encryption. The word none: there is only AMQP over TLS.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:5672")]
    amqp_listen: Listen,
    /// AMQP over TLS, as at 0.0.0.0:5671; none if absent.
    #[arg(long, value_name = "ADDRESS", requires_all = ["amqps_cert", "amqps_key"])]
    amqps_listen: Option<SocketAddr>,
    /// Certificate for --amqps-listen with the chain behind it, in PEM. Read again when it changes, like the two below.
    #[arg(long, value_name = "FILE", requires = "amqps_listen")]
    amqps_cert: Option<PathBuf>,
    /// Its private key, in PEM.
    #[arg(long, value_name = "FILE", requires = "amqps_listen")]
    amqps_key: Option<PathBuf>,
    /// Authorities whose certificates clients may show, in PEM. Without it none is asked for.
    #[arg(long, value_name = "FILE", requires = "amqps_listen")]
    amqps_client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is served. One that shows a wrong one never is.
    #[arg(long, value_enum, default_value_t = ClientCertificates::Optional, requires = "amqps_client_ca")]
    amqps_client_certificates: ClientCertificates,
    /// Lowest version of TLS.
    #[arg(long, value_enum, default_value_t = TlsVersion::Tls12)]
    amqps_min_version: TlsVersion,
    /// What of a client's certificate is its user's name, for the mechanism EXTERNAL. Of several names of the subject's
    /// alternative names the first counts.
    #[arg(long, value_enum, default_value_t = LoginFrom::CommonName)]
    amqps_login_from: LoginFrom,
    /// Ways to log in. EXTERNAL, by a client's certificate, is offered only to clients that have shown one.
    #[arg(long, value_enum, value_delimiter = ',', ignore_case = true, default_value = "PLAIN,AMQPLAIN,EXTERNAL")]
    sasl_mechanisms: Vec<Mechanism>,
    /// Those of them that are offered over TLS alone.
    #[arg(long, value_enum, value_delimiter = ',', ignore_case = true)]
    sasl_tls_only: Vec<Mechanism>,
    /// A refused login is answered after so many milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    login_failure_delay_ms: u64,
    /// From the connection's beginning to connection.open; another 5 seconds for TLS before it.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    handshake_timeout_ms: u64,
    /// A client that takes nothing of what waits for it for so long is dropped, and what it had not acknowledged goes back to
    /// its queues.
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    send_timeout_ms: u64,
    /// Open connections on this broker; one more is refused (530). Relayed ones count at the primary.
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    max_connections: usize,
    /// Channels on a connection.
    #[arg(long, value_name = "N", default_value_t = 2047, value_parser = clap::value_parser!(u16).range(1..))]
    channel_max: u16,
}

/// An address, or the word `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listen(Option<SocketAddr>);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let address = text.parse().map_err(|_| "give ADDRESS:PORT, or none".to_owned())?;
        Ok(Self(Some(address)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClientCertificates {
    Optional,
    Required,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsVersion {
    #[value(name = "1.2")]
    Tls12,
    #[value(name = "1.3")]
    Tls13,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoginFrom {
    CommonName,
    /// The whole subject, its last part first: CN=orders,O=Shop
    DistinguishedName,
    /// Of the alternative names.
    SanDns,
    SanEmail,
    SanUri,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mechanism {
    #[value(name = "PLAIN")]
    Plain,
    #[value(name = "AMQPLAIN")]
    Amqplain,
    #[value(name = "EXTERNAL")]
    External,
}

impl Mechanism {
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Amqplain => "AMQPLAIN",
            Self::External => "EXTERNAL",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// Without encryption.
    pub amqp_listen: Option<SocketAddr>,
    pub tls: Option<ClientTls>,
    pub mechanisms: Mechanisms,
    pub login_failure_delay: Duration,
    /// From the connection's beginning to `connection.open`.
    pub handshake_timeout: Duration,
    /// A client may leave what waits for it untouched for so long.
    pub send_timeout: Duration,
    /// Connections that are open.
    pub max_connections: usize,
    pub channel_max: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    pub listen: SocketAddr,
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Whose certificates clients may show; `None`: none is asked for.
    pub client_authority: Option<PathBuf>,
    pub client_certificates: ClientCertificates,
    pub min_version: TlsVersion,
    pub login_from: LoginFrom,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mechanisms {
    offered: Vec<Mechanism>,
    tls_only: Vec<Mechanism>,
}

impl Mechanisms {
    /// What a client may use, in the order given: over TLS or not, with a certificate that names it or without.
    pub fn on(&self, tls: bool, named: bool) -> impl Iterator<Item = Mechanism> {
        let fits = move |mechanism: &Mechanism| match mechanism {
            Mechanism::External => tls && named,
            other => tls || !self.tls_only.contains(other),
        };
        self.offered.iter().copied().filter(fits)
    }
}

impl TryFrom<ClientArguments> for Clients {
    type Error = ConfigError;

    fn try_from(given: ClientArguments) -> Result<Self, ConfigError> {
        let tls = match (given.amqps_listen, given.amqps_cert, given.amqps_key) {
            (Some(listen), Some(certificate), Some(key)) => Some(ClientTls {
                listen,
                certificate,
                key,
                client_authority: given.amqps_client_ca,
                client_certificates: given.amqps_client_certificates,
                min_version: given.amqps_min_version,
                login_from: given.amqps_login_from,
            }),
            _ => None,
        };
        let Listen(amqp_listen) = given.amqp_listen;
        if amqp_listen.is_none() && tls.is_none() {
            return Err(ConfigError::NoListener);
        }
        let mechanisms = Mechanisms { offered: given.sasl_mechanisms, tls_only: given.sasl_tls_only };
        if amqp_listen.is_some() && mechanisms.on(false, false).next().is_none() {
            return Err(ConfigError::NoMechanism { option: "amqp-listen" });
        }
        let named = tls.as_ref().is_some_and(|tls| tls.client_authority.is_some());
        if tls.is_some() && mechanisms.on(true, named).next().is_none() {
            return Err(ConfigError::NoMechanism { option: "amqps-listen" });
        }
        let login_failure_delay = Duration::from_millis(given.login_failure_delay_ms);
        if login_failure_delay > LONGEST_LOGIN_DELAY {
            let max = LONGEST_LOGIN_DELAY.as_secs() * 1000;
            let value = given.login_failure_delay_ms;
            return Err(ConfigError::Time { option: "login-failure-delay-ms", value, min: 0, max });
        }
        let max_connections = given.max_connections;
        if !(1..=MOST_CONNECTIONS).contains(&max_connections) {
            return Err(ConfigError::MaxConnections { value: max_connections, max: MOST_CONNECTIONS });
        }
        Ok(Self {
            amqp_listen,
            tls,
            mechanisms,
            login_failure_delay,
            handshake_timeout: millis("handshake-timeout-ms", given.handshake_timeout_ms)?,
            send_timeout: millis("send-timeout-ms", given.send_timeout_ms)?,
            max_connections,
            channel_max: given.channel_max,
        })
    }
}

impl Clients {
    /// Where clients can come in from.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.amqp_listen.into_iter().chain(self.tls.as_ref().map(|tls| tls.listen))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        clients: ClientArguments,
    }

    fn parse(words: &str) -> Result<Clients, String> {
        let line = Line::try_parse_from(std::iter::once("x").chain(words.split_whitespace()));
        let line = line.map_err(|error| error.to_string())?;
        Clients::try_from(line.clients).map_err(|error| error.to_string())
    }

    const TLS: &str = "--amqps-listen 127.0.0.1:5671 --amqps-cert c --amqps-key k";

    fn offered(clients: &Clients, tls: bool, named: bool) -> Vec<&'static str> {
        clients.mechanisms.on(tls, named).map(Mechanism::name).collect()
    }

    #[test]
    fn external_is_for_named_clients_and_what_is_tls_only_for_tls() {
        let usual = parse(TLS).unwrap();
        assert_eq!(offered(&usual, false, false), ["PLAIN", "AMQPLAIN"]);
        assert_eq!(offered(&usual, true, false), ["PLAIN", "AMQPLAIN"]);
        assert_eq!(offered(&usual, true, true), ["PLAIN", "AMQPLAIN", "EXTERNAL"]);
        // A name cannot have come without TLS.
        assert_eq!(offered(&usual, false, true), ["PLAIN", "AMQPLAIN"]);
        let strict = parse(&format!("{TLS} --sasl-mechanisms external,plain,amqplain --sasl-tls-only plain")).unwrap();
        assert_eq!(offered(&strict, false, false), ["AMQPLAIN"]);
        assert_eq!(offered(&strict, true, true), ["EXTERNAL", "PLAIN", "AMQPLAIN"]);
    }

    #[test]
    fn plain_amqp_can_be_turned_off_for_tls_alone() {
        assert_eq!(parse("").unwrap().amqp_listen, Some(([0, 0, 0, 0], 5672).into()));
        let only = parse(&format!("--amqp-listen none {TLS}")).unwrap();
        assert_eq!(only.addresses().collect::<Vec<_>>(), [([127, 0, 0, 1], 5671).into()]);
    }

    #[test]
    fn what_would_let_nobody_in_is_refused() {
        for (words, expected) in [
            ("--amqp-listen none".to_owned(), "--amqps-listen"),
            ("--amqp-listen nowhere".to_owned(), "give ADDRESS:PORT, or none"),
            ("--amqps-listen 127.0.0.1:5671".to_owned(), "--amqps-cert"),
            ("--amqps-cert c".to_owned(), "--amqps-listen"),
            (format!("{TLS} --amqps-client-certificates required"), "--amqps-client-ca"),
            ("--sasl-tls-only PLAIN,AMQPLAIN".to_owned(), "nobody could log in at --amqp-listen"),
            (format!("{TLS} --amqp-listen none --sasl-mechanisms EXTERNAL"), "nobody could log in at --amqps-listen"),
            ("--login-failure-delay-ms 60000".to_owned(), "between 0 and 30000"),
            ("--max-connections 0".to_owned(), "--max-connections is 0"),
            ("--channel-max 0".to_owned(), "--channel-max"),
        ] {
            let error = parse(&words).unwrap_err();
            assert!(error.contains(expected), "{words}: {error}");
        }
        parse(&format!("{TLS} --amqp-listen none --sasl-mechanisms EXTERNAL --amqps-client-ca a")).unwrap();
    }
}
