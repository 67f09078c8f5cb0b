//! All experiments with one device, and whether the published results are reproduced.

use mobifs_device_model::{Config, Preset};
use serde::Serialize;

use crate::criterion::{Criterion, Verdict};
use crate::experiment::ExperimentError;
use crate::experiment::calibration::{self, Calibration};
use crate::experiment::dispersion::{self, Dispersion};
use crate::experiment::fragmentation::{self, Fragmentation};
use crate::experiment::persistence::{self, Persistence};

/// A device to validate.
#[derive(Clone, Debug)]
pub struct DeviceUnderTest {
    /// The device.
    pub config: Config,
    /// Which preset it is; none for a configuration of the user's own.
    pub preset: Option<Preset>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// What the publications measured.
    Full,
    /// Smaller files and regions and fewer repetitions, for a first look; the criteria stay.
    Quick,
}

/// What was found about one device.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// Name of the configuration.
    pub device: String,
    /// Seed of the device and of the accesses.
    pub seed: u64,
    /// How much was measured.
    pub extent: Extent,
    /// Basic figures.
    pub calibration: Calibration,
    /// S4 Fig. 9.
    pub fragmentation: Fragmentation,
    /// S4 Fig. 13.
    pub dispersion: Dispersion,
    /// S3 Fig. 8.
    pub persistence: Persistence,
    /// All criteria, in the order of the experiments.
    pub criteria: Vec<Criterion>,
    /// How many of them failed.
    pub failed: usize,
}

/// Runs all experiments with a device.
///
/// The papers measured phones with eMMC: the sizes of their effects are judged for the eMMC
/// preset and for configurations of the user's own, and only shown for microSD and UFS.
///
/// # Errors
/// A configuration that is refused.
pub fn validate(
    device: &DeviceUnderTest,
    seed: u64,
    extent: Extent,
) -> Result<Validation, ExperimentError> {
    let config = &device.config;
    let is_emmc = !matches!(device.preset, Some(Preset::MicroSd | Preset::Ufs31));
    let is_ufs = device.preset == Some(Preset::Ufs31);
    let calibration = calibration::run(config, seed)?;
    let fragmentation = fragmentation::run(config, seed, &fragmentation_of(extent))?;
    let dispersion = dispersion::run(config, seed, &dispersion_of(extent))?;
    let persistence = persistence::run(config, seed, &persistence_of(extent))?;
    let mut criteria = Vec::new();
    if let Some(preset) = device.preset {
        criteria.extend(calibration.criteria(preset));
    }
    criteria.extend(fragmentation.criteria(is_emmc));
    criteria.extend(dispersion.criteria(is_emmc));
    criteria.extend(persistence.criteria(is_emmc, is_ufs));
    let failed = criteria
        .iter()
        .filter(|criterion| criterion.verdict == Verdict::Fail)
        .count();
    Ok(Validation {
        device: config.name.clone(),
        seed,
        extent,
        calibration,
        fragmentation,
        dispersion,
        persistence,
        criteria,
        failed,
    })
}

fn fragmentation_of(extent: Extent) -> fragmentation::Parameters {
    match extent {
        Extent::Full => fragmentation::Parameters::default(),
        Extent::Quick => fragmentation::Parameters::of_pages(6_250),
    }
}

fn dispersion_of(extent: Extent) -> dispersion::Parameters {
    let full = dispersion::Parameters::default();
    match extent {
        Extent::Full => full,
        // As many operations as S4's: with fewer, a collecting device is still busy with the
        // blocks that were filled before, and those cost the same whatever the region is.
        Extent::Quick => dispersion::Parameters {
            capacity_bytes: 1 << 30,
            file_bytes: 512 << 20,
            regions_bytes: vec![1 << 20, 10 << 20, 100 << 20, 512 << 20],
            ..full
        },
    }
}

fn persistence_of(extent: Extent) -> persistence::Parameters {
    let full = persistence::Parameters::default();
    match extent {
        Extent::Full => full,
        Extent::Quick => persistence::Parameters {
            commits: 50,
            ..full
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With 2,000 operations the slowdown of a collecting device was 0.66 of that of an empty one:
    /// the smallest region was not faster than the largest, because what the run had written
    /// itself was not collected yet.
    #[test]
    fn a_quick_validation_of_the_preset_that_is_judged_passes_whatever_the_seed() {
        for seed in 1..=3 {
            let device = DeviceUnderTest {
                config: Preset::Emmc51.config().unwrap(),
                preset: Some(Preset::Emmc51),
            };
            let validation = validate(&device, seed, Extent::Quick).unwrap();
            let of = |verdict| {
                let criteria = validation.criteria.iter();
                criteria.filter(move |criterion| criterion.verdict == verdict)
            };
            let failed: Vec<&Criterion> = of(Verdict::Fail).collect();
            assert!(failed.is_empty(), "seed {seed}: {failed:?}");
            assert!(of(Verdict::Pass).any(|criterion| criterion.name.starts_with("W-128-GC")));
        }
    }

    #[test]
    fn the_papers_sizes_are_judged_for_emmc_only() {
        let noted = |preset: Preset| {
            let config = preset.config().unwrap();
            let preset = Some(preset);
            let validation = validate(&DeviceUnderTest { config, preset }, 1, Extent::Quick);
            let criteria = validation.unwrap().criteria;
            let of_s3 = criteria.into_iter().filter(|c| c.source.starts_with("S3"));
            of_s3.filter(|c| c.verdict == Verdict::Noted).count()
        };
        assert_eq!(noted(Preset::Emmc51), 0);
        assert_eq!(noted(Preset::MicroSd), 3);
    }
}
