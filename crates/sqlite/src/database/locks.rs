//! The locks that connections of one process have on each other: SQLite's five levels, as
//! its documentation defines them ("File Locking And Concurrency In SQLite Version 3").

use crate::interface::abi::{self, Code};

/// SQLite's lock levels of a connection on a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Nothing.
    #[default]
    None,
    /// The connection reads.
    Shared,
    /// The connection will write; other connections still read.
    Reserved,
    /// The connection waits for readers to finish; no new ones are admitted.
    Pending,
    /// The connection writes.
    Exclusive,
}

impl Level {
    /// SQLite's number of a level.
    pub(crate) const fn of(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Shared,
            2 => Self::Reserved,
            3 => Self::Pending,
            4 => Self::Exclusive,
            _ => return None,
        })
    }
}

/// Names a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// Which connection has which lock on a database.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// Connections at [`Level::Shared`] or above.
    readers: usize,
    /// The connection at [`Level::Reserved`] or above, if any.
    writer: Option<ConnectionId>,
    /// The connection at [`Level::Pending`] or above, if any: no other one becomes a reader.
    closed_by: Option<ConnectionId>,
}

impl Locks {
    /// Brings a connection from `level` up to `wanted`. `level` is what it has afterwards, also on
    /// failure: a writer that has to wait for readers stays pending. A reader that requests the
    /// exclusive lock at once, for a hot journal or in exclusive locking mode, stays a reader:
    /// SQLite considers it one, and would not release more.
    ///
    /// # Errors
    /// `SQLITE_BUSY`.
    pub(crate) fn raise(
        &mut self,
        connection: ConnectionId,
        level: &mut Level,
        wanted: Level,
    ) -> Result<(), Code> {
        if wanted <= *level {
            return Ok(());
        }
        let is_others =
            |holder: Option<ConnectionId>| holder.is_some_and(|holder| holder != connection);
        if is_others(self.closed_by) {
            return Err(abi::BUSY);
        }
        if *level == Level::None {
            self.readers += 1;
            *level = Level::Shared;
        }
        if wanted == Level::Shared {
            return Ok(());
        }
        if is_others(self.writer) {
            return Err(abi::BUSY);
        }
        let is_alone = self.readers == 1;
        if wanted == Level::Exclusive && *level == Level::Shared && !is_alone {
            return Err(abi::BUSY);
        }
        self.writer = Some(connection);
        if wanted == Level::Reserved {
            *level = Level::Reserved;
            return Ok(());
        }
        self.closed_by = Some(connection);
        *level = Level::Pending;
        if wanted == Level::Exclusive {
            if !is_alone {
                return Err(abi::BUSY);
            }
            *level = Level::Exclusive;
        }
        Ok(())
    }

    /// Brings a connection down to `wanted`, [`Level::Shared`] or [`Level::None`].
    pub(crate) fn lower(&mut self, connection: ConnectionId, level: &mut Level, wanted: Level) {
        if wanted >= *level {
            return;
        }
        for holder in [&mut self.writer, &mut self.closed_by] {
            if *holder == Some(connection) {
                *holder = None;
            }
        }
        if wanted == Level::None {
            self.readers -= 1;
        }
        *level = wanted;
    }

    /// Whether some connection is about to write.
    pub(crate) const fn has_writer(&self) -> bool {
        self.writer.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Connection(ConnectionId, Level);

    impl Connection {
        fn new(number: u64) -> Self {
            Self(ConnectionId(number), Level::None)
        }

        fn raise(&mut self, locks: &mut Locks, wanted: Level) -> bool {
            locks.raise(self.0, &mut self.1, wanted).is_ok()
        }

        fn lower(&mut self, locks: &mut Locks, wanted: Level) {
            locks.lower(self.0, &mut self.1, wanted);
        }
    }

    #[test]
    fn one_writes_when_the_readers_have_left() {
        let mut locks = Locks::default();
        let (mut one, mut other) = (Connection::new(1), Connection::new(2));
        assert!(one.raise(&mut locks, Level::Shared) && other.raise(&mut locks, Level::Shared));
        assert!(one.raise(&mut locks, Level::Reserved) && locks.has_writer());
        assert!(!other.raise(&mut locks, Level::Reserved), "one writer");
        assert!(
            !one.raise(&mut locks, Level::Exclusive),
            "another connection reads"
        );
        assert_eq!(one.1, Level::Pending);
        let mut third = Connection::new(3);
        assert!(!third.raise(&mut locks, Level::Shared), "no new readers");
        assert_eq!(third.1, Level::None);
        other.lower(&mut locks, Level::None);
        assert!(one.raise(&mut locks, Level::Exclusive));
        one.lower(&mut locks, Level::Shared);
        assert!(third.raise(&mut locks, Level::Shared) && !locks.has_writer());
    }

    #[test]
    fn a_hot_journal_is_rolled_back_by_one_of_two_readers() {
        // SQLite goes from shared to exclusive at once for that.
        let mut locks = Locks::default();
        let (mut one, mut other) = (Connection::new(1), Connection::new(2));
        assert!(one.raise(&mut locks, Level::Shared) && other.raise(&mut locks, Level::Shared));
        assert!(!one.raise(&mut locks, Level::Exclusive));
        assert!(!other.raise(&mut locks, Level::Exclusive));
        assert_eq!((one.1, other.1), (Level::Shared, Level::Shared));
        let mut third = Connection::new(3);
        assert!(third.raise(&mut locks, Level::Shared), "both only read");
        third.lower(&mut locks, Level::None);
        other.lower(&mut locks, Level::None);
        assert!(one.raise(&mut locks, Level::Exclusive));
    }

    /// Any sequence of steps keeps the invariants that the levels are defined by.
    #[test]
    fn levels_never_contradict_each_other() {
        let mut locks = Locks::default();
        let mut all: Vec<Connection> = (0..4).map(Connection::new).collect();
        let mut state = 1_u64;
        for _ in 0..100_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let index = (state >> 33) as usize % all.len();
            let wanted = Level::of((state >> 40) as i32 % 5).unwrap();
            let connection = &mut all[index];
            if state >> 60 & 1 == 0 {
                connection.raise(&mut locks, wanted);
            } else if wanted <= Level::Shared {
                connection.lower(&mut locks, wanted);
            }
            let at_least = |level| all.iter().filter(|one| one.1 >= level).count();
            assert!(at_least(Level::Reserved) <= 1);
            if at_least(Level::Exclusive) == 1 {
                assert_eq!(at_least(Level::Shared), 1);
            }
            assert_eq!(locks.readers, at_least(Level::Shared));
            assert_eq!(locks.has_writer(), at_least(Level::Reserved) == 1);
        }
    }
}
