//! `-o`: what is for this program, and what is for the mount.

use std::path::PathBuf;
use std::time::Duration;

use mobifs_daemon::predecessor::WAIT_DEFAULT;
use mobifs_daemon::{Code, Failure};
use mobifs_fuse::MountOptions;

/// Everything that `-o` can say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// For the kernel adapter.
    pub(crate) mount: MountOptions,
    /// `config=`
    pub(crate) config: Option<PathBuf>,
    /// `log=`
    pub(crate) log: Option<PathBuf>,
    /// `record=`
    pub(crate) record: Option<PathBuf>,
    /// `nonempty`
    pub(crate) nonempty: bool,
    /// `nosupervise`: in the background, the daemon is unsupervised.
    pub(crate) unsupervised: bool,
    /// `remount`: change the flags of the mount that is there.
    pub(crate) remount: bool,
    /// `wait=`: how long to wait for a daemon whose mount of the store has ended and that
    /// still brings its changes there.
    pub(crate) wait: Duration,
    /// Whether the mount table's source was named.
    pub(crate) has_source_name: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mount: MountOptions::default(),
            config: None,
            log: None,
            record: None,
            nonempty: false,
            unsupervised: false,
            remount: false,
            wait: WAIT_DEFAULT,
            has_source_name: false,
        }
    }
}

impl Options {
    /// Reads option lists, later ones over earlier ones. With `sloppy`, unknown options are
    /// ignored, as `mount -s` asks for.
    pub(crate) fn parse(lists: &[String], sloppy: bool) -> Result<Self, Failure> {
        let mut options = Self::default();
        for option in lists.iter().flat_map(|list| split(list)) {
            match option.split_once('=') {
                Some(("config", path)) => options.config = Some(file("config", path)?),
                Some(("log", path)) => options.log = Some(file("log", path)?),
                Some(("record", path)) => options.record = Some(file("record", path)?),
                Some(("wait", seconds)) => options.wait = wait(seconds)?,
                None if option == "wait" => {
                    let message = "mount option 'wait' needs a value, as in 'wait=SECONDS'";
                    return Err(Failure::new(Code::Usage, message.to_owned()));
                }
                // The table of mounts tells by it what is ours: packages, scripts and commands look for that.
                Some(("subtype", kind)) if kind != "mobifs" && !kind.is_empty() => {
                    let message = format!(
                        "mount option 'subtype={kind}' would hide the mount from what looks for those of MobiFS; \
                         leave it away, and name the source with 'fsname=NAME'"
                    );
                    return Err(Failure::new(Code::Usage, message));
                }
                None if ["config", "log", "record"].contains(&option.as_str()) => {
                    let message = format!(
                        "mount option '{option}' needs a value, as in \
                                           '{option}=FILE'"
                    );
                    return Err(Failure::new(Code::Usage, message));
                }
                None if option == "nonempty" => options.nonempty = true,
                None if option == "supervise" => options.unsupervised = false,
                None if option == "nosupervise" => options.unsupervised = true,
                None if option == "remount" => options.remount = true,
                _ => {
                    options.has_source_name |= option.starts_with("fsname=");
                    match options.mount.apply(&option) {
                        Err(mobifs_fuse::OptionError::Unknown(_)) if sloppy => {}
                        other => other?,
                    }
                }
            }
        }
        Ok(options)
    }
}

fn file(name: &str, path: &str) -> Result<PathBuf, Failure> {
    if path.is_empty() {
        let message = format!("mount option '{name}=' needs the name of a file");
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(path.replace("\\,", ",").replace("\\\\", "\\").into())
}

fn wait(seconds: &str) -> Result<Duration, Failure> {
    let seconds = seconds.parse().map_err(|_| {
        let message = format!("mount option 'wait={seconds}' needs a number of seconds");
        Failure::new(Code::Usage, message)
    })?;
    Ok(Duration::from_secs(seconds))
}

/// Splits at commas that no backslash precedes; backslashes stay.
fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut escaped = false;
    for character in list.chars() {
        if character == ',' && !escaped {
            options.push(String::new());
        } else if let Some(last) = options.last_mut() {
            last.push(character);
        }
        escaped = character == '\\' && !escaped;
    }
    options.retain(|option| !option.is_empty());
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options, Failure> {
        Options::parse(&[list.to_owned()], false)
    }

    #[test]
    fn our_options_and_the_kernels_are_separated() {
        let options = parse("ro,config=/etc/a\\,b.toml,nonempty,noatime,fsname=x\\,y").unwrap();
        assert_eq!(options.config, Some("/etc/a,b.toml".into()));
        assert_eq!(parse("record=/r").unwrap().record, Some("/r".into()));
        assert!(options.nonempty && options.mount.read_only && options.has_source_name);
        assert_eq!(options.mount.source_name, "x,y");
        assert!(!options.remount && !options.unsupervised);
        assert_eq!(options.wait, WAIT_DEFAULT);
        assert_eq!(parse("wait=0,ro").unwrap().wait, Duration::ZERO);
        assert!(parse("supervise,nosupervise").unwrap().unsupervised);
        assert!(!parse("nosupervise,supervise").unwrap().unsupervised);
    }

    /// Found by strangers: removing the package did not see such a mount, and took its runtime directory away.
    #[test]
    fn another_subtype_is_refused() {
        parse("subtype=mobifs").unwrap();
        for list in ["subtype=mine", "ro,subtype=mine"] {
            let error = parse(list).unwrap_err();
            assert_eq!(error.code, Code::Usage);
            assert!(error.message.contains("'subtype=mine'"), "{error}");
        }
    }

    /// Found by strangers: it was called unknown.
    #[test]
    fn wait_without_a_value_is_told_what_it_needs() {
        let error = parse("wait").unwrap_err();
        assert!(error.message.contains("wait=SECONDS"), "{error}");
    }

    #[test]
    fn what_fstab_carries_for_others_is_passed_over() {
        let options = parse("noauto,nofail,x-systemd.automount,_netdev,user,defaults").unwrap();
        assert_eq!(options, Options::default());
    }

    #[test]
    fn unknown_options_are_refused_unless_sloppy() {
        let error = parse("frobnicate").unwrap_err();
        assert_eq!(error.code, Code::Usage);
        assert!(error.message.contains("'frobnicate'"), "{error}");
        Options::parse(&["frobnicate,ro".to_owned()], true).unwrap();
        assert!(
            parse("config")
                .unwrap_err()
                .message
                .contains("needs a value")
        );
        assert!(parse("wait=x").unwrap_err().message.contains("wait=x"));
        assert!(parse("record").unwrap_err().message.contains("needs a"));
        assert!(
            parse("config=")
                .unwrap_err()
                .message
                .contains("needs the name")
        );
    }
}
