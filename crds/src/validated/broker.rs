//! Options of the broker, in its own units.

use std::time::Duration;

use super::clients::in_range;
use super::{InvalidCluster, amounts, times};
use crate::amount::Amount;
use crate::spec::Broker;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MINUTE: Duration = Duration::from_secs(60);

/// What is absent is the broker's own default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerOptions {
    /// Bytes, and bytes a second.
    pub segment_bytes: Option<u64>,
    pub checkpoint_bytes: Option<u64>,
    pub checkpoint_rate: Option<u64>,
    pub resume_records: Option<u64>,
    /// Zero: never.
    pub scrub_interval: Option<Duration>,
    pub handshake_timeout: Option<Duration>,
    pub accept_differences: bool,
}

pub(super) fn parse(broker: &Broker) -> Result<BrokerOptions, InvalidCluster> {
    let size = |field: &'static str, amount: &Option<Amount>, most| {
        let parse = |amount| in_range(field, amounts::parse_amount(field, amount)?.whole(), MIB, most);
        amount.as_ref().map(parse).transpose()
    };
    let time = |field, text: &Option<String>, least, most| {
        text.as_ref().map(|text| times::parse(field, text, least, most)).transpose()
    };
    let records = |count: i32| {
        u64::try_from(count).map_err(|_| InvalidCluster::Range {
            field: "spec.broker.resumeRecords",
            value: count.to_string(),
            least: 0,
            most: i32::MAX as u64,
        })
    };
    Ok(BrokerOptions {
        segment_bytes: size("spec.broker.segmentSize", &broker.segment_size, GIB)?,
        checkpoint_bytes: size("spec.broker.checkpointSize", &broker.checkpoint_size, 64 * GIB)?,
        checkpoint_rate: size("spec.broker.checkpointRate", &broker.checkpoint_rate, 64 * GIB)?,
        resume_records: broker.resume_records.map(records).transpose()?,
        scrub_interval: time("spec.broker.scrubInterval", &broker.scrub_interval, Duration::ZERO, MINUTE * 1440)?,
        handshake_timeout: time("spec.broker.handshakeTimeout", &broker.handshake_timeout, MINUTE / 60, MINUTE * 2)?,
        accept_differences: broker.accept_differences,
    })
}
