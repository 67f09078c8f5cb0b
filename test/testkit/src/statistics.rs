//! What searches and campaigns count.

/// Declares a type of counts, all of which start at 0, and how the counts of two searches are added:
/// field by field, so that none can be forgotten.
#[macro_export]
macro_rules! statistics {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $( $(#[$field_attribute:meta])* pub $field:ident: $count:ty, )*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $visibility struct $name {
            $( $(#[$field_attribute])* pub $field: $count, )*
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $( self.$field += other.$field; )*
            }
        }
    };
}

pub use statistics;

#[cfg(test)]
mod tests {
    statistics! {
        /// Two counts.
        struct Counts {
            /// The first.
            pub one: u64,
            /// The second.
            pub two: u64,
        }
    }

    #[test]
    fn every_count_is_added() {
        let mut sum = Counts { one: 1, two: 2 };
        sum += Counts { one: 10, two: 20 };
        assert_eq!(sum, Counts { one: 11, two: 22 });
    }
}
