//! Interned names.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

/// An index into a [`Names`].
pub trait NameIndex: Copy {
    /// The index of the `index`-th name.
    fn new(index: u32) -> Self;
    /// Which name it is.
    fn index(self) -> usize;
}

macro_rules! name_index {
    ($(#[$documentation:meta])* $name:ident) => {
        $(#[$documentation])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl NameIndex for $name {
            fn new(index: u32) -> Self {
                Self(index)
            }

            fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

name_index!(
    /// An app of a trace.
    AppIndex
);
name_index!(
    /// A path of a trace.
    PathIndex
);

/// Names that are kept once and referred to by index, in the order in which they were first
/// seen. They are bytes: Linux asks no more of a path.
#[derive(Clone, Debug)]
pub struct Names<I> {
    names: Vec<Arc<[u8]>>,
    indices: HashMap<Arc<[u8]>, u32>,
    of: PhantomData<I>,
}

impl<I> Default for Names<I> {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            indices: HashMap::new(),
            of: PhantomData,
        }
    }
}

impl<I> PartialEq for Names<I> {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

impl<I> Eq for Names<I> {}

impl<I: NameIndex> Names<I> {
    /// The index of `name`, which is added if it is new.
    pub fn intern(&mut self, name: &[u8]) -> I {
        if let Some(index) = self.find(name) {
            return index;
        }
        // 2³² names would fill 100 GB of memory before this number ends.
        let index = self.names.len() as u32;
        let name: Arc<[u8]> = name.into();
        self.names.push(Arc::clone(&name));
        self.indices.insert(name, index);
        I::new(index)
    }

    /// The index of `name`, if it is there.
    pub fn find(&self, name: &[u8]) -> Option<I> {
        self.indices.get(name).map(|&index| I::new(index))
    }

    /// The name that an index of these names stands for.
    ///
    /// # Panics
    /// The index is not from here.
    pub fn get(&self, index: I) -> &[u8] {
        &self.names[index.index()]
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Names with their indices, in the order in which they were first seen.
    pub fn iter(&self) -> impl Iterator<Item = (I, &[u8])> {
        let indices = (0..).map(I::new);
        indices.zip(self.names.iter().map(|name| &**name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        let mut names = Names::<PathIndex>::default();
        let first = names.intern(b"a/\xff");
        assert_eq!(names.intern(b"b"), PathIndex(1));
        assert_eq!(names.intern(b"a/\xff"), first);
        assert_eq!(names.get(first), b"a/\xff");
        assert_eq!(names.find(b"c"), None);
        assert_eq!(names.len(), 2);
    }
}
