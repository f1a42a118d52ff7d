//! The ledger's entries and its verdicts. Pure: time comes as an argument, counted since the run's origin.
//!
//! A message delivered twice is *excused* only where the broker cannot be known to have taken the first delivery's
//! acknowledgement: it was never sent before its connection ended; or the connection was lost, and the broker was not
//! heard on it long enough after the acknowledgement; or the acknowledgement fell into a failure that someone noted (a
//! node that is cut off from its peers goes on talking to its clients). Everything else is a duplicate. Verdicts wait
//! until the account is asked for, because a redelivery may arrive before the loss that explains it is noticed.

use std::time::Duration;

use super::{Account, ConnectionId, ProducerId, Sequence};

/// Most messages of one producer: 12 bytes each make 400 MB, more than an hour at 9,000 a second. A publisher stops there.
pub const MAX_MESSAGES: u64 = 1 << 25;
/// Second deliveries remembered one by one; a run with more has failed, and the rest counts as duplicated.
const MAX_REPEATS: usize = 1 << 20;
/// Examples in an account: enough to look for them in a log.
const MAX_EXAMPLES: usize = 10;
/// Acknowledgements so close together share one entry, with the later time: a minute of them makes at most 60,000.
const ACK_STEP: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fate {
    #[default]
    Unknown,
    Confirmed,
    Nacked,
    Abandoned,
}

/// A delivery as a consumer saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) producer: ProducerId,
    pub(crate) sequence: Sequence,
    pub(crate) tag: u64,
    pub(crate) redelivered: bool,
}

#[derive(Debug)]
pub(crate) struct Book {
    ack_grace: Duration,
    producers: Vec<Vec<Entry>>,
    connections: Vec<Connection>,
    failures: Vec<Duration>,
    repeats: Vec<Repeat>,
    repeats_forgotten: u64,
    undelivered: u64,
    unflagged: u64,
    foreign: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    fate: Fate,
    latest: Option<Receipt>,
}

/// Where a message was delivered. Small, because there is one for each message.
#[derive(Clone, Copy, Debug)]
struct Receipt {
    connection: std::num::NonZeroU32,
    tag: u32,
}

#[derive(Debug, Default)]
struct Connection {
    /// (highest tag acknowledged, when): in order, since a consumer acknowledges in order.
    acks: Vec<(u64, Duration)>,
    heard: Duration,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// In good order, so that everything sent on it was taken.
    Closed,
    Lost(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Repeat {
    producer: ProducerId,
    sequence: Sequence,
    /// The delivery before this one.
    earlier: Receipt,
}

impl Book {
    pub(crate) fn new(ack_grace: Duration) -> Self {
        Self {
            ack_grace,
            producers: Vec::new(),
            connections: Vec::new(),
            failures: Vec::new(),
            repeats: Vec::new(),
            repeats_forgotten: 0,
            undelivered: 0,
            unflagged: 0,
            foreign: 0,
        }
    }

    pub(crate) fn open_producer(&mut self) -> ProducerId {
        self.producers.push(Vec::new());
        ProducerId(u32::try_from(self.producers.len() - 1).expect("a run has few producers"))
    }

    /// The next message is about to be sent, if the producer's bound allows another.
    pub(crate) fn send(&mut self, producer: ProducerId) -> Option<Sequence> {
        let entries = &mut self.producers[producer.0 as usize];
        let sequence = entries.len() as u64;
        (sequence < MAX_MESSAGES).then(|| entries.push(Entry::default())).map(|()| Sequence(sequence))
    }

    /// What a publisher learned of messages it sent. The first word stands.
    pub(crate) fn settle(&mut self, producer: ProducerId, sequences: &[Sequence], fate: Fate) {
        for sequence in sequences {
            let entry = self.entry(producer, *sequence).expect("a publisher settles what it sent");
            if entry.fate != Fate::Unknown {
                continue;
            }
            entry.fate = fate;
            if fate == Fate::Confirmed && entry.latest.is_none() {
                self.undelivered += 1;
            }
        }
    }

    pub(crate) fn open_connection(&mut self, now: Duration) -> ConnectionId {
        self.connections.push(Connection { heard: now, ..Connection::default() });
        ConnectionId(u32::try_from(self.connections.len()).expect("fewer connections than 2^32")) // from 1
    }

    pub(crate) fn deliver(&mut self, connection: ConnectionId, arrivals: &[Arrival]) {
        let Some(number) = std::num::NonZeroU32::new(connection.0) else { return };
        for arrival in arrivals {
            let receipt = Receipt { connection: number, tag: u32::try_from(arrival.tag).unwrap_or(u32::MAX) };
            let Some(entry) = self.entry(arrival.producer, arrival.sequence) else {
                self.foreign += 1;
                continue;
            };
            let fate = entry.fate;
            match entry.latest.replace(receipt) {
                None => self.undelivered -= u64::from(fate == Fate::Confirmed),
                Some(earlier) => self.repeat(arrival, earlier),
            }
        }
    }

    pub(crate) fn note_foreign(&mut self, count: u64) {
        self.foreign += count;
    }

    /// The broker sent something, be it a heartbeat.
    pub(crate) fn hear(&mut self, connection: ConnectionId, now: Duration) {
        self.connection(connection).heard = now;
    }

    /// All deliveries up to `tag` are acknowledged.
    pub(crate) fn acknowledge(&mut self, connection: ConnectionId, now: Duration, tag: u64) {
        let acks = &mut self.connection(connection).acks;
        match acks.last_mut() {
            Some(last) if now < last.1 + ACK_STEP => *last = (tag, now),
            _ => acks.push((tag, now)),
        }
    }

    pub(crate) fn lose(&mut self, connection: ConnectionId, now: Duration) {
        self.connection(connection).end = Some(End::Lost(now));
    }

    pub(crate) fn close(&mut self, connection: ConnectionId) {
        self.connection(connection).end = Some(End::Closed);
    }

    pub(crate) fn note_failure(&mut self, at: Duration) {
        self.failures.push(at);
    }

    pub(crate) fn failures(&self) -> &[Duration] {
        &self.failures
    }

    pub(crate) fn undelivered(&self) -> u64 {
        self.undelivered
    }

    pub(crate) fn account(&self) -> Account {
        let mut account = Account {
            unflagged: self.unflagged,
            foreign: self.foreign,
            duplicated: self.repeats_forgotten,
            ..Account::default()
        };
        for (producer, entries) in (0..).map(ProducerId).zip(&self.producers) {
            for (sequence, entry) in (0..).map(Sequence).zip(entries) {
                account.enter(producer, sequence, entry);
            }
        }
        for repeat in &self.repeats {
            if self.is_excused(repeat.earlier) {
                account.redelivered += 1;
            } else {
                account.duplicated += 1;
                keep_example(&mut account.duplicated_examples, repeat.producer, repeat.sequence);
            }
        }
        account
    }

    fn repeat(&mut self, arrival: &Arrival, earlier: Receipt) {
        self.unflagged += u64::from(!arrival.redelivered);
        if self.repeats.len() < MAX_REPEATS {
            self.repeats.push(Repeat { producer: arrival.producer, sequence: arrival.sequence, earlier });
        } else {
            self.repeats_forgotten += 1;
        }
    }

    fn is_excused(&self, earlier: Receipt) -> bool {
        let connection = &self.connections[earlier.connection.get() as usize - 1];
        let Some(acknowledged) = connection.acknowledged(earlier.tag) else {
            return connection.end.is_some(); // never acknowledged: owed to someone else once the connection is gone
        };
        let Some(End::Lost(lost)) = connection.end else { return false };
        let taken = connection.heard >= acknowledged + self.ack_grace;
        !taken || self.failures.iter().any(|failure| acknowledged + self.ack_grace >= *failure && lost >= *failure)
    }

    fn entry(&mut self, producer: ProducerId, sequence: Sequence) -> Option<&mut Entry> {
        self.producers.get_mut(producer.0 as usize)?.get_mut(usize::try_from(sequence.0).ok()?)
    }

    fn connection(&mut self, connection: ConnectionId) -> &mut Connection {
        &mut self.connections[connection.0 as usize - 1]
    }
}

impl Connection {
    fn acknowledged(&self, tag: u32) -> Option<Duration> {
        let at = self.acks.partition_point(|(acknowledged, _)| *acknowledged < u64::from(tag));
        self.acks.get(at).map(|(_, when)| *when)
    }
}

impl Account {
    fn enter(&mut self, producer: ProducerId, sequence: Sequence, entry: &Entry) {
        let delivered = entry.latest.is_some();
        self.sent += 1;
        self.delivered += u64::from(delivered);
        match entry.fate {
            Fate::Unknown => {}
            Fate::Confirmed => {
                self.confirmed += 1;
                if !delivered {
                    self.lost += 1;
                    keep_example(&mut self.lost_examples, producer, sequence);
                }
            }
            Fate::Nacked => {
                self.nacked += 1;
                self.resent += u64::from(delivered);
            }
            Fate::Abandoned => {
                self.abandoned += 1;
                self.resent += u64::from(delivered);
            }
        }
    }
}

fn keep_example(examples: &mut Vec<(ProducerId, Sequence)>, producer: ProducerId, sequence: Sequence) {
    if examples.len() < MAX_EXAMPLES {
        examples.push((producer, sequence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_millis(100);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// One producer that sent four messages, all confirmed.
    fn book() -> (Book, ProducerId, [Sequence; 4]) {
        let mut book = Book::new(GRACE);
        let producer = book.open_producer();
        let sequences = std::array::from_fn(|_| book.send(producer).unwrap());
        book.settle(producer, &sequences, Fate::Confirmed);
        (book, producer, sequences)
    }

    fn arrival(sequence: u64, tag: u64, redelivered: bool) -> Arrival {
        Arrival { producer: ProducerId(0), sequence: Sequence(sequence), tag, redelivered }
    }

    #[test]
    fn confirmed_and_never_delivered_is_lost() {
        let (mut book, ..) = book();
        let connection = book.open_connection(ms(0));
        book.deliver(connection, &[arrival(0, 1, false), arrival(2, 2, false)]);
        assert_eq!(book.undelivered(), 2);
        let account = book.account();
        assert_eq!((account.sent, account.confirmed, account.delivered, account.lost), (4, 4, 2, 2));
        assert_eq!(account.lost_examples, [(ProducerId(0), Sequence(1)), (ProducerId(0), Sequence(3))]);
        assert!(!account.is_clean());
    }

    #[test]
    fn delivered_before_its_confirm_is_not_owed() {
        let mut book = Book::new(GRACE);
        let producer = book.open_producer();
        let sequence = book.send(producer).unwrap();
        let connection = book.open_connection(ms(0));
        book.deliver(connection, &[arrival(0, 1, false)]);
        book.settle(producer, &[sequence], Fate::Confirmed);
        assert_eq!(book.undelivered(), 0);
        assert!(book.account().is_clean());
    }

    #[test]
    fn what_a_publisher_sent_again_is_not_the_brokers_duplicate() {
        let mut book = Book::new(GRACE);
        let producer = book.open_producer();
        let first = book.send(producer).unwrap();
        book.settle(producer, &[first], Fate::Abandoned);
        let second = book.send(producer).unwrap();
        book.settle(producer, &[second], Fate::Confirmed);
        let connection = book.open_connection(ms(0));
        book.deliver(connection, &[arrival(0, 1, false), arrival(1, 2, false)]);
        let account = book.account();
        assert_eq!((account.abandoned, account.resent, account.duplicated, account.redelivered), (1, 1, 0, 0));
        assert!(account.is_clean());
    }

    #[test]
    fn a_message_of_nobody_is_foreign() {
        let (mut book, ..) = book();
        let connection = book.open_connection(ms(0));
        book.deliver(connection, &[arrival(4, 1, false)]);
        book.note_foreign(1);
        assert_eq!(book.account().foreign, 2);
    }

    /// Message 0 is delivered at 10 ms as tag 1, something happens, and it is delivered again: (duplicated, redelivered).
    fn verdict(happens: impl FnOnce(&mut Book, ConnectionId)) -> (u64, u64) {
        let (mut book, ..) = book();
        let first = book.open_connection(ms(0));
        book.deliver(first, &[arrival(0, 1, false)]);
        happens(&mut book, first);
        let second = book.open_connection(ms(1000));
        book.deliver(second, &[arrival(0, 1, true)]);
        let account = book.account();
        assert_eq!(account.unflagged, 0);
        (account.duplicated, account.redelivered)
    }

    const DUPLICATED: (u64, u64) = (1, 0);
    const EXCUSED: (u64, u64) = (0, 1);

    #[test]
    fn a_second_delivery_while_the_first_is_still_out_is_a_duplicate() {
        assert_eq!(verdict(|_, _| ()), DUPLICATED);
    }

    #[test]
    fn unacknowledged_when_its_connection_ended_is_excused() {
        assert_eq!(verdict(|book, connection| book.lose(connection, ms(20))), EXCUSED);
        assert_eq!(verdict(|book, connection| book.close(connection)), EXCUSED);
    }

    #[test]
    fn acknowledged_on_a_connection_that_lives_or_was_closed_is_a_duplicate() {
        assert_eq!(verdict(|book, connection| book.acknowledge(connection, ms(20), 1)), DUPLICATED);
        let closed = |book: &mut Book, connection| {
            book.acknowledge(connection, ms(20), 1);
            book.close(connection);
        };
        assert_eq!(verdict(closed), DUPLICATED);
    }

    #[test]
    fn acknowledged_just_before_the_loss_is_excused_and_long_before_is_not() {
        let heard_until = |heard| {
            verdict(move |book, connection| {
                book.acknowledge(connection, ms(20), 1);
                book.hear(connection, ms(heard));
                book.lose(connection, ms(900)); // a frozen broker: the loss is noticed long after it was last heard
            })
        };
        assert_eq!(heard_until(119), EXCUSED);
        assert_eq!(heard_until(120), DUPLICATED);
    }

    #[test]
    fn acknowledged_to_a_broker_that_was_cut_off_is_excused() {
        let cut_at = |cut| {
            verdict(move |book, connection| {
                book.acknowledge(connection, ms(300), 1);
                book.note_failure(ms(cut));
                book.hear(connection, ms(800)); // it goes on talking to its client
                book.lose(connection, ms(900));
            })
        };
        assert_eq!(cut_at(250), EXCUSED);
        assert_eq!(cut_at(400), EXCUSED);
        assert_eq!(cut_at(401), DUPLICATED); // acknowledged well before the cut
        assert_eq!(cut_at(950), DUPLICATED); // the connection was gone before the cut
    }

    #[test]
    fn a_third_delivery_is_judged_by_the_second() {
        let (mut book, ..) = book();
        let first = book.open_connection(ms(0));
        book.deliver(first, &[arrival(0, 1, false)]);
        book.lose(first, ms(20));
        let second = book.open_connection(ms(30));
        book.deliver(second, &[arrival(0, 1, true)]);
        book.acknowledge(second, ms(50), 1);
        book.deliver(second, &[arrival(0, 2, false)]);
        let account = book.account();
        assert_eq!((account.redelivered, account.duplicated, account.unflagged), (1, 1, 1));
    }

    #[test]
    fn each_tag_has_the_time_of_the_acknowledgement_that_covered_it() {
        let connection = Connection { acks: vec![(3, ms(10)), (5, ms(20))], ..Connection::default() };
        assert_eq!(connection.acknowledged(1), Some(ms(10)));
        assert_eq!(connection.acknowledged(3), Some(ms(10)));
        assert_eq!(connection.acknowledged(4), Some(ms(20)));
        assert_eq!(connection.acknowledged(6), None);
    }
}
