//! `mobifs flash validate`

use std::path::PathBuf;

use clap::Args;
use mobifs_device_model::{Config, Preset};
use mobifs_experiments::{DeviceUnderTest, Extent, Validation, svg, table, validate};
use serde::Serialize;

use super::config;
use crate::failure::{Code, Failure, put};

/// Version of the JSON document.
const SCHEMA: u32 = 1;
/// The word for every preset.
const ALL: &str = "all";

pub(super) const HELP: &str = "\
Repeats published experiments with the model, in virtual time, and says of each finding
whether the model has it (docs/FLASH-VALIDATION.md says which, and why some are not judged):
  the basic figures of the preset
  S4 Fig. 9    a 100 MB file is read in ever smaller pieces
  S4 Fig. 13   random accesses in regions of 1 MB to 2 GB, by size of the mapping cache
  S3 Fig. 8    flush at end against direct persistence for commits of 4 to 256 KiB

S3: an excerpt of a work on persistence with hardware features of eMMC, whose title is not known.
S4: C. Ji et al., File Fragmentation in Mobile Devices, IEEE Transactions on Mobile Computing, 2018.

The exit code is 1 if any criterion failed.";

#[derive(Debug, Args)]
pub(crate) struct ValidateArguments {
    /// The device: microsd, emmc51, ufs31 or all; may be repeated
    #[arg(long, value_name = "NAME", default_value = ALL, conflicts_with = "config")]
    pub(crate) preset: Vec<String>,
    /// The device, described in a file (TOML, as the presets are)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Seed of everything that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Smaller files and regions, fewer operations: for a first look
    #[arg(long)]
    pub(crate) quick: bool,
    /// Draw the measurements into a file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    failed: usize,
    validations: &'a [Validation],
}

pub(crate) fn run(arguments: &ValidateArguments) -> Result<(), Failure> {
    let failed = |message: String| Failure::new(Code::Failed, message);
    let extent = if arguments.quick {
        Extent::Quick
    } else {
        Extent::Full
    };
    let mut validations = Vec::new();
    for device in devices(arguments)? {
        let validation = validate(&device, arguments.seed, extent)
            .map_err(|error| failed(format!("{}: {error}", device.config.name)))?;
        if !arguments.json {
            put(&format!("{}\n", table(&validation)))?;
        }
        validations.push(validation);
    }
    if let Some(path) = &arguments.plot {
        let picture = svg(&validations).map_err(|error| failed(error.to_string()))?;
        std::fs::write(path, picture)
            .map_err(|error| failed(format!("the plot {}: {error}", path.display())))?;
    }
    let failures = validations.iter().map(|validation| validation.failed).sum();
    if arguments.json {
        let document = Document {
            schema: SCHEMA,
            failed: failures,
            validations: &validations,
        };
        let text = serde_json::to_string_pretty(&document);
        put(&(text.map_err(|error| failed(error.to_string()))? + "\n"))?;
    }
    if failures == 0 {
        return Ok(());
    }
    let count: usize = validations.iter().map(|of| of.criteria.len()).sum();
    Err(failed(format!("{failures} of {count} criteria failed")))
}

fn devices(arguments: &ValidateArguments) -> Result<Vec<DeviceUnderTest>, Failure> {
    if let Some(path) = &arguments.config {
        let config = config::load(path)?;
        return Ok(vec![DeviceUnderTest {
            config,
            preset: None,
        }]);
    }
    let usage = |error: mobifs_device_model::ConfigError| {
        Failure::new(Code::Usage, format!("{error} (or '{ALL}')"))
    };
    let mut presets: Vec<Preset> = Vec::new();
    for name in &arguments.preset {
        if name == ALL {
            presets.extend(Preset::ALL);
        } else {
            presets.push(name.parse().map_err(usage)?);
        }
    }
    let device = |preset: Preset| -> Result<DeviceUnderTest, Failure> {
        let config: Config = preset.config().map_err(usage)?;
        Ok(DeviceUnderTest {
            config,
            preset: Some(preset),
        })
    };
    presets.into_iter().map(device).collect()
}
