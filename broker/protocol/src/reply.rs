//! Reply codes: the number and name of every way to say no, and whether it costs the channel or the connection. Which
//! mistake gets which code is decided where the mistake is seen, not here.

use understudy_record::ShortStr;

macro_rules! reply_codes {
    ($($variant:ident = $number:literal $name:literal,)*) => {
        /// AMQP 0-9-1, section 1.2 (constants) and its class and method chapters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ReplyCode {
            $($variant = $number,)*
        }

        impl ReplyCode {
            /// Every code, in the order of the numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// As the specification writes it: `NOT_FOUND`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            pub const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

reply_codes! {
    ReplySuccess = 200 "REPLY_SUCCESS",
    ContentTooLarge = 311 "CONTENT_TOO_LARGE",
    NoRoute = 312 "NO_ROUTE",
    NoConsumers = 313 "NO_CONSUMERS",
    ConnectionForced = 320 "CONNECTION_FORCED",
    InvalidPath = 402 "INVALID_PATH",
    AccessRefused = 403 "ACCESS_REFUSED",
    NotFound = 404 "NOT_FOUND",
    ResourceLocked = 405 "RESOURCE_LOCKED",
    PreconditionFailed = 406 "PRECONDITION_FAILED",
    FrameError = 501 "FRAME_ERROR",
    SyntaxError = 502 "SYNTAX_ERROR",
    CommandInvalid = 503 "COMMAND_INVALID",
    ChannelError = 504 "CHANNEL_ERROR",
    UnexpectedFrame = 505 "UNEXPECTED_FRAME",
    ResourceError = 506 "RESOURCE_ERROR",
    NotAllowed = 530 "NOT_ALLOWED",
    NotImplemented = 540 "NOT_IMPLEMENTED",
    InternalError = 541 "INTERNAL_ERROR",
}

impl ReplyCode {
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Whether it closes the connection; a soft one closes the channel (311 and 312 come in `basic.return` and close
    /// nothing).
    pub const fn is_hard(self) -> bool {
        matches!(self.number(), 320 | 402 | 501..)
    }

    /// The text of a close, as RabbitMQ's clients expect it: the name, a dash, the cause; cut to what a short string holds.
    pub fn text(self, cause: &str) -> ShortStr {
        let whole = if cause.is_empty() { self.name().to_owned() } else { format!("{} - {cause}", self.name()) };
        short_str_cut(&whole)
    }
}

/// As much of `text` as fits in a short string, cut between characters; three dots show that it was.
pub(crate) fn short_str_cut(text: &str) -> ShortStr {
    const DOTS: &str = "...";
    ShortStr::try_from(text).unwrap_or_else(|_| {
        let cut = &text[..text.floor_char_boundary(ShortStr::MAX_BYTES - DOTS.len())];
        ShortStr::try_from(format!("{cut}{DOTS}").as_str()).expect("was cut to a short string's size")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_go_both_ways() {
        for code in ReplyCode::ALL {
            assert_eq!(ReplyCode::from_number(code.number()), Some(*code));
        }
        assert_eq!(ReplyCode::from_number(0), None);
        assert_eq!(ReplyCode::ALL.len(), 19);
    }

    #[test]
    fn soft_errors_are_403_to_406() {
        let soft: Vec<u16> =
            ReplyCode::ALL.iter().filter(|c| !c.is_hard() && c.number() >= 320).map(|c| c.number()).collect();
        assert_eq!(soft, [403, 404, 405, 406]);
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(ReplyCode::NotFound.text("no queue 'q'").as_bytes(), b"NOT_FOUND - no queue 'q'");
        assert_eq!(ReplyCode::NotFound.text("").as_bytes(), b"NOT_FOUND");
        let long = ReplyCode::NotFound.text(&"é".repeat(200));
        assert_eq!(long.as_bytes().len(), 255);
        assert!(long.to_text().ends_with("é..."));
        let long = ReplyCode::NotFound.text(&"xé".repeat(100));
        assert_eq!(long.to_text(), format!("NOT_FOUND - {}...", "xé".repeat(80)));
        let short = "x".repeat(255 - "NOT_FOUND - ".len());
        assert_eq!(ReplyCode::NotFound.text(&short).to_text(), format!("NOT_FOUND - {short}"));
    }
}
