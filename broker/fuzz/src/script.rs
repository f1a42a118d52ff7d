//! A client's frames as a fuzzer can learn to write them: a method by its place in a list, lengths that are always right.

use understudy_protocol::{FieldTable, Method, PROTOCOL_HEADER, ServerConfig, connection, sasl};
use understudy_record::ShortStr;

use crate::input::Input;

/// What a step of a script does; the upper half of its octet, without the highest bit.
pub(crate) const METHOD: u8 = 0;
pub(crate) const HEADER: u8 = 4;
pub(crate) const BODY: u8 = 5;
pub(crate) const RAW: u8 = 6;
pub(crate) const SPECIAL: u8 = 7;

/// Those that clients send, and some that they must not.
pub(crate) const METHODS: &[(u16, u16)] = &[
    (60, 40),
    (50, 10),
    (60, 20),
    (60, 80),
    (60, 70),
    (50, 20),
    (40, 10),
    (20, 10),
    (20, 40),
    (20, 41),
    (60, 120),
    (60, 90),
    (60, 110),
    (60, 100),
    (60, 10),
    (60, 30),
    (50, 30),
    (50, 40),
    (50, 50),
    (40, 20),
    (40, 30),
    (40, 40),
    (85, 10),
    (90, 10),
    (90, 20),
    (90, 30),
    (10, 50),
    (10, 51),
    (10, 70),
    (10, 11),
    (10, 31),
    (10, 40),
    (60, 31),
    (20, 20),
    (20, 21),
    (30, 10),
    (60, 60),
    (50, 11),
];

/// Small, so that small inputs make large messages.
pub(crate) fn config() -> ServerConfig {
    ServerConfig { whole_body_bytes: 64, part_bytes: 32, channel_max: 7, ..ServerConfig::default() }
}

pub(crate) fn frame(kind: u8, channel: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    [&[kind, 0, channel][..], &length, payload, &[0xce]].concat()
}

fn method(channel: u8, method: impl Into<Method>) -> Vec<u8> {
    let mut payload = Vec::new();
    method.into().encode(&mut payload);
    frame(1, channel, &payload)
}

/// Up to an open connection.
pub(crate) fn handshake() -> Vec<u8> {
    let capabilities =
        FieldTable::new().with("consumer_cancel_notify", true).with("authentication_failure_close", true);
    [
        PROTOCOL_HEADER.to_vec(),
        method(
            0,
            connection::StartOk {
                client_properties: FieldTable::new().with("capabilities", capabilities),
                mechanism: ShortStr::from_static("PLAIN"),
                response: sasl::plain("guest", "guest"),
                locale: ShortStr::from_static("en_US"),
            },
        ),
        method(0, connection::TuneOk { channel_max: 7, frame_max: 4096, heartbeat: 0 }),
        method(0, connection::Open { virtual_host: ShortStr::from_static("/") }),
    ]
    .concat()
}

/// The octets that one step sends; `None` for a special one.
pub(crate) fn sent_by(step: u8, input: &mut Input<'_>) -> Option<Vec<u8>> {
    let channel = step & 3;
    Some(match step >> 4 & 7 {
        SPECIAL => return None,
        HEADER => {
            let [high, low] = [input.octet(), input.octet()];
            let size = u16::from_be_bytes([high & 3, low]).to_be_bytes();
            let properties = input.piece();
            let properties = if properties.is_empty() { &[0, 0] } else { properties };
            frame(2, channel, &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0][..], &size, properties].concat())
        }
        BODY => frame(3, channel, input.piece()),
        RAW => input.piece().to_vec(),
        _ => {
            let (class, id) = METHODS[usize::from(input.octet()) % METHODS.len()];
            let head = [class.to_be_bytes(), id.to_be_bytes()].concat();
            frame(1, channel, &[&head, input.piece()].concat())
        }
    })
}

/// All of a script as octets.
pub(crate) fn octets_of(mut input: Input<'_>) -> Vec<u8> {
    let mut octets = Vec::new();
    while !input.is_empty() {
        let step = input.octet();
        octets.extend(sent_by(step, &mut input).unwrap_or_else(|| frame(8, 0, &[])));
    }
    octets
}
