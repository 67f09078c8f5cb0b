//! Enums whose values have words.

/// An enum whose values have words, by which files and command lines name them.
#[macro_export]
macro_rules! worded {
    (
        $(#[$documentation:meta])*
        $name:ident { $($(#[$value_documentation:meta])* $value:ident = $word:literal,)+ }
    ) => {
        $(#[$documentation])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$value_documentation])* $value,)+
        }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$value,)+];

            /// The word that stands for it.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }

            /// The value that a word stands for.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.word() == word)
            }
        }
    };
}
