//! What commands about fragmented files take as the model of a device, and as what is read.

use std::path::Path;

use clap::Args;
use mobifs_advisor::TraceFacts;
use mobifs_fragmentation::Model;

use crate::failure::Failure;

/// What a trace says of files.
pub(super) fn facts_of(path: &Path) -> Result<TraceFacts, Failure> {
    Ok(TraceFacts::of(&crate::trace::known_trace(path)?))
}

/// What fragments cost, as S4 fits it.
#[derive(Debug, Args)]
pub(super) struct ModelArguments {
    /// What a piece more costs when a file is read [default: 0.17, of S4's phone]
    #[arg(long, value_name = "MS", value_parser = positive)]
    piece_ms: Option<f64>,
    /// What a megabyte costs when a file is read [default: 9.9, of S4's phone]
    #[arg(long, value_name = "MS", value_parser = positive)]
    megabyte_ms: Option<f64>,
}

impl ModelArguments {
    pub(super) fn model(&self) -> Model {
        let usual = Model::default();
        Model {
            piece_ms: self.piece_ms.unwrap_or(usual.piece_ms),
            megabyte_ms: self.megabyte_ms.unwrap_or(usual.megabyte_ms),
        }
    }

    /// None if nothing was given.
    pub(super) fn given(&self) -> Option<Model> {
        let is_given = self.piece_ms.is_some() || self.megabyte_ms.is_some();
        is_given.then(|| self.model())
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    // What a device could cost, and what can be read in a table.
    if (1e-6..=1e6).contains(&number) {
        Ok(number)
    } else {
        Err("must be from 0.000001 to 1000000".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_the_usual_line() {
        use clap::CommandFactory as _;
        #[derive(clap::Parser)]
        struct Parser {
            #[command(flatten)]
            model: ModelArguments,
        }
        let help = Parser::command().render_help().to_string();
        let usual = Model::default();
        for number in [usual.piece_ms, usual.megabyte_ms] {
            assert!(
                help.contains(&format!("default: {number}, of S4")),
                "{help}"
            );
        }
    }
}
