//! Everything that people or programs write as text: configuration, sizes, mount options,
//! control requests, block traces.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use mobifs_daemon::parse_totals;
use mobifs_fuse::{MountOptions, OptionError};
use mobifs_trace::block::{LINE_BYTES_MAX, TraceReader, parse_line};
use mobifs_volume::{Config, ConfigError, parse_size};

use crate::{Target, Verdict};

/// The totals by day of a store.
pub const TOTALS: Target = Target {
    name: "totals",
    run: totals,
    seeds: || {
        texts(&[
            "",
            "\n2026-11-28 4096000 0 8192 0 2 e2c3162c\n",
            "\n2026-11-28 4096000 0 8192 0 2 e2c3162c\n2026-11-28 40\n\0\0",
        ])
    },
};

/// A configuration file.
pub const CONFIG: Target = Target {
    name: "config",
    run: config,
    seeds: || {
        texts(&[
            "",
            "memory_budget_bytes = \"64MiB\"\njournal_bytes = 33554432\napps = [\"*\", \"home/*\"]\n",
            "direct_write_max_bytes = \"128KiB\"\napply_idle_ms = 1000\nobjects_max = 5000\n\
             allow_durable = true\n[defaults]\nclass = \"relaxed\"\nage_max_ms = 10000\n\
             staleness_min_bytes = \"256KiB\"\nstaleness_max_bytes = \"10MiB\"\n\
             slope_min_micropercent = -30000\n",
            "[[app]]\nmatch = \"bank-{a,b}[0-9]?\"\nclass = \"durable\"\n[[app]]\n\
             match = \"home/**\"\nage_max_ms = 500\nstaleness_min_bytes = 0\n\
             policy = \"interval\"\ninterval_ms = 400\nflush_interval_ms = 9\n\
             staleness_bytes = \"1MiB\"\nwindow_points = 64\n",
            "apps = \"*\"\n[defaults]\nage_max_ms = \"30s\"\n[app]\nmatch = \"../x\"\n",
        ])
    },
};

/// A size.
pub const SIZE: Target = Target {
    name: "size",
    run: size,
    seeds: || {
        texts(&[
            "4096",
            "512MiB",
            " 64 m ",
            "2GB",
            "18446744073709551615",
            "1.5G",
        ])
    },
};

/// The options of a mount.
pub const MOUNT_OPTIONS: Target = Target {
    name: "mount_options",
    run: mount_options,
    seeds: || {
        texts(&[
            "ro,allow_other,nosuid,nodev,noexec,noatime,fsname=a\\,b,subtype=s",
            "defaults,noauto,x-systemd.automount,comment=backup,user=me,strictatime",
            "rw,suid,dev,exec,sync,dirsync,nodiratime,max_read=65536,syncfs=on,workers=single",
            "fsname=\\\\,noallow_other,async,diratime,workers=floating,syncfs=auto,,",
        ])
    },
};

/// A line of a control socket, of a mount or of a flash device, either way.
pub const CONTROL_LINE: Target = Target {
    name: "control_line",
    run: control_line,
    seeds: || {
        texts(&[
            r#"{"command":"status"}"#,
            r#"{"command":"sync","app":"mail","apply":true}"#,
            r#"{"command":"unmount","lazy":false}"#,
            r#"{"command":"unmount","lazy":false,"mount_id":36}"#,
            r#"{"command":"sync","app":{"hex":"6d61ff"},"apply":false}"#,
            r#"{"reply":"detached","used_by":["the mount at /mnt"]}"#,
            r#"{"command":"reload","config":"/etc/mobifs.toml"}"#,
            r#"{"command":"set","app":"a","settings":{"class":"durable","policy":"tpl","staleness_min_bytes":1,"window_points":8}}"#,
            r#"{"reply":"error","kind":"not-permitted","message":"no"}"#,
            r#"{"command":"cut","keep":{"random":{"seed":5}}}"#,
            r#"{"command":"power-on"}"#,
            r#"{"command":"calibrate"}"#,
            r#"{"reply":"calibration","calibration":{"device":null,"durable_write_max_bytes":4096,"sizes":[{"bytes":4096,"durable_us":31.5,"flushed_us":40.0}]}}"#,
            r#"{"reply":"powered-on","report":{"a":[1.5,null]},"loop_device":"/dev/loop0"}"#,
        ])
    },
};

/// A block trace.
pub const BLOCK_TRACE: Target = Target {
    name: "block_trace",
    run: trace,
    seeds: || {
        texts(&[
            "proces,device,rw_flag,sector,size,timestamp\na,b-1,8,R,0,8,1.0\r\n\nnonsense\n\
             b-2,8,WFS,8,8,1.5",
            "ll.splashscreen-2001,8388608,FWFS,4709256,32,653409.113348123456",
            "a-1,8,D,18446744073709551615,4294967295,7\na-1,8,FF,0,0,8.000000001\n",
        ])
    },
};

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn config(input: &[u8]) -> Verdict {
    const FILE: &str = "/etc/mobifs.toml";
    let Ok(text) = std::str::from_utf8(input) else {
        return Verdict::Refused;
    };
    let parsed = Config::parse(text, Path::new(FILE));
    match &parsed {
        Ok(config) => {
            use mobifs_engine::{AppRules as _, TransactioningName};
            assert!(config.memory_budget_bytes >= 4 << 20);
            assert!(config.journal_bytes.is_none_or(|bytes| bytes >= 64 << 10));
            assert!(config.allow_durable || !config.rules.needs_fsync());
            assert!(config.objects_max > 0);
            for glob in config.rules.app_globs() {
                let mut names = glob.split('/');
                assert!(!names.any(|name| matches!(name, "" | "." | "..")), "{glob}");
            }
            for path in [&b""[..], b"a", b"home/ann", b"bank-a1", b"\xff/\n"] {
                let (_, policy) = (config.rules.is_app(path), config.rules.policy(path));
                assert!(policy.due_age_ms() >= config.rules.due_age_ms_min());
                let tpl = policy.transactioning.tpl;
                let is_tpl = policy.transactioning.name == TransactioningName::Tpl;
                let fits = tpl.staleness_min_pages <= policy.staleness_max_pages;
                assert!(!is_tpl || fits);
                assert!(tpl.slope_min_micropercent <= 0);
                assert!(policy.transactioning.name.is_bounded());
            }
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.starts_with(FILE), "{message:?} names the file");
            assert!(!message.contains('\n'), "{message:?} is one line");
            let lines = text.bytes().filter(|&byte| byte == b'\n').count() + 1;
            let line = match error {
                ConfigError::Syntax { line, .. } => Some(*line),
                ConfigError::Value { line, .. } => *line,
                ConfigError::Read { .. } => None,
            };
            if let Some(line) = line {
                assert!((1..=lines).contains(&line), "line {line} of {lines}");
            }
        }
    }
    Verdict::from(&parsed)
}

fn totals(input: &[u8]) -> Verdict {
    let days = parse_totals(input);
    assert!(days.len() <= 400);
    for (day, next) in days.iter().zip(days.iter().skip(1)) {
        assert!(day.day < next.day, "each day once, in order");
    }
    if days.is_empty() {
        Verdict::Refused
    } else {
        Verdict::Taken
    }
}

fn size(input: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(input) else {
        return Verdict::Refused;
    };
    let parsed = parse_size(text);
    if let Ok(bytes) = parsed {
        assert_eq!(parse_size(&bytes.to_string()), Ok(bytes));
        assert_eq!(parse_size(&format!(" {text}\t")), Ok(bytes));
        assert_eq!(parse_size(&text.to_ascii_uppercase()), Ok(bytes));
        let digits: String = text
            .trim()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        let number: u64 = digits
            .parse()
            .unwrap_or_else(|_| panic!("{text:?} is a size"));
        assert!(bytes >= number, "no unit is smaller than a byte");
    }
    Verdict::from(&parsed)
}

fn mount_options(input: &[u8]) -> Verdict {
    let Ok(list) = std::str::from_utf8(input) else {
        return Verdict::Refused;
    };
    let mut options = MountOptions::default();
    let applied = options.apply(list);
    match &applied {
        Ok(()) => {
            let mut twice = options.clone();
            assert_eq!(twice.apply(list), Ok(()));
            assert_eq!(twice, options, "options are final states");
            assert!(!options.source_name.is_empty() && !options.subtype.is_empty());
            assert!(options.max_read_bytes.is_none_or(|bytes| bytes >= 4096));
        }
        Err(OptionError::Unknown(option)) => assert!(!option.is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Verdict::from(&applied)
}

fn control_line(input: &[u8]) -> Verdict {
    use mobifs_daemon::control as mount;
    use mobifs_device_server as flash;
    let understood = [
        understand::<mount::Request>(input),
        understand::<mount::Reply>(input),
        understand::<flash::Request>(input),
        understand::<flash::Reply>(input),
    ];
    if understood.contains(&true) {
        Verdict::Taken
    } else {
        Verdict::Refused
    }
}

/// Whether the line says a `T`; that must then survive being said again, in one line.
fn understand<T>(line: &[u8]) -> bool
where
    T: PartialEq + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let Ok(said) = serde_json::from_slice::<T>(line) else {
        return false;
    };
    let again = serde_json::to_vec(&said).unwrap_or_else(|error| panic!("{said:?}: {error}"));
    assert!(!again.contains(&b'\n'), "a line ends what it says");
    let again = serde_json::from_slice::<T>(&again);
    assert_eq!(again.unwrap_or_else(|error| panic!("{error}")), said);
    true
}

fn trace(input: &[u8]) -> Verdict {
    let reader = TraceReader::new(
        PathBuf::from("trace"),
        Box::new(Cursor::new(input.to_vec())),
    );
    let (mut requests, mut items) = (0, 0);
    for item in reader {
        items += 1;
        match item {
            Ok(request) => {
                assert!(request.process.len() <= LINE_BYTES_MAX);
                requests += 1;
            }
            Err(error) => assert!(error.to_string().starts_with("trace: line ")),
        }
    }
    let lines = input.split(|&byte| byte == b'\n');
    let whole = lines
        .clone()
        .filter(|line| line.len() <= LINE_BYTES_MAX && parse_line(line.trim_ascii()).is_ok());
    assert!(items <= lines.clone().count(), "one item a line at most");
    // The first line may be taken for names of columns.
    assert!(requests + 1 >= whole.count(), "no good line is left out");
    if requests > 0 {
        Verdict::Taken
    } else {
        Verdict::Refused
    }
}
