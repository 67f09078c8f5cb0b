//! Prints what each preset comes to: the figures that its calibration test asks for.

#[path = "../tests/support/measure.rs"]
mod measure;

use mobifs_flash::Preset;

fn main() {
    for preset in Preset::ALL {
        println!("{}", preset.name());
        let config = match preset.config() {
            Ok(config) => config,
            Err(error) => {
                eprintln!("{error}");
                continue;
            }
        };
        println!("{:#?}", measure::figures(&config));
    }
}
