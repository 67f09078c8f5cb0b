//! What the commands about persistence have in common: the model of a device, and where results go.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use clap::Args;
use mobifs_device_model::Preset;
use mobifs_device_server::Scale;
use mobifs_persistence::{PersistError, Section, page};
use serde::Serialize;

use crate::failure::{Code, Failure, put};

/// The device that a filesystem is put on.
#[derive(Debug, Args)]
pub(super) struct ModelArguments {
    /// The modelled device: microsd, emmc51 or ufs31
    #[arg(long, value_name = "NAME", default_value = "emmc51", value_parser = preset)]
    pub(super) model: Preset,
    /// Real seconds for each second of the device: 1 as the device, 0 counts only and never waits
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    pub(super) scale: Scale,
}

pub(super) fn preset(name: &str) -> Result<Preset, String> {
    Preset::from_str(name).map_err(|error| error.to_string())
}

/// How a result is shown.
#[derive(Debug, Args)]
pub(super) struct OutputArguments {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Write a page with tables and figures, beside the published values
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

impl OutputArguments {
    /// Refuses before anything is measured what could not be written afterwards.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.html.as_deref().map_or(Ok(()), check_output)
    }

    pub(super) fn show(
        &self,
        document: &impl Serialize,
        text: &str,
        section: Section,
    ) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            let about = "S3 (characterisation) and S2 (evaluation) beside what was measured here";
            write(path, &page(about, &[section]))?;
        }
        if self.json {
            let text = serde_json::to_string_pretty(document);
            return put(
                &(text.map_err(|error| Failure::new(Code::Failed, error.to_string()))? + "\n"),
            );
        }
        put(text)
    }
}

pub(super) fn write(path: &Path, content: &str) -> Result<(), Failure> {
    fs::write(path, content).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot write {}: {error}", path.display());
    Failure::new(Code::Failed, message)
}

/// Whether [`write`] can write this file; leaves everything as it is.
pub(super) fn check_output(path: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| cannot_write(path, &error);
    match fs::metadata(path) {
        Ok(found) if found.is_file() || found.is_dir() => {
            File::options().append(true).open(path).map_err(failed)?;
        }
        // Such as /dev/stdout, or a FIFO whose reader has not come.
        Ok(_) => {}
        Err(_) => {
            File::create_new(path).map_err(failed)?;
            fs::remove_file(path).map_err(failed)?;
        }
    }
    Ok(())
}

/// Where images are meanwhile.
pub(super) fn scratch() -> PathBuf {
    std::env::var_os("MOBIFS_SCRATCH").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

pub(super) fn failure(error: &PersistError) -> Failure {
    let code = match error {
        PersistError::Damaged(_)
        | PersistError::DamagedStore(_)
        | PersistError::NewerFormat(_)
        | PersistError::NewerFilesystem(_)
        | PersistError::Store(_) => Code::Damaged,
        _ => Code::Failed,
    };
    Failure::new(code, error.to_string())
}
