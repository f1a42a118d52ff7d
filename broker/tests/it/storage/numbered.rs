//! Bodies that follow from a number, so that one which was cut, mixed up or damaged on its way through segments is seen.

use bytes::Bytes;
use understudy_record::Body;

/// Most bodies are of about 8 KiB: so many pass through a segment of 256 KiB that it holds some dozens.
const SPREAD: u64 = 15_000;
const LEAST: u64 = 500;

const WORD: usize = size_of::<u64>();

fn mixed(number: u64) -> u64 {
    let mixed = (number ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (mixed >> 29)
}

/// From this number on one body in a hundred is large: of several parts, each of which takes segments for itself.
pub(super) const SOME_LARGE: u64 = 1 << 32;
const LARGE: u64 = 1 << 20;

pub(super) fn size_of_body(number: u64) -> usize {
    let large = number >= SOME_LARGE && number % 100 == 99;
    (LEAST + mixed(number) % SPREAD + if large { LARGE + mixed(number) % LARGE } else { 0 }) as usize
}

/// Its size follows from its number too.
pub(super) fn body(number: u64) -> Bytes {
    body_of_size(number, size_of_body(number))
}

/// The number, and words that follow from it.
pub(super) fn body_of_size(number: u64, size: usize) -> Bytes {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.reserve(size + WORD);
    let mut word = mixed(number);
    while bytes.len() < size {
        bytes.extend_from_slice(&word.to_be_bytes());
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(number | 1);
    }
    bytes.truncate(size);
    bytes.into()
}

/// The number of a body that [`body`] made.
#[track_caller]
pub(super) fn number_of(given: &Body) -> u64 {
    let given = given.to_contiguous();
    let number = u64::from_be_bytes(given[..WORD].try_into().expect("a body begins with its number"));
    assert!(given == body(number), "message {number} came with another body, of {} octets", given.len());
    number
}
