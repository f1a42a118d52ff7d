//! Octets, taken from the front. What is not there is zero, so that every input means something.

pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(octets: &'a [u8]) -> Self {
        Self(octets)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn octet(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// So many, or as many as there are.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A length, and so many octets.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let length = self.octet();
        self.take(length.into())
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}
