//! Who is at the other end of a client's connection, as far as the connection itself says.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use understudy_proto as wire;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Where it is, and through whom, for people.
    address: String,
    /// `None`: a relaying replica did not say.
    pub(super) ip: Option<IpAddr>,
    pub(super) tls: bool,
    /// Of a certificate that was verified.
    pub(super) certificate_name: Option<String>,
}

impl Peer {
    pub(super) fn plain(address: SocketAddr) -> Self {
        Self { address: address.to_string(), ip: Some(address.ip()), tls: false, certificate_name: None }
    }

    pub(super) fn encrypted(address: SocketAddr, certificate_name: Option<String>) -> Self {
        Self { tls: true, certificate_name, ..Self::plain(address) }
    }

    /// The first message of a relay. It comes over the replicas' mutual TLS, so what it says of the client was found out by a
    /// replica; no client can say it.
    pub(crate) fn relayed(first: &wire::RelayBytes) -> Self {
        Self {
            address: format!("{} (via {})", first.client, first.via),
            ip: first.client.parse::<SocketAddr>().ok().map(|address| address.ip()),
            tls: first.tls,
            certificate_name: Some(first.certificate_name.clone()).filter(|name| first.tls && !name.is_empty()),
        }
    }

    pub(crate) fn to_relay(&self, via: &str) -> wire::RelayBytes {
        wire::RelayBytes {
            client: self.address.clone(),
            via: via.into(),
            tls: self.tls,
            certificate_name: self.certificate_name.clone().unwrap_or_default(),
            ..wire::RelayBytes::default()
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_carries_what_the_connection_says() {
        let address: SocketAddr = ([10, 0, 0, 7], 4711).into();
        for peer in
            [Peer::plain(address), Peer::encrypted(address, None), Peer::encrypted(address, Some("orders".into()))]
        {
            let relayed = Peer::relayed(&peer.to_relay("a-1"));
            assert_eq!(relayed.to_string(), "10.0.0.7:4711 (via a-1)");
            assert_eq!(Peer { address: peer.address.clone(), ..relayed }, peer);
        }
        let without_tls = wire::RelayBytes { certificate_name: "orders".into(), ..wire::RelayBytes::default() };
        assert_eq!(Peer::relayed(&without_tls).certificate_name, None);
    }
}
