//! Striking secrets out of what goes into a bundle: by the names of fields, by what looks like a secret in a text, and by the
//! values that the cluster's Secrets hold. Pure. It rather strikes out too much.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;
use serde_json::{Map, Value};

pub(super) const STRUCK: &str = "(struck out)";

/// Shorter values would strike out ordinary words; a password of ours has 32 characters.
const MIN_VALUE_CHARS: usize = 6;
/// Of a value with several lines, such as a key, each line that is this long.
const MIN_LINE_CHARS: usize = 16;

/// Fields with such names hold secrets, unless they only say where one is.
static NAME: LazyLock<Regex> = LazyLock::new(|| {
    expression(
        r"(?i)pass(word|wd|phrase)|pwd|secret|token|credential|api[-_.]?key|access[-_.]?key|private[-_.]?key|erlang[-_.]?cookie|auth$|authorization",
    )
});

/// Names that hold a secret's name, path or life time, not the secret.
static PLACE: LazyLock<Regex> = LazyLock::new(|| {
    expression(
        r"(?i)(name|ref|refs|selector|path|file|dir|mount|mounts|secrets|projection|seconds|key|keys|mode|policy)$|^automountServiceAccountToken$|^serviceAccountToken$|^secret$",
    )
});

/// Each with what stays in front of the secret.
static IN_TEXT: LazyLock<[Regex; 5]> = LazyLock::new(|| {
    [
        // A password in a URI.
        expression(r"(?P<keep>[A-Za-z][A-Za-z0-9+.-]*://[^\s:/@]*:)[^\s@]+(?P<after>@)"),
        // PASSWORD=…, "password": "…", --token …, Authorization: Bearer …
        expression(
            r#"(?i)(?P<keep>[\w.-]*(?:pass(?:word|wd|phrase)|pwd|secret|token|credential|api[-_.]?key|access[-_.]?key|private[-_.]?key|authorization)[\w.-]*["']?\s*(?:[=:]\s*|\s+(?:is\s+)?)(?:(?:bearer|basic)\s+)?)(?:"[^"]*"|'[^']*'|[^\s,;"'}\]]+)(?P<after>)"#,
        ),
        expression(
            r"(?P<keep>-----BEGIN [A-Z ]*PRIVATE KEY-----)[\s\S]*?(?P<after>-----END [A-Z ]*PRIVATE KEY-----|$)",
        ),
        // A JSON Web Token.
        expression(r"(?P<keep>)eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*(?P<after>)"),
        // A hash of a password as our users' files have it.
        expression(r"(?P<keep>)\$argon2[a-z]*\$[^\s,;]+(?P<after>)"),
    ]
});

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("a constant expression is right")
}

/// Knows the values that must not come out.
#[derive(Default)]
pub(super) struct Striker {
    /// The longest first, so that no part of one is left behind a shorter one.
    values: Vec<String>,
}

impl Striker {
    pub(super) fn knowing(values: impl IntoIterator<Item = String>) -> Self {
        let mut known = BTreeSet::new();
        for value in values {
            let lines: Vec<&str> = value.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let least = if lines.len() > 1 { MIN_LINE_CHARS } else { MIN_VALUE_CHARS };
            for line in lines.iter().filter(|line| line.len() >= least && !line.starts_with("-----")) {
                known.insert((*line).to_owned());
                known.insert(STANDARD.encode(line));
            }
            if value.len() >= MIN_VALUE_CHARS {
                known.insert(STANDARD.encode(&value));
            }
        }
        let mut values: Vec<String> = known.into_iter().collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self { values }
    }

    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in self.values.iter().filter(|value| !value.is_empty()) {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), STRUCK);
            }
        }
        for pattern in IN_TEXT.iter() {
            if pattern.is_match(&text) {
                text = pattern.replace_all(&text, format!("${{keep}}{STRUCK}${{after}}")).into_owned();
            }
        }
        text
    }

    /// An object as the API server has it.
    pub(super) fn object(&self, value: &mut Value) {
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                // A copy of the whole object, in which nothing can be told apart.
                annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            }
        }
        if value["kind"] == "Secret" {
            *value = secret_outline(value);
        }
        self.value(value);
    }

    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.value(value)),
            Value::Object(fields) => self.fields(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn fields(&self, fields: &mut Map<String, Value>) {
        // An environment variable: its own name says what its value is.
        let named = fields.get("name").and_then(Value::as_str).is_some_and(is_secret_name);
        for (field, value) in fields.iter_mut() {
            let says_so = is_secret_name(field) || (named && field == "value");
            match value {
                Value::String(_) | Value::Number(_) if says_so => *value = STRUCK.into(),
                _ => self.value(value),
            }
        }
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    NAME.is_match(name) && !PLACE.is_match(name) || is_secret_key(name)
}

/// `accessKey` ends like a place and is none.
fn is_secret_key(name: &str) -> bool {
    let plain: String = name.chars().filter(|c| c.is_ascii_alphanumeric()).collect::<String>().to_ascii_lowercase();
    ["apikey", "accesskey", "privatekey", "secretkey"].iter().any(|key| plain.ends_with(key))
}

/// Its name, its type, and the keys it has.
fn secret_outline(secret: &Value) -> Value {
    let keys: BTreeSet<&String> =
        ["data", "stringData"].iter().filter_map(|field| secret[field].as_object()).flat_map(Map::keys).collect();
    serde_json::json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": secret["metadata"]["name"], "namespace": secret["metadata"]["namespace"],
                      "creationTimestamp": secret["metadata"]["creationTimestamp"] },
        "type": secret["type"],
        "keys": keys,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_looks_like_a_secret_in_a_text() {
        let striker = Striker::default();
        for (text, struck) in [
            ("amqp://app:hunter2@orders:5672/", "amqp://app:(struck out)@orders:5672/"),
            ("PASSWORD=hunter2 next", "PASSWORD=(struck out) next"),
            (r#"{"password": "hunter2", "a": 1}"#, r#"{"password": (struck out), "a": 1}"#),
            ("--api-key=hunter2", "--api-key=(struck out)"),
            ("Authorization: Bearer hunter2", "Authorization: Bearer (struck out)"),
            ("orders-0 is in sync", "orders-0 is in sync"),
            ("http://orders:5672/ and a@b", "http://orders:5672/ and a@b"),
            ("app:$argon2id$v=19$m=4096$hunter2", "app:(struck out)"),
            (
                "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----",
                "-----BEGIN PRIVATE KEY-----(struck out)-----END PRIVATE KEY-----",
            ),
        ] {
            assert_eq!(striker.text(text), struck);
        }
    }

    #[test]
    fn values_of_secrets_wherever_they_stand_and_however_they_are_written() {
        let striker = Striker::knowing([
            "hunter2hunter2".into(),
            "LINE-ONE-OF-A-KEY-AAAA\nLINE-TWO-OF-A-KEY-BBBB\n".into(),
            "app".into(),
        ]);
        let text = format!("x hunter2hunter2 y LINE-TWO-OF-A-KEY-BBBB z {} app", STANDARD.encode("hunter2hunter2"));
        assert_eq!(striker.text(&text), "x (struck out) y (struck out) z (struck out) app");
    }

    #[test]
    fn names_that_hold_secrets_and_names_that_say_where_they_are() {
        for name in [
            "PASSWORD",
            "db_password",
            "rabbitmq.com/default-password",
            "TOKEN",
            "clientSecret",
            "accessKey",
            "AWS_SECRET_ACCESS_KEY",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in [
            "secretName",
            "secretKeyRef",
            "secret",
            "imagePullSecrets",
            "automountServiceAccountToken",
            "expirationSeconds",
            "name",
            "key",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn objects_keep_what_is_no_secret() {
        let mut pod = json!({
            "kind": "Pod",
            "metadata": {"name": "orders-0", "managedFields": [1], "annotations": {"a.b/password": "hunter2", "note": "kept",
                "kubectl.kubernetes.io/last-applied-configuration": "hunter2"}},
            "spec": {"volumes": [{"name": "tls", "secret": {"secretName": "orders-tls", "defaultMode": 288}}],
                "containers": [{"args": ["--token=hunter2", "--replicas=3"], "env": [
                    {"name": "DB_PASSWORD", "value": "hunter2"}, {"name": "MODE", "value": "kept"},
                    {"name": "USER_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}]}]},
        });
        Striker::default().object(&mut pod);
        assert_eq!(
            pod,
            json!({
                "kind": "Pod",
                "metadata": {"name": "orders-0", "annotations": {"a.b/password": STRUCK, "note": "kept"}},
                "spec": {"volumes": [{"name": "tls", "secret": {"secretName": "orders-tls", "defaultMode": 288}}],
                    "containers": [{"args": ["--token=(struck out)", "--replicas=3"], "env": [
                        {"name": "DB_PASSWORD", "value": STRUCK}, {"name": "MODE", "value": "kept"},
                        {"name": "USER_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}]}]},
            })
        );
    }

    #[test]
    fn of_a_secret_its_keys() {
        let mut secret = json!({"kind": "Secret", "metadata": {"name": "s", "annotations": {"x": "hunter2"}},
                                "type": "Opaque", "data": {"password": "aHVudGVyMg=="}, "stringData": {"b": "hunter2"}});
        Striker::default().object(&mut secret);
        assert_eq!(secret["keys"], json!(["b", "password"]));
        assert!(!secret.to_string().contains("hunter2") && !secret.to_string().contains("aHVu"), "{secret}");
    }
}
