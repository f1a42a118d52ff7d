//! What runs short on a replica, as it travels.

use understudy_record::{Alarms, Shortage};

use crate as wire;

impl wire::Alarms {
    pub fn any(&self) -> bool {
        Alarms::from(*self).any()
    }

    /// One sentence a resource, like `orders-1 is low on disk: 80 MB free, watermark 107 MB`.
    pub fn describe(&self, replica: &str) -> Vec<String> {
        Alarms::from(*self).describe(replica)
    }
}

impl From<Alarms> for wire::Alarms {
    fn from(alarms: Alarms) -> Self {
        let shortage = |Shortage { bytes, watermark }| wire::Shortage { bytes, watermark };
        Self { memory: alarms.memory.map(shortage), disk: alarms.disk.map(shortage) }
    }
}

impl From<wire::Alarms> for Alarms {
    fn from(alarms: wire::Alarms) -> Self {
        let shortage = |wire::Shortage { bytes, watermark }| Shortage { bytes, watermark };
        Self { memory: alarms.memory.map(shortage), disk: alarms.disk.map(shortage) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_says_the_same() {
        let shortage = Some(Shortage { bytes: 1, watermark: 2 });
        for alarms in
            [Alarms::default(), Alarms { memory: shortage, disk: None }, Alarms { memory: None, disk: shortage }]
        {
            assert_eq!(Alarms::from(wire::Alarms::from(alarms)), alarms);
        }
    }
}
