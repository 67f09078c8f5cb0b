//! `mobifs set`

use mobifs_runtime::{Reply, Request, parse_class, parse_size};

use super::{ask, unexpected};
use crate::arguments::SetArguments;
use crate::failure::{Code, Failure};

pub(crate) fn run(arguments: &SetArguments) -> Result<(), Failure> {
    let usage = |message: String| Failure::new(Code::Usage, message);
    let size = |text: &Option<String>| text.as_deref().map(parse_size).transpose();
    if let Some(class) = &arguments.class {
        parse_class(class).map_err(usage)?;
    }
    let request = Request::Set {
        app: arguments.app.clone(),
        class: arguments.class.clone(),
        age_max_ms: arguments.age_max_ms,
        staleness_max_bytes: size(&arguments.staleness_max_bytes).map_err(usage)?,
        staleness_min_bytes: size(&arguments.staleness_min_bytes).map_err(usage)?,
    };
    match ask(&arguments.mountpoint, &request)?.1 {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}
