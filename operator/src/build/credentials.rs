//! The users' Secret: name and password for applications, and the file of hashes that brokers read. Made once; whoever
//! changes the password in it gets a new hash, and nothing else is touched.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rand::distr::{Alphanumeric, SampleString};
use understudy_crds::ValidatedCluster;

use super::password;
use crate::dereference::Observed;
use crate::names::{Names, metadata};

const USERNAME: &str = "app";
/// 190 bits: nobody guesses it, however cheap a guess is.
const PASSWORD_CHARS: usize = 32;
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error(
        "Secret {secret}: {key} is absent, empty, not UTF-8, or holds a line break; set it, or delete the Secret to have a new one made"
    )]
    Unusable { secret: String, key: &'static str },
    #[error("Secret {secret}: the user's name holds a ':', which ends a name in the users file; choose another")]
    Colon { secret: String },
    #[error("cannot hash a password: {0}")]
    Hash(String),
}

/// Secrets whose hash was found to match their password, by uid and version: a hash is made to be slow to check.
#[derive(Debug, Default)]
pub struct VerifiedCredentials(Mutex<HashMap<String, String>>);

impl VerifiedCredentials {
    fn holds(&self, secret: &Secret) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = secret.metadata.uid.as_ref();
        let version = secret.metadata.resource_version.as_ref();
        version.is_some() && uid.and_then(|uid| known.get(uid)) == version
    }

    fn insert(&self, secret: &Secret) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(uid), Some(version)) = (&secret.metadata.uid, &secret.metadata.resource_version) {
            known.insert(uid.clone(), version.clone());
        }
    }
}

pub(super) fn secret(
    cluster: &ValidatedCluster,
    observed: &Observed,
    verified: &VerifiedCredentials,
) -> Result<Secret, CredentialError> {
    let names = Names::of(&cluster.name);
    let mut metadata = metadata(cluster, names.user_secret());
    let source = observed.given_user_secret.as_ref().or(observed.user_secret.as_ref());
    let (username, password) = match source {
        Some(source) => (text(source, "username")?, text(source, "password")?),
        None => (USERNAME.to_owned(), Alphanumeric.sample_string(&mut rand::rng(), PASSWORD_CHARS)),
    };
    if username.contains(':') {
        let secret = source.and_then(|source| source.metadata.name.clone()).unwrap_or_default();
        return Err(CredentialError::Colon { secret });
    }
    let users = match &observed.user_secret {
        Some(kept) => {
            // Written only on top of what was read: a password that changes meanwhile is not put back.
            metadata.resource_version.clone_from(&kept.metadata.resource_version);
            match users_text(kept) {
                Some(users) if verified.holds(kept) && observed.given_user_secret.is_none() => users,
                Some(users) if matches(&users, &username, &password) => {
                    verified.insert(kept);
                    users
                }
                _ => users_file(&username, &password)?,
            }
        }
        None => users_file(&username, &password)?,
    };
    let host = format!("{}.{}.svc", names.failover_service(), cluster.namespace);
    let account = format!("{}:{}", percent_encoded(&username), percent_encoded(&password));
    let ports = cluster.service_ports;
    let plain = ("amqp", ports.amqp, [("port", "uri")].as_slice());
    let encrypted = ("amqps", ports.amqps, [("tls-port", "tls-uri")].as_slice());
    let only_encrypted = ("amqps", ports.amqps, [("port", "uri"), ("tls-port", "tls-uri")].as_slice());
    let ways = match (cluster.clients.plaintext, cluster.clients.tls.is_some()) {
        (_, false) => vec![plain],
        (true, true) => vec![plain, encrypted],
        (false, true) => vec![only_encrypted],
    };
    let ways = ways.into_iter().flat_map(|(scheme, port, keys)| {
        let uri = format!("{scheme}://{account}@{host}:{port}/");
        keys.iter().flat_map(move |(port_key, uri_key)| [(*port_key, port.to_string()), (*uri_key, uri.clone())])
    });
    let entries =
        ways.chain([("username", username), ("password", password), ("host", host.clone()), ("users", users)]);
    let data: BTreeMap<_, _> = entries.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect();
    Ok(Secret { metadata, data: Some(data), type_: Some("Opaque".into()), ..Secret::default() })
}

fn text(secret: &Secret, key: &'static str) -> Result<String, CredentialError> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
    text.filter(|text| !text.is_empty() && !text.contains(['\n', '\r', '\0']))
        .ok_or_else(|| CredentialError::Unusable { secret: secret.metadata.name.clone().unwrap_or_default(), key })
}

fn users_text(secret: &Secret) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get("users")?.0.clone()).ok()
}

/// Whether the file holds this user with this password, alone.
fn matches(users: &str, username: &str, password: &str) -> bool {
    let mut lines = users.lines();
    let (Some(line), None) = (lines.next(), lines.next()) else { return false };
    let Some((name, hash)) = line.split_once(':') else { return false };
    name == username && password::matches(hash, password)
}

fn users_file(username: &str, password: &str) -> Result<String, CredentialError> {
    let hash = password::hash(password).map_err(|error| CredentialError::Hash(error.to_string()))?;
    Ok(format!("{username}:{hash}\n"))
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}"); // writing to a String cannot fail
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Defaults, validate};

    fn cluster() -> ValidatedCluster {
        let json = serde_json::json!({
            "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
            "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1"}, "spec": {},
        });
        let object = serde_json::from_value(json).unwrap();
        validate(&object, &Defaults { broker_image: "broker".into(), ..Defaults::default() }).unwrap().cluster
    }

    fn field(secret: &Secret, key: &str) -> String {
        String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap()
    }

    fn rebuilt(kept: &Secret, verified: &VerifiedCredentials) -> Result<Secret, CredentialError> {
        let observed = Observed { user_secret: Some(kept.clone()), ..Observed::default() };
        secret(&cluster(), &observed, verified)
    }

    #[test]
    fn made_once_and_kept() {
        let verified = VerifiedCredentials::default();
        let mut made = secret(&cluster(), &Observed::default(), &verified).unwrap();
        assert_eq!(field(&made, "password").len(), 32);
        assert_eq!(field(&made, "uri"), format!("amqp://app:{}@orders.shop.svc:5672/", field(&made, "password")));
        assert!(matches(&field(&made, "users"), "app", &field(&made, "password")));
        made.metadata.uid = Some("s-1".into());
        made.metadata.resource_version = Some("9".into());
        for _ in 0..2 {
            let kept = rebuilt(&made, &verified).unwrap();
            assert_eq!(kept.data, made.data);
            assert_eq!(kept.metadata.resource_version.as_deref(), Some("9"));
        }
        assert!(verified.holds(&made));
    }

    #[test]
    fn a_changed_password_gets_its_hash_and_nothing_else_changes() {
        let verified = VerifiedCredentials::default();
        let mut changed = secret(&cluster(), &Observed::default(), &verified).unwrap();
        let before = field(&changed, "users");
        changed.data.get_or_insert_default().insert("password".into(), ByteString(b"p@ss/word".to_vec()));
        let after = rebuilt(&changed, &verified).unwrap();
        assert_ne!(field(&after, "users"), before);
        assert!(matches(&field(&after, "users"), "app", "p@ss/word"));
        assert_eq!(field(&after, "uri"), "amqp://app:p%40ss%2Fword@orders.shop.svc:5672/");
        assert_eq!(field(&after, "username"), "app");
    }

    #[test]
    fn unusable_credentials_are_named() {
        let verified = VerifiedCredentials::default();
        let made = secret(&cluster(), &Observed::default(), &verified).unwrap();
        for (key, value, expected) in
            [("password", "", "password"), ("username", "a\nb", "username"), ("username", "a:b", "':'")]
        {
            let mut damaged = made.clone();
            damaged.data.get_or_insert_default().insert(key.into(), ByteString(value.as_bytes().to_vec()));
            let error = rebuilt(&damaged, &verified).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("orders-user"), "{error}");
        }
    }
}
