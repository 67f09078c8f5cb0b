//! The works that pages, figures and helps cite by a short name.

/// Short names, and what they stand for.
const SOURCES: [(&str, &str); 5] = [
    (
        "S0",
        "the paper about MobiFS, USENIX ATC 2015: J. Ren, M. Liang, Y. Wu and T. Moscibroda, \
         Memory-Centric Data Storage for Mobile Systems",
    ),
    ("S1", "the slides of that paper"),
    (
        "S2",
        "an excerpt, evaluation, of a work on persistence with hardware features of eMMC, whose title is \
         not known",
    ),
    ("S3", "another excerpt of that work, characterisation"),
    (
        "S4",
        "C. Ji et al., File Fragmentation in Mobile Devices: Measurement, Evaluation, and Treatment, IEEE \
         Transactions on Mobile Computing, doi 10.1109/TMC.2018.2869737",
    ),
];

/// What the short names that a text cites stand for, a sentence each; empty if it cites none.
pub fn cited_sources(text: &str) -> Vec<String> {
    let cited = SOURCES.iter().filter(|(name, _)| is_cited(text, name));
    cited
        .map(|(name, work)| format!("{name}: {work}."))
        .collect()
}

/// Whether the name is a word of the text.
fn is_cited(text: &str, name: &str) -> bool {
    let is_word = |character: char| character.is_ascii_alphanumeric() || "_-#.".contains(character);
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + name.len()..].chars().next();
        let ends_well = after.is_none_or(|next| !next.is_ascii_alphanumeric());
        before.is_none_or(|before| !is_word(before)) && ends_well
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cited_is_explained_once() {
        let text = "as in S4 Fig. 9 and S4's phone, (S0 §5.3); not LS2, S30, nor #S1";
        let cited = cited_sources(text);
        let names: Vec<&str> = cited.iter().map(|sentence| &sentence[..2]).collect();
        assert_eq!(names, ["S0", "S4"]);
        assert_eq!(cited_sources("nothing"), Vec::<String>::new());
    }
}
