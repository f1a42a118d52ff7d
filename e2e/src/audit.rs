//! Who has written what to the API server: its audit log, read from a moment on. A hermetic cluster's has one (`e2e/cluster/hermetic`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::faults;

/// One kind of write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Written {
    pub who: String,
    pub verb: String,
    /// With group and subresource, as `leases.coordination.k8s.io` or `pods/status`.
    pub resource: String,
    /// Empty: no namespace.
    pub namespace: String,
}

/// A moment in the log.
pub struct AuditMark {
    log: PathBuf,
    offset: u64,
}

impl AuditMark {
    /// `None` where this cluster's API server keeps no such log.
    ///
    /// # Errors
    /// If there is one, and it cannot be read.
    pub fn now() -> Result<Option<Self>> {
        let Some(log) = faults::audit_log()? else { return Ok(None) };
        let offset = std::fs::metadata(&log).with_context(|| log.display().to_string())?.len();
        Ok(Some(Self { log, offset }))
    }

    /// How often each kind of write has been answered since.
    ///
    /// # Errors
    /// If the log cannot be read, or began anew meanwhile.
    pub fn writes_since(&self) -> Result<BTreeMap<Written, u64>> {
        let mut file = File::open(&self.log)?;
        ensure!(file.metadata()?.len() >= self.offset, "the audit log began anew");
        file.seek(SeekFrom::Start(self.offset))?;
        let mut table = BTreeMap::new();
        for line in BufReader::new(file).split(b'\n') {
            // The last line may be on its way.
            let Ok(event) = serde_json::from_slice::<Value>(&line?) else { continue };
            *table.entry(read(&event)).or_default() += 1;
        }
        Ok(table)
    }
}

fn read(event: &Value) -> Written {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let mut resource = text(&object["resource"]);
    if let Some(group) = object["apiGroup"].as_str() {
        resource = format!("{resource}.{group}");
    }
    if let Some(sub) = object["subresource"].as_str() {
        resource = format!("{resource}/{sub}");
    }
    let namespace = text(&object["namespace"]);
    Written { who: text(&event["user"]["username"]), verb: text(&event["verb"]), resource, namespace }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_says_who_wrote_what() {
        let event = json!({
            "stage": "ResponseComplete", "verb": "patch", "user": { "username": "system:node:node1" },
            "objectRef": { "resource": "pods", "namespace": "shop", "name": "orders-0", "subresource": "status" },
        });
        let Written { who, verb, resource, namespace } = read(&event);
        assert_eq!([who, verb, resource, namespace], ["system:node:node1", "patch", "pods/status", "shop"]);
        let event = json!({ "objectRef": { "resource": "leases", "apiGroup": "coordination.k8s.io" } });
        assert_eq!(read(&event).resource, "leases.coordination.k8s.io");
    }
}
