//! Content to write, described in a few bytes.

use mobifs_numerics::Random;

/// Content made from a tag: long enough to write megabytes, short enough to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Which content; 0 is zeros.
    pub tag: u32,
    /// Length in bytes.
    pub length: u32,
}

impl Payload {
    /// The bytes. No two places of one content, and no two contents, look alike, so
    /// that a block that lands in a wrong place is seen.
    pub fn bytes(self) -> Vec<u8> {
        if self.tag == 0 {
            return vec![0; self.length as usize];
        }
        let mut out = Vec::with_capacity(self.length as usize + 8);
        let mut random = Random::new(u64::from(self.tag) << 32);
        while out.len() < self.length as usize {
            out.extend_from_slice(&random.next_u64().to_le_bytes());
        }
        out.truncate(self.length as usize);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_differ_by_tag_and_place() {
        let (a, b) = (
            Payload {
                tag: 1,
                length: 8192,
            },
            Payload {
                tag: 2,
                length: 8192,
            },
        );
        assert_ne!(a.bytes(), b.bytes());
        assert_ne!(a.bytes()[..4096], a.bytes()[4096..]);
        assert_eq!(
            a.bytes()[..100],
            Payload {
                tag: 1,
                length: 100
            }
            .bytes()
        );
        assert_eq!(Payload { tag: 0, length: 3 }.bytes(), [0, 0, 0]);
    }
}
