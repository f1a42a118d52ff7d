//! What a certificate says: who its holder is, as EXTERNAL's user name, and until when it holds. Whether it is to be trusted
//! is not judged here: only certificates that were verified, or are the broker's own, come here.

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::config::LoginFrom;

/// A longer name is no user's: names are short strings elsewhere.
const MAX_NAME_BYTES: usize = 255;

/// The short names that RabbitMQ uses for parts of a subject; others stand as their object identifiers.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "SERIALNUMBER"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "TITLE"),
    ("2.5.4.42", "GIVENNAME"),
    ("2.5.4.43", "INITIALS"),
    ("2.5.4.44", "GENERATIONQUALIFIER"),
    ("2.5.4.65", "PSEUDONYM"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "EMAILADDRESS"),
];

/// The user's name in a client's certificate; `None` if there is none, or it is none that a user can have.
pub(super) fn login_name(certificate: &CertificateDer<'_>, from: LoginFrom) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let name = match from {
        LoginFrom::CommonName => common_name(certificate.subject()),
        LoginFrom::DistinguishedName => distinguished_name(certificate.subject()),
        LoginFrom::SanDns | LoginFrom::SanEmail | LoginFrom::SanUri => {
            let names = certificate.subject_alternative_name().ok()??;
            let name = names.value.general_names.iter().find_map(|name| match (from, name) {
                (LoginFrom::SanDns, GeneralName::DNSName(name))
                | (LoginFrom::SanEmail, GeneralName::RFC822Name(name))
                | (LoginFrom::SanUri, GeneralName::URI(name)) => Some(*name),
                _ => None,
            });
            name.map(str::to_owned)
        }
    };
    name.filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(char::is_control))
}

/// Seconds since 1970 at which it ends.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Result<i64, String> {
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
    Ok(certificate.validity().not_after.timestamp())
}

/// All of them, should there be several, as RabbitMQ has it; none if one cannot be read.
fn common_name(subject: &X509Name<'_>) -> Option<String> {
    let names: Result<Vec<_>, _> = subject.iter_common_name().map(AttributeTypeAndValue::as_str).collect();
    Some(names.ok()?.join(","))
}

/// As in RFC 4514 and from RabbitMQ: the last part first, with a backslash before what would part it, and octets that are not
/// printable ASCII (a tilde counts as none) in hexadecimal.
fn distinguished_name(subject: &X509Name<'_>) -> Option<String> {
    let part = |attribute: &AttributeTypeAndValue<'_>| {
        let kind = attribute.attr_type().to_id_string();
        let kind = SHORT_NAMES.iter().find(|(id, _)| *id == kind).map_or(kind.as_str(), |(_, short)| short).to_owned();
        Some(format!("{kind}={}", escaped(attribute.as_str().ok()?)))
    };
    let mut parts = Vec::new();
    for relative in subject.iter_rdn() {
        let attributes: Option<Vec<_>> = relative.iter().map(part).collect();
        parts.push(attributes?.join("+"));
    }
    parts.reverse();
    Some(parts.join(","))
}

fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let last = value.len().saturating_sub(1);
    for (place, octet) in value.bytes().enumerate() {
        match octet {
            ..=31 | 126.. => text.push_str(&format!("\\{octet:02X}")),
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => text.extend(['\\', char::from(octet)]),
            b'#' if place == 0 => text.push_str("\\#"),
            b' ' if place == 0 || place == last => text.push_str("\\ "),
            _ => text.push(char::from(octet)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(parts: &[(DnType, &str)], alternative: Vec<SanType>) -> CertificateDer<'static> {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.subject_alt_names = alternative;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_name_is_taken_from_where_it_is_to_be_taken() {
        let certificate = certificate(
            &[(DnType::CountryName, "CH"), (DnType::OrganizationName, "Shop, Inc."), (DnType::CommonName, "orders")],
            vec![
                SanType::DnsName("orders.shop".try_into().unwrap()),
                SanType::DnsName("other.shop".try_into().unwrap()),
                SanType::Rfc822Name("orders@shop".try_into().unwrap()),
                SanType::URI("spiffe://shop/orders".try_into().unwrap()),
            ],
        );
        for (from, expected) in [
            (LoginFrom::CommonName, "orders"),
            (LoginFrom::DistinguishedName, "CN=orders,O=Shop\\, Inc.,C=CH"),
            (LoginFrom::SanDns, "orders.shop"),
            (LoginFrom::SanEmail, "orders@shop"),
            (LoginFrom::SanUri, "spiffe://shop/orders"),
        ] {
            assert_eq!(login_name(&certificate, from).as_deref(), Some(expected), "{from:?}");
        }
    }

    #[test]
    fn no_name_is_no_name() {
        let nameless = certificate(&[], Vec::new());
        let control = certificate(&[(DnType::CommonName, "orders\0admin")], Vec::new());
        let long = certificate(&[(DnType::CommonName, &"x".repeat(256))], Vec::new());
        for certificate in [&nameless, &control, &long] {
            assert_eq!(login_name(certificate, LoginFrom::CommonName), None);
            assert_eq!(login_name(certificate, LoginFrom::SanDns), None);
        }
        assert_eq!(login_name(&nameless, LoginFrom::DistinguishedName), None);
        for end in 0..nameless.len() {
            assert_eq!(login_name(&nameless[..end].to_vec().into(), LoginFrom::CommonName), None);
        }
    }

    #[test]
    fn what_would_part_a_distinguished_name_is_escaped() {
        for (value, expected) in [
            ("a,b", "a\\,b"),
            ("a+b=c", "a\\+b=c"),
            ("#a#", "\\#a#"),
            (" a b ", "\\ a b\\ "),
            ("\"<>;\\", "\\\"\\<\\>\\;\\\\"),
            (" ", "\\ "),
            ("ü~}\0", "\\C3\\BC\\7E}\\00"),
            ("", ""),
        ] {
            assert_eq!(escaped(value), expected);
        }
    }
}
