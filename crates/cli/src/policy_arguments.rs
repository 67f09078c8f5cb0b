//! Options for the settings of an app, one for each key that there is.

use clap::{Arg, ArgMatches, Args, Command, Error};
use mobifs_volume::{Kind, PolicyKey, PolicySettings};

/// What is given for the keys of [`PolicySettings`], in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyArguments {
    given: Vec<(&'static PolicyKey, String)>,
}

impl PolicyArguments {
    /// The settings that they say.
    ///
    /// # Errors
    /// A sentence that says which one is wrong, and why.
    pub(crate) fn settings(&self) -> Result<PolicySettings, String> {
        let mut settings = PolicySettings::default();
        for (key, text) in &self.given {
            let set = settings.set(key, text);
            set.map_err(|error| error.to_string())?;
        }
        Ok(settings)
    }
}

impl Args for PolicyArguments {
    fn augment_args(command: Command) -> Command {
        command.args(PolicySettings::KEYS.iter().map(option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for PolicyArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |key: &'static PolicyKey| {
            let text = matches.get_one::<String>(key.name)?;
            Some((key, text.clone()))
        };
        Ok(Self {
            given: PolicySettings::KEYS.iter().filter_map(given).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn option(key: &'static PolicyKey) -> Arg {
    let option = Arg::new(key.name)
        .long(key.name.replace('_', "-"))
        .help(key.summary);
    let option = match value_name(key.kind) {
        Some(name) => option.value_name(name),
        None => option.value_name(key.name.to_uppercase()),
    };
    match key.kind {
        Kind::Text => option,
        // Negative numbers are accepted here, so that the error can say what is wrong.
        Kind::Size => option.allow_hyphen_values(true),
        _ => option
            .allow_hyphen_values(true)
            .value_parser(move |text: &str| {
                let set = PolicySettings::default().set(key, text);
                set.map(|()| text.to_owned()).map_err(|error| error.message)
            }),
    }
}

const fn value_name(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Size => Some("SIZE"),
        Kind::Milliseconds => Some("MS"),
        Kind::Microseconds => Some("US"),
        Kind::Count => Some("COUNT"),
        Kind::Slope => Some("SLOPE"),
        Kind::Flag | Kind::Text | Kind::Globs => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn every_setting_of_an_app_has_an_option() {
        let command = PolicyArguments::augment_args(Command::new("set"));
        for key in PolicySettings::KEYS {
            let value = match key.kind {
                Kind::Slope => "-7",
                Kind::Size => "3MiB",
                _ => "17",
            };
            let option = format!("--{}", key.name.replace('_', "-"));
            let matches = command
                .clone()
                .try_get_matches_from(["set", &option, value]);
            let arguments = PolicyArguments::from_arg_matches(&matches.unwrap()).unwrap();
            let mut expected = PolicySettings::default();
            expected.set(key, value).unwrap();
            assert_ne!(expected, PolicySettings::default());
            assert_eq!(arguments.settings(), Ok(expected));
        }
    }
}
