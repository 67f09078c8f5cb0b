//! `mobifs persist commands`

use clap::Args;
use mobifs_device_model::{Config, Preset};
use mobifs_persistence::commands::{GroupCosts, group_costs};
use mobifs_persistence::{Section, text_of};

use super::output::{OutputArguments, failure, preset};
use crate::failure::Failure;

pub(super) const HELP: &str = "\
1 to 16 programs commit a row each at the same moment. Ways: one after the other, each commit a write and a flush,
or a durable write (FUA, eMMC's reliable write); a write each and one flush; one packed command whose parts are
durable writes; one transaction for all of them, which is MobiFS's group commit. Virtual time: the numbers are the
same on every machine. Linux has no request for packed commands, so only the model can show them.";

#[derive(Debug, Args)]
pub(super) struct CommandsArguments {
    /// The modelled device: microsd, emmc51 or ufs31
    #[arg(long, value_name = "NAME", default_value = "emmc51", value_parser = preset)]
    model: Preset,
    #[command(flatten)]
    output: OutputArguments,
}

pub(super) fn run(arguments: &CommandsArguments) -> Result<(), Failure> {
    let found = measure(arguments.model)?;
    let text = text_of(&found.tables());
    arguments.output.show(&found, &text, section(&found))
}

pub(super) fn measure(preset: Preset) -> Result<GroupCosts, Failure> {
    let config: Config = preset.config().map_err(|error| failure(&error.into()))?;
    group_costs(&config).map_err(|error| failure(&error))
}

pub(super) fn section(found: &GroupCosts) -> Section {
    found.section(&HELP.replace('\n', " "))
}
