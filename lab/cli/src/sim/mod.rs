//! `mobifs sim`

pub(crate) mod arguments;
mod contenders;
mod inputs;
mod lab;

use std::fs::File;
use std::io::{IsTerminal as _, Write as _};

use mobifs_simulator::sim::{Report, compare};

use crate::failure::{Code, Failure};
use arguments::{OutputFormat, SimArguments};
use inputs::Progress;
pub(crate) use lab::{LabCommand, run as run_lab};

pub(crate) fn run(arguments: &SimArguments) -> Result<(), Failure> {
    let contenders = contenders::contenders(&arguments.policy, &arguments.against)?;
    let device = inputs::device(&arguments.input)?;
    let traces = inputs::streams(&arguments.input)?;
    let progress = Progress::new();
    let report = compare(&traces, &contenders, &device, &|done, of| {
        progress.show(done, of)
    });
    progress.clear();
    let report = report.map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    write(&report, arguments)
}

fn write(report: &Report, arguments: &SimArguments) -> Result<(), Failure> {
    let format = if arguments.json {
        OutputFormat::Json
    } else {
        arguments.format
    };
    let bytes = match format {
        OutputFormat::Table => report.table().into_bytes(),
        OutputFormat::Json => {
            let mut json = serde_json::to_vec_pretty(report)
                .map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
            json.push(b'\n');
            json
        }
        OutputFormat::Parquet => parquet(report, arguments)?,
    };
    let written = match &arguments.output {
        Some(path) if path.symlink_metadata().is_ok_and(|about| about.is_file()) => {
            let path = path.display();
            let message = format!("{path} is there, and is not replaced: name another file");
            return Err(Failure::new(Code::Failed, message));
        }
        Some(path) => File::create(path)
            .and_then(|mut file| file.write_all(&bytes))
            .map_err(|error| (path.display().to_string(), error)),
        None => match std::io::stdout().lock().write_all(&bytes) {
            // The reader of standard output has closed it.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            result => result.map_err(|error| ("standard output".to_owned(), error)),
        },
    };
    written.map_err(|(place, error)| {
        Failure::new(
            Code::Failed,
            format!("cannot write the report to {place}: {error}"),
        )
    })
}

fn parquet(report: &Report, arguments: &SimArguments) -> Result<Vec<u8>, Failure> {
    if arguments.output.is_none() && std::io::stdout().is_terminal() {
        let message = "a Parquet file is nothing for a terminal: say where to write it with \
                       --output FILE";
        return Err(Failure::new(Code::Usage, message));
    }
    let mut bytes = Vec::new();
    report
        .write_parquet(&mut bytes)
        .map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    Ok(bytes)
}
